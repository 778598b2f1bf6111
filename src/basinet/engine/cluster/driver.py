"""Spreads groups of members over a Ray cluster, one task for each: a member does not depend on the number of nodes.

The driver has a node plan, submits a task for each group and hears of it through the stream of what the task yields. A
task that is lost with its worker or node is submitted again, and goes on from its checkpoint. Nodes that see the folder
of the pool write checkpoints and members there; from others they come through the driver, which writes them.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...core.tree import Point, move
from ...core.waiting import LOOK
from ...data import Stream
from ...pool.files import FileError
from ...pool.pool import Shelf
from ..checkpoint import group_name, versions
from ..executor import Halves, halved
from ..memory import MemberBytes
from ..planner import NoRoom, plan_before, settings_of
from ..probe import Plan
from ..work import Run, Trained
from ..worker_loop import WorkerError, WorkerLost, hear, raised, torch_settings
from .connection import connect
from .nodes import ANSWER, look_at_nodes
from .object_store import put
from .resources import Resources
from .running import History, Running, is_fault, is_starved, reason_of
from .task import Given, Task, dumps, loads, plan, train

if TYPE_CHECKING:
    from ..engine import Engine, Job

LOSSES = 3  # times that a task may be lost without having come further than before, until it is given up
SAVE = 30.0  # seconds in which tasks that are stopped save where they are
APPEAR = 60.0  # seconds after which a file that a node wrote is there for all

_live: list[Cluster] = []  # those with tasks that may be under way


class Cluster:
    """An executor on the Ray cluster that `Engine.executor` names."""

    def __init__(self, engine: Engine, run: Run, job: Job, shelf: Shelf | None) -> None:
        self.run, self.shelf, self.members, self.point = run, shelf, job.roster.members, job.roster.point
        self.ray = connect(str(engine.executor))
        self.has = Resources(self.ray, engine.device, run.work)
        self.engine, self.device = engine, self.has.device
        self.most = (
            1 if isinstance(job.work.data, Stream) else engine.processes
        )  # a stream has but one reader at a time
        roster = job.roster._replace(point=_given) if job.roster.given else job.roster
        self.job = job._replace(engine=replace(engine, processes=None, progress=False), roster=roster)
        self.data_reference: Any = None  # in the object store, and the rest of the job
        self.train = self.ray.remote(train)
        self.token = self._mark()
        self.through = False  # whether some node does not see the pool
        self.tasks: dict[Any, Running] = {}  # by the stream of each
        self.history: dict[str, History] = {}  # by group
        self.given_up: list[str] = []
        self.remedy = "Engine(group=...) sets how many train in one task"
        self.job_reference: Any = None
        self.each: MemberBytes | None = None  # that a member takes in training
        self.finish = 0  # bytes that it takes in the end
        self.chunk: int | None = None  # of coupled members, how many of them are computed at once
        _live.append(self)

    def plan(self, first: Point, wanted: Sequence[int]) -> Iterator[None]:
        """As the run that goes on had it, or as a node finds by rules, which do not depend on the cluster."""
        saved = self.run.checkpoints
        self.through = yield from look_at_nodes(self.ray, self.token, versions(), self.run.progress.say)
        self.data_reference, self.job_reference = put(self.ray, self.job, self.shelf)
        asked, forced = settings_of(self.engine, self.device)
        work = self.run.work
        given = (None if x is None else x.to(self.engine.place, self.job.dtype) for x in (work.data, work.val))
        demand = work.method.demand(first, work.problem, *given)
        self.finish = demand.finish + demand.kept
        if not work.schedule.steps:
            return
        lines = [f"{work.method.label}: as the run that goes on had it"]
        if not saved.recall(asked | forced):
            lines, settings, groups = yield from self._planned(wanted, first)
            saved.begin(settings, groups)
        self.chunk = saved.settings.get("chunk")
        self.each = MemberBytes(*saved.settings["bytes"]) if "bytes" in saved.settings else None
        for line in lines:
            self.run.progress.say(f"{line}; on {self.has.words()}")
        coupled = work.method.coupled
        if coupled and len(wanted) > 1:
            self.run.progress.say("members that see each other stay together: one task on one node trains all of them")
        elif isinstance(self.run.work.data, Stream):
            self.run.progress.say("members that read one stream train one group after another, each group on any node")

    def train_all(self, groups: list[list[int]], halves: Halves) -> Iterator[Trained | None]:
        """Submits groups, no more than keep the cluster busy, and yields their members."""
        left = deque(groups)
        try:
            while left or self.tasks:
                while left and len(self.tasks) < self._window():
                    self._submit(left.popleft())
                ready = self._ready()
                for stream in ready:
                    yield from self._heard(stream, left, halves)
                if not ready:
                    yield None
                self.run.interrupt.check()
        except (Exception, KeyboardInterrupt) as error:
            yield from self._stop(isinstance(error, KeyboardInterrupt))
            raise
        if self.given_up:
            raise WorkerLost(
                f"{'; '.join(self.given_up)}. All other members are trained{self._kept()}; the same fit trains what is "
                f"missing. {self.remedy}"
            )

    def half(self, count: int) -> int:
        return halved(self.run, count)

    def close(self) -> None:
        try:
            with contextlib.suppress(Exception):
                deque(self._stop(False), maxlen=0)  # where another run of this process was stopped
        finally:
            self.tasks, self.job_reference = {}, None
            _live.remove(self)

    def _mark(self) -> Path | None:
        """A file by which nodes tell that they see the folder of the run."""
        if self.run.checkpoints.folder is None:
            return None
        name = f"shared-{self.run.checkpoints.run}-"
        token = self.run.checkpoints.folder.absolute() / f"{name}{secrets.token_hex(8)}"
        token.parent.mkdir(parents=True, exist_ok=True)
        for mark in token.parent.glob(f"{name}*"):  # of a driver that was killed
            mark.unlink(missing_ok=True)
        token.touch()
        return token

    def _planned(self, wanted: Sequence[int], first: Point) -> Generator[None, None, tuple[Any, ...]]:
        """What a node plans; where that fails for want of something, another."""
        points = dict.fromkeys(wanted, first) if self.job.roster.given else None
        arguments = (self._task(), dumps(Given(list(wanted), points, None)), self.has.bytes_for_members())
        avoid: set[str] = set()
        for attempt in range(LOSSES + 1):
            options = self.has.options(avoid, self.has.takes()) | {"max_retries": LOSSES}
            kind, *answer = yield from self._get(self.ray.remote(plan).options(**options).remote(*arguments))
            if kind == "planned":
                return tuple(answer)
            error, text, node = answer
            if attempt == LOSSES or isinstance(error, NoRoom) or not is_fault(error):
                raise raised(error, text, "on a Ray node")
            avoid.add(node)
        raise AssertionError("the last attempt returns or raises")

    def _get(self, ref: Any) -> Generator[None, None, Any]:
        """What a task returns."""
        warned, began = False, time.monotonic()
        while not self.ray.wait([ref], timeout=0)[0]:
            yield None
            self.run.interrupt.check()
            if not warned and time.monotonic() - began > ANSWER:
                warned = True
                self.run.progress.say(f"waiting for a free place on {self.has.words()}")
        return loads(self.ray.get(ref))

    def _takes(self, group: list[int]) -> int:
        """Bytes of a node's memory that the task of a group asks for."""
        return self.has.takes(self.each, len(group), self.chunk or len(group), self.finish)

    def _window(self) -> int:
        """Tasks that are submitted at once: twice as many as run, so that none waits for the driver."""
        if self.has.old():
            self.has.look()
            self._withdraw()
        return self.most or 2 * max(1, self.has.places())

    def _withdraw(self) -> None:
        """Takes back tasks that wait for a node as large as one that is lost."""
        for stream, task in self.tasks.items():
            if not task.node and not task.withdrawn and task.memory > self._takes(task.group):
                task.withdrawn = True
                self.ray.cancel(stream)

    def _task(self) -> Task:
        saved = self.run.checkpoints
        chosen = plan_before(saved.settings)[0] if saved.settings else Plan("loop", False, "no steps")
        where = (self.token, *saved.place()[1:])
        return Task(
            versions(),
            torch_settings(),
            [self.data_reference, self.job_reference],
            self.device,
            chosen,
            self.chunk,
            *where,
        )

    def _submit(self, group: list[int]) -> None:
        name = group_name(group)
        points = {i: self.point(i, 0) for i in group} if self.job.roster.given else None
        content = self.run.checkpoints.content(name) if self.through else None
        history, memory = self.history.setdefault(name, History()), self._takes(group)
        options = self.has.options(history.avoid, memory) | {"num_returns": "streaming", "max_retries": 0}
        message = dumps(Given(group, points, content))
        stream = self.train.options(**options).remote(self._task(), message)
        self.tasks[stream] = Running(group, history, memory)

    def _heard(self, stream: Any, left: deque[list[int]], halves: Halves, stopping: bool = False) -> Iterator[Trained]:
        """Does what the next messages of a task say."""
        task, errors = self.tasks[stream], self.ray.exceptions
        try:
            messages = loads(self.ray.get(next(stream)))
        except errors.TaskCancelledError:
            del self.tasks[stream]
            if task.withdrawn and not stopping:
                left.append(task.group)
            return
        except errors.RayTaskError as error:
            del self.tasks[stream]
            if not is_fault(error.cause):
                raise WorkerError(f"on a Ray node:\n{error}") from error
            if not stopping:
                self._lost(task, error.cause, left, halves)
            return
        except (StopIteration, errors.RayError) as error:
            del self.tasks[stream]
            if not stopping:
                self._lost(task, error, left, halves)
            return
        for kind, *body in messages:
            if kind == "trained":
                yield self._arrived(body[0])
            elif kind == "checkpoint":
                self.run.checkpoints.accept(*body)
            elif kind == "at":
                task.node = body[0]
            elif kind == "advance":
                self.run.progress.advance(task.further(body[0]), body[1])
            elif kind in ("done", "stopped", "large", "error"):
                del self.tasks[stream]
                if kind == "done" and self.through:
                    self.run.checkpoints.remove(group_name(task.group))
                if kind == "large" and not stopping:
                    if self.run.work.method.coupled:
                        raise MemoryError("members that see each other do not fit in memory: use fewer, or a GPU")
                    left.extendleft(reversed(halves(task.group)))
                if kind == "error" and not stopping:
                    if not is_fault(body[0]):
                        raise raised(body[0], body[1], "on a Ray node")
                    self._lost(task, body[0], left, halves)
            else:
                hear(self.run, kind, body, stopping)

    def _ready(self) -> list[Any]:
        """The streams that have something to say."""
        streams = list(self.tasks)
        return self.ray.wait(streams, num_returns=len(streams), timeout=0, fetch_local=False)[0]

    def _arrived(self, trained: Trained | int) -> Trained:
        """A member that came here, or that a node put on the shelf."""
        if not isinstance(trained, int):
            family = trained.family
            return trained if family is None else trained._replace(family=move(family, torch.device("cpu")))
        assert self.shelf is not None
        until = time.monotonic() + APPEAR  # network file systems take a while to show new files
        while True:
            try:
                return Trained(trained, *self.shelf.read(trained))
            except FileError:
                if self.shelf.has(trained) or time.monotonic() > until:
                    raise
            time.sleep(LOOK)

    def _lost(self, task: Running, error: BaseException, left: deque[list[int]], halves: Halves) -> None:
        """Submits the group of a task that ended with its worker or node again, unless that has happened too often.
        One that ran out of memory twice trains with fewer members at once: at first, it may have been a neighbour."""
        names = ", ".join(str(self.members[i].k) for i in task.group)
        who, reason = f"{self.run.work.method.label}, members {names}", reason_of(error)
        if not task.node:  # it ended before it could report where it ran: Ray's error may name the node
            task.node = next((n["NodeID"] for n in self.ray.nodes() if n["NodeID"] in str(error)), "")
        task.history.starved += is_starved(error)
        if is_starved(error) and task.history.starved > 1 and self._fewer(task.group, left, halves):
            return
        if (count := task.lost()) <= LOSSES:
            where = (
                "from the beginning"
                if self.run.checkpoints.folder is None
                else "from their last checkpoint, if they have one"
            )
            self.run.progress.say(f"{who}: {reason}; they are submitted again, {where}")
            left.append(task.group)
            return
        line = f"{who} were given up after {count} tasks that made no progress: {reason}"
        self.run.progress.warn(line)
        self.given_up.append(line)
        if is_starved(error):
            self.remedy = "Use a smaller batch_size or network, or nodes with more memory"

    def _fewer(self, group: list[int], left: deque[list[int]], halves: Halves) -> bool:
        """Has fewer of a group's members in memory at once, as one machine does; whether that can be."""
        coupled = self.run.work.method.coupled
        at_once = self.chunk if coupled and self.chunk else len(group)
        if at_once == 1:
            return False
        if coupled:
            self.chunk = self.half(at_once)
            left.append(group)
        else:
            left.extend(halves(group))
        return True

    def _stop(self, asked: bool) -> Iterator[Trained]:
        """Has tasks save where they are, and says how to go on; yields members that end meanwhile. After Ctrl-C, those
        of all runs of this process save at the same time."""
        for cluster in list(_live) if self.run.interrupt.asked else [self]:
            cluster._ask_to_save()
        until = time.monotonic() + SAVE
        while self.tasks and time.monotonic() < until:
            time.sleep(LOOK)
            for stream in self._ready():
                with contextlib.suppress(WorkerError):
                    yield from self._heard(stream, deque(), lambda group: [], stopping=True)
        if asked and self.run.checkpoints.folder is not None:
            self.run.progress.say("stopped: the same fit with the same pool goes on from there")

    def _ask_to_save(self) -> None:
        """Tasks that see the pool see that the mark is gone; others are cancelled, and have their last checkpoint."""
        saves = self.token is not None and not self.through
        if self.token is not None:
            self.token.unlink(missing_ok=True)
        for stream, task in self.tasks.items():
            if not (saves and task.done):
                self.ray.cancel(stream)

    def _kept(self) -> str:
        return "" if self.run.checkpoints.folder is None else " and in the pool"


def _given(position: int, attempt: int) -> Point:
    """Where a member starts comes with its group."""
    raise RuntimeError(f"member {position} starts where the driver says")
