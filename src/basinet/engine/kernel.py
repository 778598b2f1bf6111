"""Carries out the steps of a group of members: what a method writes is what runs, in a stack, alone, or on streams.

A kernel owns the states of its members. Members that run apart (one by one, or each on a stream) are a cell each; a
stack is one cell. `captured.py` records the same steps as a CUDA graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..core.lift import compiled, lift
from ..core.noise import Noise
from ..core.tree import Point, stack, take, tree_map
from ..data import Stream, some
from ..problem import Batch
from .bank import Bank
from .batches import Batches, Streamed
from .derivatives import dense
from .descent import GradientMethod
from .step import Alone, Lift, Step
from .streams import on_streams
from .work import Work


class Kernel:
    """Members side by side. `begin` loads a group, `advance` moves it, `row` and `put` read and replace one member."""

    def __init__(self, work: Work, lift: Lift, autocast: torch.dtype | None = None) -> None:
        self.work, self.lift, self.autocast = work, lift, autocast
        self.apart = isinstance(lift, Alone)  # each member is a cell of its own
        self.cells: list[Any] = []
        self.bank = Bank(0, 0)
        self._augment: Any = None

    def begin(self, members: Sequence[int], points: Sequence[Point], keys: Tensor) -> None:
        """Loads a group: member numbers (their index lists), starting points, keys (g, 2)."""
        self.size, self.keys = len(members), Noise(keys).split("step").key
        schedule, data, method = self.work.schedule, self.work.data, self.work.method
        shufflers = 1 if method.coupled else self.size  # coupled members see the batches of the first
        self.batches: Batches | Streamed = (
            Streamed(data, self._trains_on_one(points[0], keys[0]))
            if isinstance(data, Stream)
            else Batches(
                data,
                list(members[:shufflers]),
                keys[:shufflers],
                schedule.batch_size,
                schedule.order == "given",
                schedule.order == "independent",
            )
        )
        own = None if self.batches.shared or method.coupled else 0
        weighted = None if own is None or data.weights is None else own
        self.lift.autocast = None if self.autocast is None else (keys.device.type, self.autocast)
        self.lift.axes = (own, own, own, None if method.coupled else 0, weighted, 0)
        if len(self.bank.counts) == self.size and self.bank.rows == schedule.bank:
            self.bank.reset()
        else:
            self.bank = Bank(self.size, schedule.bank, keys.device)
        self.load(points, keys)

    def _trains_on_one(self, point: Point, key: Tensor) -> bool:
        """Whether the network runs on one example alone in training; norm layers may need more."""
        problem = self.work.problem
        if not problem.network.norms:
            return True
        inputs = tree_map(lambda x: x[:1], some(self.work.data).inputs)
        try:
            with torch.no_grad():
                problem.outputs(point.params, point.buffers, inputs, Noise(key), "train")
        except ValueError:
            return False
        return True

    def load(self, points: Sequence[Point], keys: Tensor) -> None:
        """Makes the states before the first step."""
        if self.apart:
            self.cells = [dense(self.init(point, key)) for point, key in zip(points, keys)]
        else:
            self.cells = [dense(lift(self.init)(stack(points), keys))]

    def advance(self, clocks: Sequence[int], count: int, total: Tensor) -> Tensor:
        """Makes `count` steps from each member's clock; returns `total` (g,) plus the losses, added one by one."""
        self.look_ahead(clocks, count)
        for t in range(count):
            total = total + self.step(t)
        return total

    def states(self) -> Any:
        """The states of all members, leaves (g, ...)."""
        return stack(self.cells) if self.apart else self.cells[0]

    def row(self, j: int) -> Any:
        """A copy of the state of member j."""
        return tree_map(torch.clone, self.view(j))

    def view(self, j: int) -> Any:
        """The state of member j, as it stands in the kernel."""
        return self.cells[j] if self.apart else take(self.cells[0], j)

    def put(self, j: int, state: Any) -> None:
        """Replaces the state of member j."""
        tree_map(lambda old, new: old.copy_(new), self.view(j), state)

    def keep(self, rows: list[int]) -> None:
        """Continues with only some of the members."""
        chosen = torch.tensor(rows, device=self.keys.device)
        self.cells = [self.cells[j] for j in rows] if self.apart else [dense(take(self.cells[0], chosen))]
        self.size, self.keys, self.bank = len(rows), self.keys[chosen], self.bank.only(rows)
        self.batches.keep(rows)

    def rekey(self, j: int, key: Tensor) -> None:
        """Gives member j another key, from which its shuffling and noise follow."""
        if j == 0 or not self.work.method.coupled:
            self.batches.rekey(j, key)
        self.keys[j] = Noise(key).split("step").key

    def init(self, point: Point, key: Tensor) -> Any:
        """The state of one member before its first step, in memory of its own."""
        return tree_map(torch.clone, self.work.method.init(point, self.work.problem, Noise(key).split("init")))

    def look_ahead(self, clocks: Sequence[int], count: int) -> None:
        """Which examples and keys the next steps have."""
        device = self.keys.device
        latest = max(clocks)
        self.lift.behind = [] if self.work.method.coupled else [j for j, c in enumerate(clocks) if c != latest]
        self.order = self.batches.index(clocks, count)
        self.ticks = torch.tensor(clocks, device=device) + torch.arange(count, device=device)[:, None]  # (count, g)
        self.tick_keys = Noise(self.keys.unsqueeze(0)).split(self.ticks).key  # (count, g, 2)

    def step(self, at: int | Tensor, streams: Sequence[torch.cuda.Stream] = ()) -> Tensor:
        """A step of all members, the one at place `at` of those looked ahead at; returns their losses (g,)."""
        index = self.order[0] if len(self.order) == 1 else _at(self.order, at)  # a full batch is always the same
        ticks, keys = _at(self.ticks, at), _at(self.tick_keys, at)
        if len(self.cells) == 1:
            return self._cell_step(0, index, ticks, keys)
        calls = [partial(self._cell_step, i, index, ticks, keys) for i in range(len(self.cells))]
        return torch.cat(on_streams(streams, calls))

    def _cell_step(self, i: int, index: Tensor, ticks: Tensor, keys: Tensor) -> Tensor:
        method, cell = self.work.method, self.cells[i]
        given = self._given(i, index, ticks, keys)
        whole = method.coupled or isinstance(method, GradientMethod)
        new, info = method.update(cell, given) if whole else self.lift.each(method.update)(cell, given)
        self.store(i, new)
        if info.keep is not None:
            keep, sample = info.keep.reshape(-1), info.sample
            sample = tree_map(lambda x: x.unsqueeze(0), sample) if self.apart else sample
            self.bank.write(keep, sample, slice(i, i + 1) if self.apart else slice(None))
        return info.loss.detach().reshape(-1)

    def store(self, i: int, new: Any) -> None:
        """Takes the next state of a cell."""
        self.cells[i] = dense(new)

    def _given(self, i: int, index: Tensor, ticks: Tensor, keys: Tensor) -> Step:
        """What the step of a cell is given: examples augmented with the member's noise (coupled: that of the first)."""
        work, own = self.work, not self.batches.shared
        if work.method.coupled:
            index, clock, key = index[0] if own else index, ticks[0], keys
        elif self.apart:
            index, clock, key = index[i] if own else index, ticks[i], keys[i]
        else:
            clock, key = ticks, keys
        inputs, targets, weights = self.batches.gather(index)
        inputs = self.laid_out(self._augmented(inputs, key))
        batch = Batch(inputs, targets, index, clock, self.batches.n, weights)
        return Step(batch, work.problem, Noise(key), work.context, self.lift)

    def laid_out(self, inputs: Any) -> Any:
        """Inputs in the order of memory that suits the kernel."""
        return inputs

    def _augmented(self, inputs: Any, key: Tensor) -> Any:
        augment = self.work.data.augment
        if augment is None:
            return inputs
        if self._augment is None:

            def of_one(inputs: Any, key: Tensor) -> Any:
                return augment(inputs, Noise(key).split("augment"))

            stacked = not (self.apart or self.work.method.coupled)
            of_all = lift(of_one, (self.lift.axes[0], 0)) if stacked else of_one
            self._augment = compiled(of_all) if self.lift.compile else of_all
        return self._augment(inputs, key[0] if self.work.method.coupled else key)


def _at(rows: Any, at: int | Tensor) -> Any:
    """A row: by number, or by one that is on the device."""
    return rows[at] if isinstance(at, int) else rows.index_select(0, at.reshape(1))[0]
