"""The kernel for a GPU: the steps of `Kernel`, with gathering, noise and optimiser in them, recorded as a CUDA graph
that is replayed: one stack, or members each on a stream of its own in the same graph."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from ..core.tree import Point, leaves, tree_map
from .kernel import Kernel
from .streams import Streams

WARM_UP = 3  # steps before a graph is recorded: libraries choose their algorithms in them


class Captured(Kernel):
    """Steps as a CUDA graph, recorded when the first is made; `longest` is how many are made between two looks."""

    def __init__(self, *args: Any, longest: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self.longest = longest
        self._graphs: dict[tuple[int, ...], torch.cuda.CUDAGraph] = {}  # by the members that are behind

    def load(self, points: Sequence[Point], keys: Tensor) -> None:
        before = self.cells
        super().load(points, keys)
        if self._graphs and [x.shape for x in leaves(before)] == [x.shape for x in leaves(self.cells)]:
            tree_map(lambda old, new: old.copy_(new), before, self.cells)
            self.cells = before  # at the addresses that were recorded
            return
        self._allocate()

    def keep(self, rows: list[int]) -> None:
        super().keep(rows)
        self._allocate()

    def _allocate(self) -> None:
        """Memory at fixed addresses, for graphs that are yet to be recorded."""
        self._graphs = {}
        device, g = self.keys.device, self.size
        self.loss = torch.zeros(g, dtype=torch.float64, device=device)
        self.at = torch.zeros((), dtype=torch.long, device=device)  # the step within those looked ahead at
        whole = self.batches.batch_size is None
        shape = self.batches.index(0, 1).shape[1:]  # type: ignore[union-attr]
        self._order = torch.zeros((1 if whole else self.longest, *shape), dtype=torch.long, device=device)
        self._ticks = torch.zeros(self.longest, g, dtype=torch.long, device=device)
        self._tick_keys = torch.zeros(self.longest, g, 2, dtype=torch.long, device=device)

    def advance(self, clocks: Sequence[int], count: int, total: Tensor) -> Tensor:
        for begin in range(0, count, self.bank.block or count):  # what waits is fetched before there is more
            part = min(count - begin, self.bank.block or count)
            total = self._advance([clock + begin for clock in clocks], part, total)
            self.bank.fetch()
        return total

    def _advance(self, clocks: Sequence[int], count: int, total: Tensor) -> Tensor:
        self.look_ahead(clocks, count)
        steps = len(self._order) if len(self._order) == 1 else count
        self._order[:steps] = self.order[:steps]  # type: ignore[assignment]
        self._ticks[:count], self._tick_keys[:count] = self.ticks, self.tick_keys
        self.order, self.ticks, self.tick_keys = self._order, self._ticks, self._tick_keys
        behind = tuple(self.lift.behind)
        if behind not in self._graphs:
            self._graphs[behind] = self._record()
        self.loss.copy_(total)
        self.at.zero_()
        for _ in range(count):
            self._graphs[behind].replay()
        return self.loss.clone()

    def store(self, i: int, new: Any) -> None:
        for old, x in zip(leaves(self.cells[i]), leaves(new)):
            if old is not x:
                old.copy_(x)

    def laid_out(self, inputs: Any) -> Any:
        """Images of a single member have their channels last, as tensor cores take them."""
        return tree_map(_channels_last, inputs) if self.apart or isinstance(self.lift, Streams) else inputs

    def _record(self) -> torch.cuda.CUDAGraph:
        saved = tree_map(torch.clone, self.cells)
        with _fast_convolutions():
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(WARM_UP):
                    self.at.zero_()
                    self._one_step(())
            torch.cuda.current_stream().wait_stream(side)
            streams = [torch.cuda.Stream() for _ in self.cells] if len(self.cells) > 1 else []
            if isinstance(self.lift, Streams):
                self.lift.spread(self.size)
            self.at.zero_()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                self._one_step(streams)
        tree_map(lambda old, new: old.copy_(new), self.cells, saved)  # the steps before were only to warm up
        self.bank.forget_waiting()
        return graph

    def _one_step(self, streams: Sequence[torch.cuda.Stream]) -> None:
        self.loss.add_(self.step(self.at, streams))
        self.at.add_(1)


@contextmanager
def _fast_convolutions() -> Iterator[None]:
    """Lets cuDNN time its algorithms for the shapes of the step, unless results are asked to be repeatable."""
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = before or not torch.are_deterministic_algorithms_enabled()
    try:
        yield
    finally:
        torch.backends.cudnn.benchmark = before


def _channels_last(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.dim() == 4 and x.is_floating_point() else x
