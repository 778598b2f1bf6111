"""The draws with which members predict: points in weight space, by key, made in blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.lift import lift
from ..core.model import Mode
from ..core.noise import Noise
from ..core.tree import Params, Point, leaves, nbytes, stack, take, tree_map
from ..families import Family
from ..problem import Problem
from .norms import refreshed

CACHE = 256 * 2**20  # bytes: draws are made once and kept where all of them fit in this
BLOCK = {"cpu": 2**22, "cuda": 2**28}  # bytes of draws that are made in one call: many of a tiny network, or one


class Drawn(NamedTuple):
    """What runs on inputs."""

    point: Point
    keys: Params  # "mask": the key (2,) of dropout masks, where dropout is on


class DrawBlock(NamedTuple):
    """Some draws in a row; draw s of member m has number m * S + s."""

    first: int  # the number of the first one
    drawn: Drawn  # leaves (count, ...)

    def __len__(self) -> int:
        return len(leaves(self.drawn)[0])


@dataclass(frozen=True)
class Draws:
    """S draws from each of M members, by key: the same draws whatever is asked of them, in whatever order."""

    problem: Problem
    family: Family  # stacked, leaves (M, ...)
    keys: Tensor  # (M, 2), one key per member
    samples: int  # S
    mode: Mode = "eval"
    refresh: Any = None  # training inputs from which norm statistics are recomputed for each draw; None: as they are
    held: bool = False  # dropout masks are the same for all inputs
    rows: Tensor | None = None  # (M, n): which of them are each member's own; None: all

    def __len__(self) -> int:
        return self.keys.shape[0]

    def __iter__(self) -> Iterator[tuple[int, int, Point]]:
        """(m, s, point) one after another."""
        for block in self.blocks():
            for i in range(len(block)):
                yield *divmod(block.first + i, self.samples), take(block.drawn.point, i)

    def blocks(self) -> Iterator[DrawBlock]:
        """All draws in order, made when they are reached: of several members, or some of one member's."""
        size = max(1, BLOCK[self.keys.device.type] // self._each())
        members, samples = max(1, size // self.samples), min(self.samples, size)
        for m in range(0, len(self), members):
            for s in range(0, self.samples, samples):
                points = self._points(slice(m, m + members), s, min(s + samples, self.samples))
                first = m * self.samples + s
                yield DrawBlock(first, Drawn(points, self._keys(first, len(leaves(points)[0]))))

    def kept(self) -> list[DrawBlock] | None:
        """The draws in memory where they fit, so that several passes draw once; else none, to be drawn again."""
        return list(self.blocks()) if self._each() * len(self) * self.samples <= CACHE else None

    def centres(self) -> list[Point]:
        """The mean of each member, around which its network is linearised."""
        points = [take(self.family, m).mean() for m in range(len(self))]
        if self.refresh is None:
            return points
        keys = [Noise(key).split("refresh").split("mean") for key in self.keys]
        return [refreshed(self.problem, p, self._own(m), key) for m, (p, key) in enumerate(zip(points, keys))]

    def _each(self) -> int:
        one = take(self.family, 0)
        return nbytes(one) // one.points if one.points else nbytes(one.mean())  # points are not read to be counted

    def _keys(self, first: int, count: int) -> Params:
        if self.mode != "dropout":
            return {}
        number = torch.arange(first, first + count, device=self.keys.device)
        noise = Noise(self.keys[number // self.samples])
        return {"mask": noise.split("mask").split(number % self.samples).key}

    def _points(self, members: slice, begin: int, end: int) -> Point:
        """Draws begin ... end - 1 of each of the members, leaves (count, ...)."""
        keys = self.keys[members]
        if len(keys) == 1:
            points = take(self.family, members.start).draws(Noise(keys[0]).split("draw"), begin, end)
        else:
            of_member = lift(lambda family, key: family.draws(Noise(key).split("draw"), begin, end))
            points = tree_map(lambda x: x.flatten(0, 1), of_member(take(self.family, members), keys))
        if self.refresh is None:
            return points
        numbers = [(m, s) for m in range(members.start, members.start + len(keys)) for s in range(begin, end)]
        each = [
            refreshed(self.problem, take(points, i), self._own(m), Noise(self.keys[m]).split("refresh").split(s))
            for i, (m, s) in enumerate(numbers)
        ]
        return Point(points.params, stack([p.buffers for p in each]))

    def _own(self, m: int) -> Any:
        """The training inputs of member m."""
        return self.refresh if self.rows is None else take(self.refresh, self.rows[m])


class Collected:
    """What draws give, put in its place piece by piece: outputs and the likelihood's learned parameters."""

    def __init__(self, draws: Draws) -> None:
        self.draws, self.total = draws, len(draws) * draws.samples
        self.outputs: Tensor | None = None  # (M * S, B, *event)
        self.learned: Params = {}  # (M * S, ...)

    def put(self, here: slice, begin: int, n: int, out: Tensor) -> None:
        """Outputs of the draws `here` on the inputs from `begin` on, of n in all."""
        if self.outputs is None:
            self.outputs = out.new_empty((self.total, n, *out.shape[2:]))
        self.outputs[here, begin : begin + out.shape[1]] = out

    def learn(self, block: DrawBlock) -> None:
        """The learned parameters of a block."""
        for name, x in self.draws.problem.split(block.drawn.point.params)[1].items():
            if name not in self.learned:
                self.learned[name] = x.new_empty((self.total, *x.shape[1:]))
            self.learned[name][block.first : block.first + len(block)] = x

    def all(self) -> tuple[Tensor, Params]:
        """Everything, with members and samples on axes of their own."""
        assert self.outputs is not None
        shape = (len(self.draws), self.draws.samples)
        return self.outputs.unflatten(0, shape), {name: x.unflatten(0, shape) for name, x in self.learned.items()}
