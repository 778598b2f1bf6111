"""The layers that a network's output comes from: its last layer, or all of its heads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from torch import Tensor


def heads(outputs: Tensor, matrices: Sequence[tuple[tuple[str, ...], Any]]) -> tuple[str, ...]:
    """The parameters of the linear layers and convolutions from which no other such layer lies on a way to the output,
    in the order of their calls: `matrices` has names and nodes of the graph, as `Taps` notes them.

    A layer whose output also goes into another of them, as the stem of a residual network whose last sum it is part of,
    is none.
    """
    names = {node: some for some, node in matrices}
    first = _reached(outputs.grad_fn, names)
    behind = {node: _reached(node, names, inside=True) for node in first}
    deeper = {other for node in first for other in behind[node] if names[other] != names[node]}
    return tuple(dict.fromkeys(n for some, node in matrices if node in first and node not in deeper for n in some))


def _reached(start: Any, names: dict[Any, tuple[str, ...]], inside: bool = False) -> set[Any]:
    """The nodes of layers that a walk back from a node meets; it ends at them unless it is to look inside."""
    met: set[Any] = set()
    seen: set[Any] = set()
    waiting = list(_before(start)) if inside else [start]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node in names:
            met.add(node)
            if not inside:
                continue
        waiting.extend(_before(node))
    return met


def _before(node: Any) -> Iterator[Any]:
    return (before for before, _ in node.next_functions)
