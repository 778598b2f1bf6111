"""The kernel for a GPU: a whole step compiled, with gathering, noise and optimiser in it, and recorded as a CUDA graph
that is replayed: either one stack, or one compiled step a member on parallel streams in the same graph.

Members that see each other are one stack. On streams, what they exchange is computed between a compiled call a member
that makes it and one that takes it back, all recorded in one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core.lift import compiled, lift
from ..core.noise import Noise
from ..core.tree import Point, leaves, stack, tree_map
from ..problem import Batch
from .coupled import Streams
from .kernels import Kernel
from .method import CoupledMethod, Info

WARM_UP = 3  # steps before a graph is captured: libraries choose their algorithms in them


class Captured(Kernel):
    """The whole step compiled and recorded as a CUDA graph: one stack, or a stream a member (`streams`)."""

    def __init__(self, *args: Any, streams: bool, longest: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.longest = longest
        self.by_stream = streams and not self.method.coupled  # each member a cell of its own
        self.coupling.traced = not isinstance(self.coupling, Streams)
        self.cells: list[Any] = []  # one stacked state, or one state a member
        self._graph: torch.cuda.CUDAGraph | None = None
        self._compiled: Callable[..., Any] | None = None

    def load(self, points: Sequence[Point], keys: Tensor) -> None:
        fresh = self._fresh(points, keys)
        if self._graph is not None and self._same_size(fresh):
            tree_map(lambda old, new: old.copy_(new), self.cells, fresh)
            return
        device, g = keys.device, self.size
        self._graph = None
        self.cells = fresh
        self.loss = torch.zeros(g, dtype=torch.float64, device=device)
        self.at = torch.zeros((), dtype=torch.long, device=device)  # the step within the segment
        batch = self.data.n if self.batches.batch_size is None else self.batches.batch_size
        common = self.batches.shared or self.method.coupled
        rows = (self.longest, batch) if common else (self.longest, g, batch)
        self.order = torch.zeros(
            rows if self.batches.batch_size is not None else (1, *rows[1:]), dtype=torch.long, device=device
        )
        self.ticks = torch.zeros(self.longest, g, dtype=torch.long, device=device)
        self.noises = torch.zeros(self.longest, g, 2, dtype=torch.long, device=device)  # a key for each step

    def states(self) -> Any:
        return stack(self.cells) if self.by_stream else self.cells[0]

    def put(self, j: int, state: Any) -> None:
        if self.by_stream:
            tree_map(lambda old, new: old.copy_(new), self.cells[j], state)
        else:
            tree_map(lambda all_, one: all_[j].copy_(one), self.cells[0], state)

    def advance(self, clocks: Sequence[int], count: int, total: Tensor) -> Tensor:
        device = self.keys.device
        steps = count if self.batches.batch_size is not None else 1
        index = self.batches.index(clocks, steps)
        self.order[:steps] = index[:, 0] if self.method.coupled and not self.batches.shared else index
        self.ticks[:count] = torch.tensor(clocks, device=device) + torch.arange(count, device=device)[:, None]
        self.noises[:count] = Noise(self.keys.unsqueeze(0)).split(self.ticks[:count]).key
        if self._graph is None:
            self._capture()
        assert self._graph is not None
        self.loss.copy_(total)
        self.at.zero_()
        for _ in range(count):
            self._graph.replay()
            if self.kept is not None:
                keep, sample = self.kept
                self.bank.write(keep, sample)
        return self.loss.clone()

    def batch(self, inputs: Any, targets: Any, weights: Any, index: Any, key: Tensor, clock: Any) -> Batch:
        """As for all kernels; images of a single member have their channels last, as tensor cores take them."""
        seen = super().batch(inputs, targets, weights, index, key, clock)
        single = self.by_stream or isinstance(self.coupling, Streams)
        return seen._replace(inputs=tree_map(_channels_last, seen.inputs)) if single else seen

    def _fresh(self, points: Sequence[Point], keys: Tensor) -> list[Any]:
        if self.by_stream:
            return [self.init(p, k) for p, k in zip(points, keys)]
        return [lift(self.init)(stack(points), keys)]

    def _same_size(self, fresh: list[Any]) -> bool:
        return [x.shape for x in leaves(fresh)] == [x.shape for x in leaves(self.cells)]

    def _capture(self) -> None:
        saved = tree_map(torch.clone, self.cells)
        apart = isinstance(self.coupling, Streams)
        self._compiled = self._exchanging() if apart else compiled(self._cell_step, whole=True)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.at.zero_()
                self._all_cells([])
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        streams = [torch.cuda.Stream() for _ in self.cells] if self.by_stream else []
        if isinstance(self.coupling, Streams):
            self.coupling.spread(self.size)
        self.at.zero_()
        with torch.cuda.graph(graph):
            self.kept = self._all_cells(streams)
        self._graph = graph
        tree_map(lambda old, new: old.copy_(new), self.cells, saved)  # the steps before were only to warm up

    def _all_cells(self, streams: list[torch.cuda.Stream]) -> tuple[Tensor, Any] | None:
        assert self._compiled is not None
        current = torch.cuda.current_stream()
        kept: list[Any] = []
        for i, cell in enumerate(self.cells):
            part = slice(i, i + 1) if self.by_stream else slice(None)
            order = self.order if self.batches.shared else self.order[:, part]
            arguments = (cell, order, self.ticks[:, part], self.noises[:, part], self.loss[part], self.at)
            if streams:
                streams[i].wait_stream(current)
                with torch.cuda.stream(streams[i]):
                    kept.append(self._compiled(*arguments))
            else:
                kept.append(self._compiled(*arguments))
        for stream in streams:  # after all have been sent off: a join in between would make each wait for the last
            current.wait_stream(stream)
        self.at.add_(1)
        if kept[0] is None:
            return None
        joined = stack(kept) if self.by_stream else kept[0]
        return joined[0], joined[1]

    def _cell_step(self, state: Any, order: Tensor, ticks: Tensor, noises: Tensor, loss: Tensor, at: Tensor) -> Any:
        """One step of a stack, or of one member, written into its state; returns what the bank may keep."""
        index, key, clock = self._now(order, ticks, noises, at)
        if self.by_stream:
            clock, key, index = clock[0], key[0], index if self.batches.shared else index[0]
            new, info = self.step(state, *self.batches.gather(index), index, key, clock)
        elif self.method.coupled:
            new, info = self.step(state, *self.batches.gather(index), index, key, clock[0])
        else:
            new, info = lift(self.step, self.dims())(state, *self.batches.gather(index), index, key, clock)
        _write(state, new)
        loss.add_(info.loss.detach())
        return None if info.keep is None else (info.keep, info.sample)

    def _now(self, order: Tensor, ticks: Tensor, noises: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The rows, keys and clocks of the step at hand."""
        one = at.reshape(1)
        index = order[0] if self.batches.batch_size is None else order.index_select(0, one)[0]
        return index, noises.index_select(0, one)[0], ticks.index_select(0, one)[0]  # (g,) or (1,) clocks

    def _exchanging(self) -> Callable[..., None]:
        """A step of members that see each other, each on its stream: what comes before and after them is compiled."""
        method, problem = self.method, self.problem
        assert isinstance(method, CoupledMethod)

        def before(order: Tensor, ticks: Tensor, noises: Tensor, at: Tensor) -> tuple[Any, ...]:
            index, key, clock = self._now(order, ticks, noises, at)
            return (*self.batch(*self.batches.gather(index), index, key, clock[0]), key)

        def after(state: Any, grads: Any, losses: Tensor, buffers: Any, batch: tuple[Any, ...], total: Tensor) -> None:
            _write(state, method.descend(state, grads, Info(losses, buffers=buffers), Batch(*batch)))
            total.add_(losses)

        first, last = compiled(before, whole=True), compiled(after, whole=True)

        def step(state: Any, order: Tensor, ticks: Tensor, noises: Tensor, loss: Tensor, at: Tensor) -> None:
            *batch, key = first(order, ticks, noises, at)
            with self.precision():
                grads, info = method.gradient(state, Batch(*batch), problem, Noise(key), self.coupling)
            last(state, grads, info.loss, info.buffers, tuple(batch), loss)

        return step


def _write(state: Any, new: Any) -> None:
    for old, x in zip(leaves(state), leaves(new)):
        old.copy_(x)


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and x.is_floating_point() else x
