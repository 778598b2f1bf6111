"""Whether a recipe fits in memory, from what it asks for, and which other structure of it does where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch

from ..core.recipe import flat
from ..core.tree import Point, leaves
from ..data import Data, Stream
from ..engine.memory import SHARE, free_bytes, member_bytes, readable
from ..engine.method import Method
from ..engine.work import Work
from ..problem import Problem
from .demand import Demand


class RecipeBytes(NamedTuple):
    """What some members of a recipe take, in bytes."""

    demand: Demand  # of a member
    each: int  # of a member in training; 0 where it makes no steps
    kept: int  # of all members, when they are done

    def peak(self, at_once: int = 1) -> int:
        """The most that is held while this many train at once. In the end all families are there, and stacked again."""
        return max(at_once * self.each + self.kept, self.demand.finish + self.kept, 2 * self.kept)


def recipe_bytes(
    method: Method,
    problem: Problem,
    point: Point,
    data: Data | Stream | None,
    val: Data | Stream | None,
    members: int,
) -> RecipeBytes:
    """What members of a recipe take. `problem` is as the recipe adapts it; `point` and data are where they will be."""
    demand, work = method.demand(point, problem, data, val), Work.of(method, problem, data, val)
    first = leaves(point.params)[0]
    holds = demand.kept <= free_bytes(first.device)  # else even a first state would not fit
    trains = data is not None and work.schedule.steps > 0 and holds
    each = member_bytes(work.to(first.device, first.dtype), point).total if trains else 0
    return RecipeBytes(demand, each, members * demand.kept)


def instead(method: Method, takes: Callable[[Method], RecipeBytes], most: int) -> tuple[Method, int] | None:
    """The first variant behind a recipe that takes less than it and at most `most` bytes, and what it takes."""
    listed = list(method.variants())
    behind = listed[listed.index(method) + 1 :] if method in listed else listed
    own = takes(method).peak()
    for other in behind:
        try:
            peak = takes(other).peak()
        except ValueError:  # one that this network has not, such as a last layer in a scripted module
            continue
        if peak < own and peak <= most:
            return other, peak
    return None


def refuse_what_does_not_fit(
    method: Method,
    problem: Problem,
    point: Point,
    data: Data | Stream | None,
    val: Data | Stream | None,
    members: int,
    memory: int | None,
    device: torch.device,
) -> None:
    """Raises MemoryError with numbers, and the structure that fits, where finishing a member or keeping all would not.

    What training takes is for the engine to cut into groups, or to refuse. `memory` is what a member may take; all of
    them together may take what is free.
    """
    free = int(SHARE * free_bytes(device))
    demand, most = method.demand(point, problem, data, val), free if memory is None else memory
    one, all_ = demand.finish + demand.kept, 2 * members * demand.kept
    if one <= most and all_ <= free:
        return
    other = instead(method, lambda x: recipe_bytes(x, problem, point, data, val, members), min(most, free))
    advice = [f"{differences(method, other[0])} takes about {readable(other[1])}"] if other else []
    if one > most:
        shortfall = f"{demand.what or method.label} takes about {readable(one)}, and {readable(most)} may be used"
    else:
        what = f"{method.label} of {members:,} members, kept and stacked,"
        shortfall = f"{what} takes about {readable(all_)}, and {readable(free)} may be used"
        fewer = free // (2 * demand.kept)
        advice += [f"members={fewer:,} fit"] if fewer else []
    do = ", or ".join(advice) or "use a smaller network, or fewer of its parameters where the method has where="
    raise MemoryError(f"{shortfall}: {do}")


def differences(method: Method, other: Method) -> str:
    """In what a recipe differs from another, as it is written: structure='kronecker'."""
    own = dict(flat(method))
    changed = [f"{'.'.join(p)}={v!r}" for p, v in flat(other) if p not in own or own[p] != v]
    return ", ".join(changed) or other.label
