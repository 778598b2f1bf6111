"""Runs a method on members: chooses how, cuts them into groups that fit, and hands them back as they finish."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.tree import Point, leaves, move, size
from ..data import Data, Stream, some
from ..pool.files import FileError
from ..problem import Problem
from .checkpoint import Checkpoints
from .group import Member, Observer, Run, Slot, Trained, finish_only, run_group, segment
from .interrupt import Interrupt
from .kernels import Captured, Eager, Kernel
from .memory import SHARE, free_bytes, is_out_of_memory, member_bytes, readable
from .method import Method, Schedule, name_of, plan_of
from .probe import STRATEGIES, Plan, Strategy, TooLarge, choose
from .progress import Progress
from .sweep import Apart, Together


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where and how members run. Everything has a default that fits, and is said in one line."""

    device: str | None = None  # "cpu", "cuda", "cuda:1"; default: the GPU where there is one
    dtype: torch.dtype | None = None  # of floating-point parameters and data; default: as the network is built
    autocast: torch.dtype | None = None  # compute matrix products in this dtype, torch.bfloat16 say; default: in dtype
    strategy: Strategy | None = None  # "stacked", "streams" (GPU) or "loop"; default: what a probe finds
    compile: bool | None = None  # compile the step; default: on a GPU yes, on a CPU where the run is long enough to pay
    memory: int | None = None  # bytes that members may take; default: four fifths of what is free
    checkpoint: float = 60.0  # seconds between checkpoints, which are written where fit is given a pool
    progress: bool | None = None  # show a progress bar; default: where the error stream is a terminal

    def __post_init__(self) -> None:
        if self.strategy not in (None, *STRATEGIES):
            raise ValueError(f"expected strategy 'stacked', 'streams', 'loop' or None, got {self.strategy!r}")
        if self.device is not None and torch.device(self.device).type == "cuda":
            count, index = torch.cuda.device_count(), torch.device(self.device).index or 0
            if index >= count:
                raise ValueError(
                    f"device {self.device!r} was asked for, and torch sees "
                    f"{f'{count} CUDA devices' if count else 'no CUDA device'} here: use device='cpu'"
                )

    @property
    def place(self) -> torch.device:
        """The device in use."""
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))

    def move(self, tree: Any) -> Any:
        """A tree of tensors in this engine's device and dtype."""
        return move(tree, self.place, self.dtype)

    def train(
        self,
        method: Method,
        problem: Problem,
        data: Data | Stream | None,
        val: Data | Stream | None,
        members: Sequence[Member],
        point: Callable[[int, int], Point],
        keys: Tensor,
        *,
        missing: Sequence[int] | None = None,
        observe: Observer | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> Generator[Trained, None, None]:
        """Yields the missing ones of `members` (by position; default all) as they finish.

        `point(position, attempt)` is where a member starts, `keys` (M, 2) are their noise. Raises Apart, before any
        step, where members whose recipes differ (`Together`) cannot or should not run side by side.
        """
        wanted = list(range(len(members))) if missing is None else list(missing)
        first = self.move(point(wanted[0], 0))
        keys = keys.to(self.place)
        dtype = leaves(first.params)[0].dtype
        data = None if data is None else data.to(self.place, dtype)
        val = None if val is None else val.to(self.place, dtype)
        schedule = plan_of(method, 0 if data is None else data.n)

        def slot(i: int) -> Slot:
            return Slot(members[i], lambda attempt: self.move(point(i, attempt)), keys[i], i)

        label = f"{name_of(method)} x {len(wanted)}"
        with Progress(label, schedule.steps * len(wanted), self.progress) as progress:
            saved = checkpoints or Checkpoints()
            interrupt = Interrupt(waits=saved.folder is not None)
            run = Run(method, problem, data, val, schedule, progress, observe, saved, interrupt)
            if schedule.steps == 0:
                yield from (finish_only(run, slot(i)) for i in wanted)
                return
            works = _Works(self, run, slot)
            try:
                works.plan(first, wanted)
            except (RuntimeError, TypeError, ValueError) as error:
                if isinstance(error, FileError) or not isinstance(method, Together):
                    raise
                raise Apart(str(error).strip().split("\n")[0]) from error
            with interrupt:
                yield from works.run(wanted)
            saved.clear()


class _Works:
    """Makes kernels and feeds them groups."""

    def __init__(self, engine: Engine, run: Run, slot: Callable[[int], Slot]) -> None:
        self.engine, self.run_, self.slot = engine, run, slot
        self.kernels: dict[tuple[Plan, int], Kernel] = {}

    def plan(self, point: Point, wanted: Sequence[int]) -> None:
        """Settles strategy, compiling and groups, as they were in a run that goes on, and says so."""
        engine, run = self.engine, self.run_
        assert run.data is not None
        each = member_bytes(run.method, run.problem, point, some(run.data), run.schedule)
        free = engine.memory if engine.memory is not None else int(SHARE * free_bytes(engine.place))
        if each > free:
            raise MemoryError(
                f"one member of {size(point.params):,} parameters needs about {readable(each)} to train, and "
                f"{readable(free)} may be used: take a smaller batch_size or network, or give Engine(memory=...)"
            )
        asked = {"device": engine.place.type, "autocast": str(engine.autocast), "memory": engine.memory}
        forced = {"strategy": engine.strategy, "compiled": engine.compile}
        if run.checkpoints.recall(asked | {name: x for name, x in forced.items() if x is not None}):
            settings = run.checkpoints.settings
            self.chosen = Plan(settings["strategy"], settings["compiled"], "as the run that goes on had it")
        else:
            groups = self._try(wanted, free // max(each, 1))
            if self.chosen.strategy == "loop":
                if isinstance(run.method, Together):
                    raise Apart(self.chosen.reason)
                groups = _cut(wanted, 1)
            how = {"strategy": self.chosen.strategy, "compiled": self.chosen.compiled}
            run.checkpoints.begin(asked | how, groups)
        most = max(len(group) for group in run.checkpoints.groups)
        run.progress.say(_describe(run, len(wanted), point, engine.place, self.chosen, most, each))

    def _try(self, wanted: Sequence[int], most: int) -> list[list[int]]:
        """Chooses how members run, by trying a group of at most so many; returns the groups."""
        engine, run = self.engine, self.run_
        groups = _cut(wanted, most)

        def attempt(plan: Plan, count: int) -> float:
            return self._measure(plan, groups[0])

        streamed = isinstance(run.data, Stream)  # of any batch size: neither captured, nor compiled unless asked
        if streamed and engine.strategy == "streams":
            raise ValueError("strategy 'streams' captures steps on data in memory: for streamed data leave it out")
        asked, steps, module = (engine.strategy, engine.compile), run.schedule.steps, run.problem.network.module
        asked = (engine.strategy, False) if streamed else asked
        try:
            self.chosen = choose(*asked, len(wanted), steps, engine.place, module, attempt)
            if streamed and engine.compile:
                self.chosen = self.chosen._replace(compiled=True)
            return groups
        except TooLarge:
            if len(groups[0]) == 1:
                raise
        return self._try(wanted, self._half(len(groups[0])))

    def run(self, wanted: Sequence[int]) -> Iterator[Trained]:
        """Trains group after group; one for which memory runs out, again in halves."""
        checkpoints = self.run_.checkpoints
        left = set(wanted)
        for i in checkpoints.failed:
            left.discard(i)
            yield Trained(i, None, {})
        queue = list(checkpoints.groups)
        while left:
            group = queue.pop(0) if queue else [min(left)]  # whose file was lost since
            if not left & set(group):
                continue
            try:
                slots = [self.slot(i) for i in group]
                for trained in run_group(self.run_, self._kernel(self.chosen, len(group)), slots):
                    left.discard(trained.position)
                    yield trained
                continue
            except RuntimeError as error:
                if len(group) == 1 or not is_out_of_memory(error):
                    raise
            halves = _cut([i for i in group if i in left], self._half(len(group)))
            checkpoints.regroup(group, halves)
            queue = halves + queue

    def _half(self, count: int) -> int:
        """Half as many members as were too many, after giving back the memory and saying so."""
        self.kernels.clear()
        if self.engine.place.type == "cuda":
            torch.cuda.empty_cache()
        half = -(-count // 2)
        self.run_.progress.say(f"out of memory with {count} members at once: going on with {half}")
        return half

    def _kernel(self, plan: Plan, count: int) -> Kernel:
        key = (plan._replace(reason=""), count)
        if key not in self.kernels:
            run = self.run_
            assert run.data is not None
            parts = (run.method, run.problem, run.data, run.schedule)
            captured = plan.compiled and self.engine.place.type == "cuda" and plan.strategy != "loop"
            captured = captured and not isinstance(run.data, Stream)
            if captured:
                longest = segment(run.schedule, run.data)
                streams = plan.strategy == "streams"
                made: Kernel = Captured(*parts, autocast=self.engine.autocast, streams=streams, longest=longest)
            else:
                stacked = plan.strategy == "stacked"
                made = Eager(*parts, autocast=self.engine.autocast, stacked=stacked, compiled=plan.compiled)
            self.kernels[key] = made
        return self.kernels[key]

    def _measure(self, plan: Plan, few: list[int]) -> float:
        """Seconds a step of all members takes in a plan; what was measured is forgotten, the kernel is kept."""
        group = few[:1] if plan.strategy == "loop" else few
        kernel = self._kernel(plan, len(group))
        slots = [self.slot(i) for i in group]
        keys = torch.stack([s.key() for s in slots])
        kernel.begin([s.member.k for s in slots], [s.point(0) for s in slots], keys)
        longest = segment(self.run_.schedule, self.run_.data)
        count = min(longest, 20 if plan.compiled else 2)
        nothing = torch.zeros(len(group), dtype=torch.float64, device=self.engine.place)
        kernel.advance([0] * len(group), 1, nothing)
        _wait(self.engine.place)
        began = time.perf_counter()
        kernel.advance([0] * len(group), count, nothing)
        _wait(self.engine.place)
        return (time.perf_counter() - began) / count * (len(few) / len(group))


def _cut(members: Sequence[int], most: int) -> list[list[int]]:
    """Members in groups of about equal size, `most` at most."""
    count = -(-len(members) // most)
    size = -(-len(members) // count)
    return [list(members[begin : begin + size]) for begin in range(0, len(members), size)]


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _describe(run: Run, members: int, point: Point, device: torch.device, plan: Plan, group: int, each: int) -> str:
    assert run.data is not None
    schedule: Schedule = run.schedule
    who = f"{members} member" + ("s" if members > 1 else "")
    dtype = str(leaves(point.params)[0].dtype).removeprefix("torch.")
    batch = run.data.n if schedule.batch_size is None else min(schedule.batch_size, run.data.n)
    many = f" in groups of {group}" if 1 < group < members else ""
    cost = f"{who} of {size(point.params):,} parameters (about {readable(each)} each) on {device.type} in {dtype}"
    work = f"{schedule.steps:,} steps of {batch} of {run.data.n:,} examples"
    if isinstance(run.data, Stream):
        work += ", in batches as the stream gives them (a batch_size does not apply)"
    return f"{name_of(run.method)}: {cost}, {plan.words()}{many}, {work}"
