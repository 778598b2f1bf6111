"""Plans how the members of a run are trained: strategy, compiling, groups that fit in memory, processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

import torch

from ..core.tree import Point, leaves, size
from ..data import Stream
from .executor import Here, in_threads
from .memory import SHARE, MemberBytes, free_bytes, member_bytes, readable
from .probe import Asked, Plan, TooLarge, choose
from .sweep import Apart, Together
from .workers import cores, how_to_start

if TYPE_CHECKING:
    from .engine import Engine

IDLE = 0.1  # where processes of one thread each would wait longer than this share, members had better share all threads
AGAIN = 3  # times that a pace is measured anew, of which the best counts: a first time is slower than those after it
CROWDED = 2.0  # where one thread is this many times as fast as all of them, other programs have the cores
WORTH = 5.0  # seconds of training below which that is not looked at
SHORT = {"fork": 2.0, "spawn": 60.0}  # seconds of training below which starting processes does not pay
FIXED = 4 * 2**30  # bytes that members may take where the plan must not depend on what is free
SETTLED = ("strategy", "compiled", "captured", "processes", "threads", "one_thread")  # what a run that goes on keeps


class NoRoom(MemoryError):
    """A member does not fit in the memory that may be used: found by planning, before anything was trained."""


class Planner:
    """Settles a plan and tells `here` of it."""

    def __init__(self, engine: Engine, here: Here, node_bytes: int | None = None) -> None:
        self.engine, self.here, self.run = engine, here, here.run
        self.node_bytes = node_bytes  # bytes that members may take on the largest node of a cluster
        self.seconds, self.measured = 0.0, 1  # that a step took when it was last measured, and of how many members

    def plan(self, point: Point, wanted: Sequence[int], say: bool = True) -> None:
        """Settles strategy, compiling and groups, as they were in a run that goes on, and says so."""
        engine, run, here, work = self.engine, self.run, self.here, self.run.work
        if work.schedule.steps == 0:
            here.chosen = self._spread(Plan("loop", False, "no steps"), len(wanted), sys.maxsize)
            return
        each = member_bytes(work, point)
        most = self._most(each, point)
        asked, forced = settings_of(engine, engine.place.type)
        if run.checkpoints.recall(asked | forced):
            self._as_before()
        else:
            groups = self._settle(wanted, max(1, most // max(each.total, 1)), each)
            settings = {name: getattr(here.chosen, name) for name in SETTLED}
            settings |= {} if engine.group is None else {"group": engine.group}
            run.checkpoints.begin(asked | settings | {"chunk": here.chunk, "bytes": each}, groups)
        if say:
            run.progress.say(self._described(len(wanted), point, each))

    def _most(self, each: MemberBytes, point: Point) -> int:
        """Bytes that members may take together. Where groups must not depend on what is free, one member may take more
        than these."""
        engine, node = self.engine, self.node_bytes
        free = node if node is not None else int(SHARE * free_bytes(engine.place))
        limit = free if engine.memory is None else engine.memory if node is None else min(engine.memory, node)
        if each.total > limit:
            more = "give Engine(memory=...)" if limit != node else "add a node with more memory to the cluster"
            raise NoRoom(
                f"one member of {size(point.params):,} parameters needs about {readable(each.total)} to train, and "
                f"{readable(limit)} may be used: use a smaller batch_size or network, or {more}"
            )
        return min(limit, FIXED) if engine.deterministic and engine.memory is None else limit

    @property
    def largest(self) -> int:
        """Members of the largest group that was planned."""
        return max(len(group) for group in self.run.checkpoints.groups)

    def estimate(self, wanted: Sequence[int]) -> float:
        """Seconds that all steps of all members would take as planned, by a few of which nothing is kept."""
        plan, few = self.here.chosen, list(wanted[: self.measured])
        before = [] if self.engine.deterministic else [self.seconds]
        tried = before + [self.here.measure(plan, few) for _ in range(AGAIN)]
        self.here.close()
        return min(tried) * self.run.work.schedule.steps * len(wanted) / self.measured / plan.processes

    def _as_before(self) -> None:
        """The plan of the run that goes on, as its checkpoint has it."""
        plan, self.here.chunk = plan_before(self.run.checkpoints.settings)
        if plan.threads:  # the bits of a member depend on the threads, not on the processes
            plan = plan._replace(processes=min(self.engine.processes or plan.processes, self.engine.most_processes))
        self.here.chosen = plan

    def _settle(self, wanted: Sequence[int], fits: int, each: MemberBytes) -> list[list[int]]:
        """Chooses the plan; returns the groups."""
        work, here, engine = self.run.work, self.here, self.engine
        groups = self._try(wanted, fits, each)
        here.chosen = self._uncrowded(self._spread(here.chosen, len(wanted), fits), groups[0])
        if here.chosen.strategy == "loop" and not work.method.coupled:
            if isinstance(work.method, Together):
                raise Apart(here.chosen.reason)
            return cut(wanted, 1)
        if (count := here.chosen.processes) > 1:
            most = fits // count if engine.place.type == "cpu" else fits  # processes on a CPU share its memory
            fair = len(wanted) if here.roster.blocks else -(-len(wanted) // count)
            return self._cut(wanted, min(len(groups[0]), fair, most))
        return groups

    def _try(self, wanted: Sequence[int], most: int, each: MemberBytes) -> list[list[int]]:
        """Chooses how members run, by trying a group of at most this many; returns the groups."""
        engine, here, work = self.engine, self.here, self.run.work
        groups = cut(wanted, len(wanted)) if work.method.coupled else self._cut(wanted, most)
        here.chunk = most if work.method.coupled and most < len(wanted) else None

        def attempt(plan: Plan) -> float:
            seconds, self.measured = here.measure(plan, groups[0]), len(groups[0])
            self.seconds = 0.0 if engine.deterministic else seconds  # of no length: what comes first is taken
            return self.seconds

        streamed = isinstance(work.data, Stream)  # of any batch size: neither recorded, nor compiled unless asked
        if streamed and engine.strategy == "streams":
            raise ValueError("strategy 'streams' captures steps on data in memory: for streamed data leave it out")
        asked = Asked(
            strategy=engine.strategy,
            compile=False if streamed else engine.compile,
            members=len(wanted),
            steps=work.schedule.steps,
            module=work.problem.network.module,
            coupled=work.method.coupled,
            batch_bytes=each.batch,
            capturable=here.capturable,
        )
        try:
            here.chosen = choose(asked, engine.place, attempt)
            if streamed and engine.compile:
                here.chosen = here.chosen._replace(compiled=True)
            return groups
        except TooLarge:
            at_once = here.chunk or len(groups[0])
            if at_once == 1:
                raise
        return self._try(wanted, here.half(at_once), each)

    def _cut(self, wanted: Sequence[int], most: int) -> list[list[int]]:
        """Members in groups of at most this many, none of which crosses a block."""
        blocks = self.here.roster.blocks
        within = [wanted] if blocks is None else [list(block) for _, block in groupby(wanted, blocks.__getitem__)]
        return [part for block in within for part in cut(block, most)]

    def _spread(self, plan: Plan, members: int, fits: int) -> Plan:
        """The plan in as many processes as were asked for, or as pay; each with its share of the cores."""
        engine, work = self.engine, self.run.work
        if isinstance(work.data, Stream) or work.method.coupled:  # a stream may have but one reader at a time
            if engine.processes is None or engine.processes == 1:
                return plan
            why = "members that see each other" if work.method.coupled else "members that read one stream"
            return plan._replace(reason=f"{plan.reason}; {why} share one process")
        count, most = engine.processes, min(members, engine.most_processes)
        if count is None:
            longer = SHORT[how_to_start(engine.place)]
            pays = self.seconds * work.schedule.steps * max(1.0, members / max(fits, 1)) > longer
            if engine.place.type == "cpu":
                most = min(most, cores())
                idle = 1 - members / (most * -(-members // most))  # of the processes, in the last round
                pays = pays and plan.strategy == "loop" and idle < IDLE
            count = most if pays else 1
        if engine.place.type == "cpu":
            most = min(most, max(1, fits))
        count = min(count, most)
        if count == 1:
            return plan
        return plan._replace(processes=count, threads=max(1, min(torch.get_num_threads(), cores() // count)))

    def _uncrowded(self, plan: Plan, group: list[int]) -> Plan:
        """The plan in one thread, where that is much faster: threads that wait for cores wait for each other."""
        threads, engine = torch.get_num_threads(), self.engine
        short = self.seconds * self.run.work.schedule.steps < WORTH
        if engine.place.type != "cpu" or engine.deterministic or plan.processes > 1 or threads == 1 or short:
            return plan
        every = min(self.here.measure(plan, group) for _ in range(AGAIN))
        with in_threads(1):
            one = min(self.here.measure(plan, group) for _ in range(AGAIN))
        if every < CROWDED * one:
            return plan
        reason = f"{plan.reason}; other programs use the cores: a step takes {1e3 * every:.3g} ms in {threads} threads"
        return plan._replace(one_thread=True, reason=f"{reason}, {1e3 * one:.3g} in one")

    def _described(self, members: int, point: Point, each: MemberBytes) -> str:
        work, plan, chunk, group = self.run.work, self.here.chosen, self.here.chunk, self.largest
        who = f"{members} member" + ("s" if members > 1 else "")
        dtype = str(leaves(point.params)[0].dtype).removeprefix("torch.")
        batch = work.data.n if work.schedule.batch_size is None else min(work.schedule.batch_size, work.data.n)
        many = f" in groups of {group}" if 1 < group < members else ""
        many = f", {chunk} at a time" if chunk is not None else many
        device = self.engine.place.type
        cost = f"{who} of {size(point.params):,} parameters (about {readable(each.total)} each) on {device} in {dtype}"
        steps = f"{work.schedule.steps:,} steps of {batch} of {work.data.n:,} examples"
        if isinstance(work.data, Stream):
            steps += ", in batches as the stream gives them (a batch_size does not apply)"
        return f"{work.method.label}: {cost}, {plan.words()}{many}, {steps}"


def settings_of(engine: Engine, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """What a plan is for, and what was asked for, which must be the same where a run goes on."""
    forced = {"strategy": engine.strategy, "compiled": engine.compile, "group": engine.group}
    asked = {"device": device, "autocast": str(engine.autocast), "memory": engine.memory}
    return asked, {name: x for name, x in forced.items() if x is not None}


def plan_before(settings: dict[str, Any]) -> tuple[Plan, int | None]:
    """The plan of the run that goes on, and how many coupled members are in memory at once, by its settings."""
    how = {name: settings[name] for name in SETTLED}
    return Plan(reason="as the run that goes on had it", **how), settings.get("chunk")


def cut(members: Sequence[int], most: int) -> list[list[int]]:
    """Members in groups of about equal size, `most` at most."""
    count = -(-len(members) // most)
    size = -(-len(members) // count)
    return [list(members[begin : begin + size]) for begin in range(0, len(members), size)]
