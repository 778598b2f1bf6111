"""Plans how the members of one run are trained here, and trains them: kernels, groups that fit, processes."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.tree import Point, leaves, size
from ..data import Stream, some
from .captured import Captured
from .coupled import Lift, Streams
from .group import Member, Run, Slot, Trained, finish_only, run_group, segment
from .kernels import Eager, Kernel
from .memory import SHARE, free_bytes, is_out_of_memory, member_bytes, readable
from .method import Schedule, name_of
from .probe import Plan, Strategy, TooLarge, choose
from .sweep import Apart, Together
from .workers import Crew, Job, cores, how_to_start

if TYPE_CHECKING:
    from .engine import Engine

IDLE = 0.1  # where processes of one thread each would wait longer than so, members had better share all threads
AGAIN = 3  # times that a pace is measured anew, of which the best counts: a first time is slower than those after it
SHORT = {"fork": 2.0, "spawn": 60.0}  # seconds of training below which starting processes does not pay


class Works:
    """Makes kernels and feeds them groups."""

    def __init__(
        self, engine: Engine, run: Run, members: Sequence[Member], keys: Tensor, point: Callable[[int, int], Point]
    ) -> None:
        self.engine, self.run_, self.members, self.keys, self.point = engine, run, members, keys, point
        self.kernels: dict[tuple[Strategy, bool, int], Kernel] = {}
        self.seconds = 0.0  # that a step of all members took when it was last measured
        self.chunk: int | None = None  # of coupled members, whose activations are in memory at once; None: all
        self.measured = 1  # how many members those were

    def slot(self, i: int) -> Slot:
        """The member at a position, before its first step."""
        return Slot(self.members[i], lambda attempt: self.engine.move(self.point(i, attempt)), self.keys[i], i)

    def plan(self, point: Point, wanted: Sequence[int], say: bool = True) -> None:
        """Settles strategy, compiling and groups, as they were in a run that goes on, and says so."""
        engine, run = self.engine, self.run_
        if run.schedule.steps == 0:
            self.chosen = self._spread(Plan("loop", False, "no steps"), len(wanted), sys.maxsize)
            return
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
            how = {name: settings[name] for name in ("strategy", "compiled", "processes", "threads")}
            self.chosen, self.chunk = Plan(reason="as the run that goes on had it", **how), settings.get("chunk")
            if self.chosen.threads:  # the bits of a member depend on the threads, not on the processes
                count = min(engine.processes or self.chosen.processes, engine.most_processes)
                self.chosen = self.chosen._replace(processes=count)
        else:
            fits = free // max(each, 1)
            groups = self._try(wanted, fits)
            self.chosen = self._spread(self.chosen, len(wanted), fits)
            if self.chosen.strategy == "loop" and not run.method.coupled:
                if isinstance(run.method, Together):
                    raise Apart(self.chosen.reason)
                groups = _cut(wanted, 1)
            elif (count := self.chosen.processes) > 1:
                most = fits // count if engine.place.type == "cpu" else fits  # processes on a CPU share its memory
                groups = _cut(wanted, min(len(groups[0]), -(-len(wanted) // count), most))
            names = ("strategy", "compiled", "processes", "threads")
            run.checkpoints.begin(
                asked | {name: getattr(self.chosen, name) for name in names} | {"chunk": self.chunk}, groups
            )
        if say:
            run.progress.say(
                _describe(run, len(wanted), point, engine.place, self.chosen, self.largest, self.chunk, each)
            )

    @property
    def largest(self) -> int:
        """Members of the largest group that was planned."""
        return max(len(group) for group in self.run_.checkpoints.groups)

    def foretell(self, wanted: Sequence[int]) -> float:
        """Seconds that all steps of all members would take as planned, by a few of which nothing is kept."""
        tried = [self.seconds, *(self._measure(self.chosen, list(wanted[: self.measured])) for _ in range(AGAIN))]
        for kernel in self.kernels.values():
            kernel.batches.close()
        return min(tried) * self.run_.schedule.steps * len(wanted) / self.measured / self.chosen.processes

    def _try(self, wanted: Sequence[int], most: int) -> list[list[int]]:
        """Chooses how members run, by trying a group of at most so many; returns the groups."""
        engine, run = self.engine, self.run_
        groups = _cut(wanted, len(wanted) if run.method.coupled else most)
        self.chunk = most if run.method.coupled and most < len(wanted) else None

        def attempt(plan: Plan, count: int) -> float:
            self.seconds, self.measured = self._measure(plan, groups[0]), len(groups[0])
            return self.seconds

        streamed = isinstance(run.data, Stream)  # of any batch size: neither captured, nor compiled unless asked
        if streamed and engine.strategy == "streams":
            raise ValueError("strategy 'streams' captures steps on data in memory: for streamed data leave it out")
        asked, steps, module = (engine.strategy, engine.compile), run.schedule.steps, run.problem.network.module
        asked = (engine.strategy, False) if streamed else asked
        try:
            self.chosen = choose(*asked, len(wanted), steps, engine.place, module, attempt, run.method.coupled)
            if streamed and engine.compile:
                self.chosen = self.chosen._replace(compiled=True)
            return groups
        except TooLarge:
            at_once = self.chunk or len(groups[0])
            if at_once == 1:
                raise
        return self._try(wanted, self._half(at_once))

    def _spread(self, plan: Plan, members: int, fits: int) -> Plan:
        """The plan in as many processes as were asked for, or as pay; each with its share of the cores."""
        engine = self.engine
        if isinstance(self.run_.data, Stream) or self.run_.method.coupled:  # a stream may have but one reader at a time
            if engine.processes is None or engine.processes == 1:
                return plan
            why = "members that see each other" if self.run_.method.coupled else "members that read one stream"
            return plan._replace(reason=f"{plan.reason}; {why} share one process")
        count, most = engine.processes, min(members, engine.most_processes)
        if count is None:
            longer = SHORT[how_to_start(engine.place)]
            pays = self.seconds * self.run_.schedule.steps * max(1.0, members / max(fits, 1)) > longer
            if engine.place.type == "cpu":
                most = min(most, cores())
                idle = 1 - members / (
                    most * -(-members // most)
                )  # share of the processes that the last round leaves idle
                pays = pays and plan.strategy == "loop" and idle < IDLE
            count = most if pays else 1
        if engine.place.type == "cpu":
            most = min(most, max(1, fits))
        count = min(count, most)
        if count == 1:
            return plan
        return plan._replace(processes=count, threads=max(1, min(torch.get_num_threads(), cores() // count)))

    def run(self, wanted: Sequence[int], job: Job) -> Iterator[Trained]:
        """Trains the groups here or in workers; one for which memory runs out, again in halves."""
        checkpoints = self.run_.checkpoints
        left = set(wanted)
        for i in checkpoints.failed:
            left.discard(i)
            yield Trained(i, None, {})

        def halves(group: list[int]) -> list[list[int]]:
            parts = _cut([i for i in group if i in left], self._half(len(group)))
            checkpoints.regroup(group, parts)
            return parts

        groups = [group for group in checkpoints.groups if left & set(group)]
        crew = Crew(self.run_, self.engine.place, self.members, self.point)
        try:
            train = self._enlist(crew, job, len(groups or left))
            while left:
                for trained in train(groups or [[i] for i in sorted(left)], halves):
                    left.discard(trained.position)
                    yield trained
                groups = []  # whose file was lost since is trained alone
        finally:
            crew.dismiss()

    def _enlist(self, crew: Crew, job: Job, groups: int) -> Callable[..., Iterator[Trained]]:
        """What trains groups: a crew where the plan is one of processes and these can be started, or this one."""
        plan = self.chosen
        if not plan.threads or groups == 0:
            return self._here
        self.kernels.clear()  # from the probe: workers have their own
        _empty_cache(self.engine.place)
        count = min(plan.processes, groups)
        if reason := crew.enlist(job, count, plan.threads):
            self.run_.progress.say(f"all members train in this process, since others cannot be started: {reason}")
            return self._here
        return crew.train

    def _here(self, groups: list[list[int]], halves: Callable[[list[int]], list[list[int]]]) -> Iterator[Trained]:
        """Trains group after group in this process."""
        queue = list(groups)
        while queue:
            group = queue.pop(0)
            try:
                yield from self.train(group)
                continue
            except RuntimeError as error:
                if not is_out_of_memory(error) or (self.chunk or len(group)) == 1:
                    raise
            if self.run_.method.coupled:
                self.chunk = self._half(self.chunk or len(group))
                queue.insert(0, group)  # from the last checkpoint, or the beginning
            else:
                queue = halves(group) + queue

    def train(self, group: list[int]) -> Iterator[Trained]:
        """Trains one group."""
        slots = [self.slot(i) for i in group]
        if self.run_.schedule.steps == 0:
            for slot in slots:
                self.run_.interrupt.check()
                yield finish_only(self.run_, slot)
            return
        try:
            yield from run_group(self.run_, self._kernel(self.chosen, len(group)), slots)
        except RuntimeError as error:
            if is_out_of_memory(error):
                self.kernels.clear()
            raise

    def _half(self, count: int) -> int:
        """Half as many members as were too many, after giving back the memory and saying so."""
        self.kernels.clear()
        _empty_cache(self.engine.place)
        half = -(-count // 2)
        self.run_.progress.say(f"out of memory with {count} members at once: going on with {half}")
        return half

    def _kernel(self, plan: Plan, count: int) -> Kernel:
        key = (plan.strategy, plan.compiled, count)
        if key not in self.kernels:
            run = self.run_
            assert run.data is not None
            parts = (run.method, run.problem, run.data, run.schedule)
            one_by_one = 1 if plan.strategy == "loop" else None
            at_once, recompute = self.chunk if self.chunk is not None else one_by_one, self.chunk is not None
            apart = plan.strategy == "streams" and run.method.coupled
            lift = (Streams if apart else Lift)(at_once, recompute=recompute)
            options = {"autocast": self.engine.autocast, "lift": lift}
            captured = plan.compiled and self.engine.place.type == "cuda" and plan.strategy != "loop"
            captured = captured and not isinstance(run.data, Stream)
            if captured:
                longest = segment(run.schedule, run.data)
                streams = plan.strategy == "streams"
                made: Kernel = Captured(*parts, **options, streams=streams, longest=longest)
            else:
                stacked = plan.strategy == "stacked" or run.method.coupled
                made = Eager(*parts, **options, stacked=stacked, compiled=plan.compiled)
            self.kernels[key] = made
        return self.kernels[key]

    def _measure(self, plan: Plan, few: list[int]) -> float:
        """Seconds a step of all members takes in a plan; what was measured is forgotten, the kernel is kept."""
        group = few[:1] if plan.strategy == "loop" and not self.run_.method.coupled else few
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


def _empty_cache(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _describe(
    run: Run,
    members: int,
    point: Point,
    device: torch.device,
    plan: Plan,
    group: int,
    chunk: int | None,
    each: int,
) -> str:
    assert run.data is not None
    schedule: Schedule = run.schedule
    who = f"{members} member" + ("s" if members > 1 else "")
    dtype = str(leaves(point.params)[0].dtype).removeprefix("torch.")
    batch = run.data.n if schedule.batch_size is None else min(schedule.batch_size, run.data.n)
    many = f" in groups of {group}" if 1 < group < members else ""
    many = f", {chunk} at a time" if chunk is not None else many
    cost = f"{who} of {size(point.params):,} parameters (about {readable(each)} each) on {device.type} in {dtype}"
    work = f"{schedule.steps:,} steps of {batch} of {run.data.n:,} examples"
    if isinstance(run.data, Stream):
        work += ", in batches as the stream gives them (a batch_size does not apply)"
    return f"{name_of(run.method)}: {cost}, {plan.words()}{many}, {work}"
