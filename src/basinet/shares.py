"""Fits that are spread over several calls or machines: which members each call trains, and which train side by side.

The bits of a member follow from who trains beside it. So blocks follow from the number of members and the size of a
block only, not from who trains them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from .engine import Engine, Method
from .engine.planner import cut

GROUP = 8  # members that train side by side, where a fit is spread and its engine says nothing


class Share(NamedTuple):
    """What a call trains."""

    engine: Engine  # which plans by rules where others must come to the same plan
    blocks: list[list[int]] | None  # members that may train side by side, by position; None: all that fit
    chosen: list[int] | None  # members of this call, by position; None: all


def share_of(only: Sequence[int] | str | None, members: int, recipes: int, method: Method, engine: Engine) -> Share:
    """The share that `only` asks for: members by number, or "0/4", the first of four shares. Member k has recipe k mod
    `recipes`, and members of different recipes do not train side by side."""
    if only is None and engine.executor is None and engine.group is None:
        return Share(engine, None, None)
    if method.coupled:
        if only is not None:
            raise ValueError(f"the members of {method.label} see each other and train in one place: leave only= out")
        return Share(replace(engine, deterministic=True) if engine.executor else engine, None, None)
    part, parts = _parsed(only) if isinstance(only, str) else (0, 0)
    size = engine.group or (GROUP if only is None else 1)
    if engine.group is None and parts:  # as many blocks for each share
        each = -(-members // parts)
        size = -(-members // (parts * -(-each // GROUP)))
    blocks = [block for j in range(recipes) for block in cut(range(j, members, recipes), size)]
    spread = only is not None or engine.executor is not None
    engine = replace(engine, deterministic=True) if spread else engine
    if only is None:
        return Share(engine, blocks, None)
    if parts:
        if parts > len(blocks):
            raise ValueError(
                f"{members} members train in {len(blocks)} blocks of up to {len(blocks[0])} and make no {parts} "
                f"shares: ask for {len(blocks)} shares at most, or give Engine(group=...) with a smaller group"
            )
        return Share(engine, blocks, sorted(i for block in blocks[part::parts] for i in block))
    wanted = _numbers(only, members)
    return Share(engine, blocks, sorted(i for block in blocks if wanted.intersection(block) for i in block))


def _parsed(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.strip().isdecimal() and parts.strip().isdecimal()) or not int(part) < int(parts):
        raise ValueError(f"expected a share as I/N with I from 0 to N - 1, such as 0/4 or 3/4, got {text!r}")
    return int(part), int(parts)


def _numbers(only: object, members: int) -> set[int]:
    expected = f"expected only= as numbers of members from 0 to {members - 1}, such as range(4), or a share as '0/4'"
    try:
        numbers = [*only]  # type: ignore[misc]
    except TypeError as error:
        raise ValueError(f"{expected}, got {type(only).__name__}") from error
    if not numbers or any(type(k) is not int or not 0 <= k < members for k in numbers):
        raise ValueError(f"{expected}, got {only!r}")
    return set(numbers)
