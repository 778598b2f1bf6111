"""Trains groups of members in this process: makes the kernel that a plan asks for, and feeds it groups.

What trains groups elsewhere (`workers.py`) has the same `train_all`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Protocol

import torch

from ..core.lift import is_out_of_memory
from ..core.tree import Point
from ..data import Stream
from .captured import Captured
from .group import Group
from .kernel import Kernel
from .probe import Plan
from .slot import Slot, finish_only
from .step import Alone, Lift
from .streams import Streams
from .work import Roster, Run, Trained

if TYPE_CHECKING:
    from .engine import Engine

TRIED = {True: 20, False: 2}  # steps that are timed, by whether they are recorded or compiled

Halves = Callable[[list[int]], list[list[int]]]
"""Cuts a group that did not fit in memory."""


class Executor(Protocol):
    """Where groups train: here, in processes of this machine, or on a cluster."""

    run: Run

    def plan(self, first: Point, wanted: Sequence[int]) -> Iterable[None]:
        """Settles in `run.checkpoints` how members run, and says so; the first of them starts at `first`. Yields None
        while it waits for others."""

    def train_all(self, groups: list[list[int]], halves: Halves) -> Iterator[Trained | None]:
        """Trains groups and yields their members; `halves` cuts a group that did not fit in memory. Yields None where
        it only waits for others, so that its caller may do something else."""

    def half(self, count: int) -> int:
        """Half as many members as were too many, after saying so."""

    def close(self) -> None:
        """Ends whatever still runs."""


class Here:
    """Trains groups one after another, by the plan in `chosen`."""

    def __init__(self, engine: Engine, run: Run, roster: Roster) -> None:
        self.engine, self.run, self.roster = engine, run, roster
        self.chosen = Plan("loop", False, "no steps")
        self.chunk: int | None = None  # of coupled members, whose activations are in memory at once; None: all
        self._kernels: dict[tuple[Plan, int], Kernel] = {}

    def slot(self, i: int) -> Slot:
        """The member at a position, before its first step."""
        point = self.roster.point
        return Slot(self.roster.members[i], lambda attempt: self.engine.move(point(i, attempt)), self.roster.keys[i], i)

    def train_all(self, groups: list[list[int]], halves: Halves) -> Iterator[Trained]:
        """Trains group after group; one for which memory runs out, again in halves."""
        queue = list(groups)
        while queue:
            group = queue.pop(0)
            try:
                yield from self.train(group)
                continue
            except RuntimeError as error:
                if not is_out_of_memory(error) or (self.chunk or len(group)) == 1:
                    raise
            if self.run.work.method.coupled:
                self.chunk = self.half(self.chunk or len(group))
                queue.insert(0, group)  # from the last checkpoint, or the beginning
            else:
                queue = halves(group) + queue

    def train(self, group: list[int]) -> Iterator[Trained]:
        """Trains one group."""
        slots = [self.slot(i) for i in group]
        if self.run.work.schedule.steps == 0:
            for slot in slots:
                self.run.interrupt.check()
                yield finish_only(self.run, slot)
            return
        try:
            with in_threads(1 if self.chosen.one_thread else torch.get_num_threads()):
                yield from Group(self.run, self.kernel(self.chosen, len(group)), slots).train()
        except RuntimeError as error:
            if is_out_of_memory(error):
                self.forget()
            raise

    def half(self, count: int) -> int:
        """Half as many members as were too many, after giving back the memory and saying so."""
        self.forget()
        return halved(self.run, count)

    def forget(self) -> None:
        """Gives back the memory of all kernels."""
        self._kernels.clear()
        if self.engine.place.type == "cuda":
            torch.cuda.empty_cache()

    def kernel(self, plan: Plan, count: int) -> Kernel:
        """The kernel for a group of this many members."""
        key = (plan._replace(reason="", processes=1, threads=0), count)
        if key not in self._kernels:
            work = self.run.work
            options = {"autocast": self.engine.autocast}
            if plan.captured:
                self._kernels[key] = Captured(work, self._lift(plan), **options, longest=work.segment)
            else:
                self._kernels[key] = Kernel(work, self._lift(plan), **options)
        return self._kernels[key]

    def _lift(self, plan: Plan) -> Lift:
        """How functions of one member are computed for all."""
        coupled, compile = self.run.work.method.coupled, plan.compiled
        if not coupled:
            return Lift(compile=compile) if plan.strategy == "stacked" else Alone(compile=compile)
        recompute = self.chunk is not None
        if plan.strategy == "streams":
            return Streams(self.chunk, recompute=recompute, compile=compile)
        size = self.chunk if recompute else 1 if plan.strategy == "loop" else None
        return Lift(size, recompute=recompute, compile=compile)

    def measure(self, plan: Plan, few: list[int]) -> float:
        """Seconds that a step of all members takes in a plan; what was computed is forgotten, the kernel is kept."""
        work = self.run.work
        group = few[:1] if plan.strategy == "loop" and not work.method.coupled else few
        kernel = self.kernel(plan, len(group))
        slots = [self.slot(i) for i in group]
        keys = torch.stack([s.key() for s in slots])
        kernel.begin([s.member.k for s in slots], [s.point(0) for s in slots], keys)
        count = min(work.segment, TRIED[plan.compiled or plan.captured])
        nothing = torch.zeros(len(group), dtype=torch.float64, device=self.engine.place)
        kernel.advance([0] * len(group), 1, nothing)
        self._wait()
        began = time.perf_counter()
        kernel.advance([0] * len(group), count, nothing)
        self._wait()
        return (time.perf_counter() - began) / count * (len(few) / len(group))

    def close(self) -> None:
        """Ends whatever reads ahead for steps that were only tried."""
        for kernel in self._kernels.values():
            kernel.batches.close()

    @property
    def capturable(self) -> bool:
        """Whether steps can be recorded as a CUDA graph: on a GPU, from data in memory whose batches are all alike."""
        work = self.run.work
        resident = work.data is not None and not isinstance(work.data, Stream)
        return self.engine.place.type == "cuda" and resident and work.schedule.order != "given"

    def _wait(self) -> None:
        if self.engine.place.type == "cuda":
            torch.cuda.synchronize(self.engine.place)


def halved(run: Run, count: int) -> int:
    """Half as many members as were too many, after saying so."""
    half = -(-count // 2)
    run.progress.say(f"out of memory with {count} members at once: continuing with {half}")
    return half


@contextmanager
def in_threads(count: int) -> Iterator[None]:
    """Has torch use this many threads in its body."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
