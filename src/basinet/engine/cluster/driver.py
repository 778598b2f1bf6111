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
from collections.abc import Generator, Iterator, Sequence, Set
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
from ..planner import plan_before, settings_of
from ..probe import Plan
from ..work import Run, Trained
from ..worker_loop import WorkerError, WorkerLost, hear, raised, torch_settings
from .connection import connect
from .nodes import ANSWER, elsewhere, look_at_nodes
from .running import History, Running, is_fault, reason_of
from .task import Given, Task, dumps, loads, plan, train

if TYPE_CHECKING:
    from ..engine import Engine, Job

LOSSES = 3  # times that a task may be lost without having come further than before, until it is given up
SAVE = 30.0  # seconds in which tasks that are stopped save where they are
APPEAR = 60.0  # seconds after which a file that a node wrote is there for all
ASK = 2.0  # seconds between looks at what the cluster has


_sent: dict[Any, Any] = {}  # where the data of the last fit are in the object store, by their fingerprints
_live: list[Cluster] = []  # those with tasks that may be under way


class Cluster:
    """An executor on the Ray cluster that `Engine.executor` names."""

    def __init__(self, engine: Engine, run: Run, job: Job, shelf: Shelf | None) -> None:
        self.run, self.shelf, self.members, self.point = run, shelf, job.roster.members, job.roster.point
        self.ray = connect(str(engine.executor))
        self.total = self.ray.cluster_resources()
        self.engine, self.device = engine, self._device(engine.device)
        self.most = (
            1 if isinstance(job.work.data, Stream) else engine.processes
        )  # a stream has but one reader at a time
        roster = job.roster._replace(point=_given) if job.roster.given else job.roster
        self.job = job._replace(engine=replace(engine, processes=None, progress=False), roster=roster)
        self.data: Any = None  # in the object store, and the rest of the job
        self.train = self.ray.remote(train)
        self.token = self._mark()
        self.through = False  # whether some node does not see the pool
        self.tasks: dict[Any, Running] = {}  # by the stream of each
        self.history: dict[str, History] = {}  # by group
        self.given_up: list[str] = []
        self.parcel: Any = None
        self.share = 1.0  # of a GPU, for each task
        self.looked = 0.0  # when the resources of the cluster were last asked for
        _live.append(self)

    def plan(self, first: Point, wanted: Sequence[int]) -> Iterator[None]:
        """As the run that goes on had it, or as a node finds by rules, which do not depend on the cluster."""
        saved = self.run.checkpoints
        self.through = yield from look_at_nodes(self.ray, self.token, versions(), self.run.progress.say)
        self.data, self.parcel = self._put()
        asked, forced = settings_of(self.engine, self.device)
        if not self.run.work.schedule.steps:
            return
        if saved.recall(asked | forced):
            self.run.progress.say(f"{self.run.work.method.label}: as the run that goes on had it, on {self._words()}")
        else:
            lines, settings, groups, self.share = yield from self._planned(wanted, first)
            for line in lines:
                self.run.progress.say(f"{line}; on {self._words()}")
            saved.begin(settings, groups)
        coupled = self.run.work.method.coupled
        if coupled and len(wanted) > 1:
            self.run.progress.say("members that see each other stay together: one task on one node trains all of them")
        elif isinstance(self.run.work.data, Stream):
            self.run.progress.say("members that read one stream train one group after another, each on some node")

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
                "missing. Engine(group=...) sets how many train in one task"
            )

    def half(self, count: int) -> int:
        return halved(self.run, count)

    def close(self) -> None:
        try:
            with contextlib.suppress(Exception):
                deque(self._stop(False), maxlen=0)  # where another run of this process was stopped
        finally:
            self.tasks, self.parcel = {}, None
            _live.remove(self)

    def _device(self, asked: str | None) -> str:
        gpus = self.total.get("GPU", 0)
        if asked == "cuda" and not gpus:
            raise ValueError(
                f"device 'cuda' was asked for, and the Ray cluster has no GPU ({self._words()}): add a node with one, "
                "or use device='cpu'"
            )
        return asked or ("cuda" if gpus else "cpu")

    def _words(self) -> str:
        nodes = sum(node["Alive"] for node in self.ray.nodes())
        gpus = f", {self.total['GPU']:g} GPUs" if self.total.get("GPU") else ""
        share = f", {self.share:.2g} of a GPU for each group" if gpus and self.share < 1 else ""
        return f"{nodes} Ray node{'s' * (nodes != 1)} with {self.total.get('CPU', 0):g} CPUs{gpus}{share}"

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

    def _put(self) -> tuple[Any, Any]:
        """Data and job in the object store, from where each node fetches them: the data once for all fits on them."""
        work = self.job.work
        given, job = (work.data, work.val), self.job._replace(work=work._replace(data=None, val=None))
        context = self.ray.get_runtime_context()
        key = (context.gcs_address, context.get_job_id(), *(None if x is None else x.fingerprint() for x in given))
        try:
            if key not in _sent:
                content = dumps(given)
                _sent.clear()
                _sent[key] = self.ray.put(content)
            content = dumps((job, self.shelf))
            return _sent[key], self.ray.put(content)
        except (self.ray.exceptions.ObjectStoreFullError, self.ray.exceptions.OutOfDiskError) as error:
            raise MemoryError(
                f"the data take {len(content) / 2**20:,.0f} MiB, which do not fit in Ray's object store: start Ray "
                "with a larger one (ray start --object-store-memory=BYTES)"
            ) from error
        except Exception as error:  # whatever an object raises that cannot be pickled
            raise TypeError(
                f"Ray cannot send this network or data to other machines ({type(error).__name__}: "
                f"{str(error).strip().splitlines()[0][:160]}): define the network as a function or class without open "
                "files, locks, generators or modules inside it, and load what it needs when it is called"
            ) from error

    def _planned(self, wanted: Sequence[int], first: Point) -> Generator[None, None, tuple[Any, ...]]:
        """What a node plans; where that fails for want of something, another."""
        points = dict.fromkeys(wanted, first) if self.job.roster.given else None
        arguments = (self._task(), dumps(Given(list(wanted), points, None)))
        avoid: set[str] = set()
        for attempt in range(LOSSES + 1):
            options = self._needs(avoid) | {"max_retries": LOSSES}
            kind, *answer = yield from self._get(self.ray.remote(plan).options(**options).remote(*arguments))
            if kind == "planned":
                return tuple(answer)
            error, text, node = answer
            if attempt == LOSSES or not is_fault(error):
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
                self.run.progress.say(f"waiting for a free place on {self._words()}")
        return loads(self.ray.get(ref))

    def _needs(self, avoid: Set[str]) -> dict[str, Any]:
        """What a task takes of a node, and of which nodes rather not."""
        where = {"scheduling_strategy": elsewhere(self.ray, avoid, self.device)}
        if self.device == "cpu":
            return {"num_cpus": 1} | where
        cpus = self.total.get("CPU", 0) * self.share / self.total.get("GPU", 1)
        return {"num_gpus": self.share, "num_cpus": min(1, int(cpus))} | where

    def _window(self) -> int:
        """Tasks that are submitted at once: twice as many as run, so that none waits for the driver."""
        if time.monotonic() - self.looked > ASK:
            self.total, self.looked = self.ray.cluster_resources(), time.monotonic()
        places = self.total.get("CPU", 0) if self.device == "cpu" else self.total.get("GPU", 0) / self.share
        return self.most or 2 * max(1, int(places))

    def _task(self) -> Task:
        saved = self.run.checkpoints
        chosen, chunk = plan_before(saved.settings) if saved.settings else (Plan("loop", False, "no steps"), None)
        where = (self.token, *saved.place()[1:])
        return Task(versions(), torch_settings(), [self.data, self.parcel], self.device, chosen, chunk, *where)

    def _submit(self, group: list[int]) -> None:
        name = group_name(group)
        points = {i: self.point(i, 0) for i in group} if self.job.roster.given else None
        content = self.run.checkpoints.content(name) if self.through else None
        history = self.history.setdefault(name, History())
        options = self._needs(history.avoid) | {"num_returns": "streaming", "max_retries": 0}
        parcel = dumps(Given(group, points, content))
        stream = self.train.options(**options).remote(self._task(), parcel)
        self.tasks[stream] = Running(group, history)

    def _heard(self, stream: Any, left: deque[list[int]], halves: Halves, stopping: bool = False) -> Iterator[Trained]:
        """Does what the next messages of a task say."""
        task, errors = self.tasks[stream], self.ray.exceptions
        try:
            messages = loads(self.ray.get(next(stream)))
        except errors.TaskCancelledError:
            del self.tasks[stream]
            return
        except errors.RayTaskError as error:
            del self.tasks[stream]
            if not is_fault(error.cause):
                raise WorkerError(f"on a Ray node:\n{error}") from error
            if not stopping:
                self._lost(task, error.cause, left)
            return
        except (StopIteration, errors.RayError) as error:
            del self.tasks[stream]
            if not stopping:
                self._lost(task, error, left)
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
                        raise MemoryError("members that see each other do not fit in memory: take fewer, or a GPU")
                    left.extendleft(reversed(halves(task.group)))
                if kind == "error" and not stopping:
                    if not is_fault(body[0]):
                        raise raised(body[0], body[1], "on a Ray node")
                    self._lost(task, body[0], left)
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

    def _lost(self, task: Running, error: BaseException, left: deque[list[int]]) -> None:
        """Submits the group of a task that ended with its worker or node again, unless that has happened too often."""
        names = ", ".join(str(self.members[i].k) for i in task.group)
        who, reason = f"{self.run.work.method.label}, members {names}", reason_of(error)
        if not task.node:  # it ended before it could report where it ran: Ray's error may name the node
            task.node = next((n["NodeID"] for n in self.ray.nodes() if n["NodeID"] in str(error)), "")
        if (count := task.lost()) <= LOSSES:
            self.run.progress.say(f"{who}: {reason}; they are submitted again, from their last checkpoint")
            left.append(task.group)
            return
        line = f"{who} were given up after {count} tasks that did not come further: {reason}"
        self.run.progress.warn(line)
        self.given_up.append(line)

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
