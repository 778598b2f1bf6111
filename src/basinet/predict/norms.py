"""Norm statistics of points that training never visited: an average of weights, a draw.

In training mode a norm layer moves its running statistics r at each call: r <- (1 - m) r + m b, with b those of the
batch. After k calls (1 - m)^k of where it stood is left, and what is not left is the batch's. A layer that does not
move, since the network keeps it in eval mode or its momentum is 0, keeps the statistics it has. BatchNorm counts its
calls; of InstanceNorm, which does not, they are found by beginning one higher: what is left of that one is (1 - m)^k.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import closing
from typing import Any

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, leaves, take, tree_map
from ..data import Data, Stream
from ..problem import Problem

KEEP = 2048  # training inputs of a member on which statistics are recomputed
STATISTICS = ("running_mean", "running_var")


def settled(problem: Problem, point: Point, data: Data | Stream | None, noise: Noise) -> Point:
    """The point with norm statistics recomputed on a member's training data."""
    if data is None or not problem.network.norms:
        return point
    return refreshed(problem, point, kept_inputs(data)[0], noise)


def refreshed(problem: Problem, point: Point, inputs: Any, noise: Noise, batch_size: int = 256) -> Point:
    """The point with its norm statistics recomputed: the average over batches of `inputs`, weighted by their size."""
    n = leaves(inputs)[0].shape[0]
    count = max(1, round(n / batch_size))
    begin = point.buffers | {
        k: torch.zeros_like(x) for k, x in point.buffers.items() if _layer(k, problem) and not x.is_floating_point()
    }  # calls are counted from 0
    sums: Params = {}
    shares: dict[str, float] = {}
    with torch.no_grad():
        for i in range(count):
            rows = tree_map(lambda x, i=i: x[i * n // count : (i + 1) * n // count], inputs)
            share = leaves(rows)[0].shape[0] / n

            def run(start: Params, rows: Any = rows, i: int = i) -> Params:
                return problem.outputs(point.params, start, rows, noise.split(i), "train")[1]

            for k, x in _of_the_batch(problem, begin, run).items():
                sums[k] = sums[k] + share * x if k in sums else share * x
                shares[k] = shares.get(k, 0.0) + share
    return Point(point.params, point.buffers | {k: x / shares[k] for k, x in sums.items()})


def kept_inputs(data: Data | Stream, members: list[int] | None = None) -> tuple[Any, Tensor | None]:
    """Training inputs from all over the data, KEEP at most. Where members have examples of their own: KEEP of each
    of them, and which are whose, (M, n)."""
    if isinstance(data, Stream):
        return _first_inputs(data), None
    if data.rows is None or members is None:
        return take(data.inputs, _spread(len(data.targets), data.targets.device)), None
    own = data.rows[members]
    own = own[:, _spread(own.shape[1], own.device)]  # (M, n)
    places, rows = own.unique(return_inverse=True)
    return take(data.inputs, places), rows


def _of_the_batch(problem: Problem, begin: Params, run: Callable[[Params], Params]) -> Params:
    """The statistics of a batch in the layers that a pass moves, which runs from buffers to those after it."""
    after, higher, statistics = run(begin), None, dict[str, Tensor]()
    for layer, momentum in problem.network.norms.items():
        names = [f"{layer}.{s}" for s in STATISTICS]
        if all(torch.equal(begin[k], after[k]) for k in names):
            continue
        counter = after.get(f"{layer}.num_batches_tracked")
        calls = 0 if counter is None else int(counter)
        if not calls and 0 < momentum < 1:  # it does not count
            means = {k: x + 1 for k, x in begin.items() if k.endswith(STATISTICS[0]) and _layer(k, problem)}
            higher = run(begin | means) if higher is None else higher
            rest = float((higher[names[0]] - after[names[0]]).double().mean())
            calls = round(math.log(max(rest, 1e-6)) / math.log1p(-momentum))
        left = (1 - momentum) ** max(1, calls)
        statistics |= {k: (after[k] - left * begin[k]) / (1 - left) for k in names}
    return statistics


def _layer(name: str, problem: Problem) -> bool:
    return name.rpartition(".")[0] in problem.network.norms


def _spread(total: int, device: torch.device) -> Tensor:
    """Positions all over `total` examples."""
    count = min(KEEP, total)
    return torch.arange(count, device=device) * total // count


def _first_inputs(stream: Stream) -> Any:
    parts, count = [], 0
    with closing(stream.once()) as batches:
        for piece in batches:
            parts.append(piece.inputs)
            count += len(piece.targets)
            if count >= KEEP:
                break
    return tree_map(lambda *xs: torch.cat(xs)[:KEEP], parts[0], *parts[1:])
