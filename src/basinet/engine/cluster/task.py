"""What runs on the nodes of a Ray cluster: a look at the node, a plan, and the training of a group."""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import platform
import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...core.allocator import freed_memory_kept
from ...core.tree import Point, leaves
from ...pool.pool import Shelf
from ..checkpoint import Checkpoints, flattened, unflattened, versions
from ..executor import Here
from ..planner import Planner
from ..probe import Plan
from ..transport import plain
from ..worker_loop import Line, WorkerError, error_parts, outcome, set_torch

PAUSE = 0.5  # seconds for which messages are gathered
SAVE = 30.0  # seconds in which a task that is stopped saves where it is


class _Kept(NamedTuple):
    """What a process keeps for the next task of the same job."""

    here: Here
    shelf: Shelf | None
    observed: bool


_kept: dict[str, _Kept] = {}  # of the last job, by its place in the object store
_data: dict[str, Any] = {}  # of the last job, training and validation


class Task(NamedTuple):
    """What a task is about; the job is fetched by reference."""

    versions: dict[str, str]
    settings: tuple[Any, ...]  # of torch
    references: list[Any]  # to data and job, in a list, so that they are fetched here
    device: str
    plan: Plan
    chunk: int | None
    token: Path | None  # which a node sees that sees the pool
    interval: float
    run: str


class Given(NamedTuple):
    """What one group is given."""

    group: list[int]
    points: dict[int, Point] | None  # where members start, where that does not follow from their keys
    checkpoint: tuple[dict[str, Tensor], dict[str, Any]] | None  # where nodes may not see the pool


class Seen(NamedTuple):
    """What a node is."""

    name: str
    versions: dict[str, str]
    sees: bool  # the folder of the pool

    def refuse_unless(self, expected: dict[str, str]) -> None:
        """Raises by the node's name where its versions are others: it would train other members."""
        other = [
            f"{n} {self.versions.get(n)} (the driver {v})" for n, v in expected.items() if self.versions.get(n) != v
        ]
        if other:
            raise WorkerError(
                f"the Ray node {self.name} has {' and '.join(other)}: install the same versions on all nodes, or take "
                "it out of the cluster"
            )


def look(token: Path | None) -> tuple[Any, ...]:
    """What this node is."""
    return tuple(Seen(_name(), versions(), token is None or token.exists()))


def plan(task: Task, message: bytes, most: int | None) -> bytes:
    """How members are to run: lines to say, settings, groups. Members of a task may take `most` bytes; where that is
    None, of a GPU, what is free on this one."""
    try:
        lines: list[str] = []
        line = Line(lambda message: lines.append(message[1]) if message[0] == "say" else None)
        wanted, points, _ = loads(message)
        here = _kept_here(task, line, points, Checkpoints()).here
        point = here.engine.move(here.roster.point(wanted[0], 0))
        planner = Planner(here.engine, here, most)
        with freed_memory_kept():
            planner.plan(point, wanted)
        saved = here.run.checkpoints
        return dumps(("planned", lines, saved.settings, saved.groups))
    except Exception as error:
        return dumps(("error", *error_parts(error), _node()))


def train(task: Task, message: bytes) -> Iterator[bytes]:
    """Trains a group in another thread, and yields what there is to say about twice a second."""
    box: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
    line = Line(box.put)
    thread = threading.Thread(target=_train, args=(task, message, line), daemon=True)
    thread.start()
    token = task.token if task.token is not None and task.token.exists() else None
    try:
        ended = False
        yield dumps([("at", _node())])
        while not ended:
            messages = _gathered(box)
            line.interrupt.asked = token is not None and not token.exists()  # the driver takes it away to have all stop
            ended = any(message[0] in ("done", "stopped", "large", "error") for message in messages)
            if messages:
                yield dumps(messages)
    finally:  # where the task is cancelled, members save where they are
        line.interrupt.asked, until = True, time.monotonic() + SAVE
        while thread.is_alive() and time.monotonic() < until:
            with contextlib.suppress(BaseException):  # Ray may interrupt more than once
                thread.join(PAUSE)


def dumps(value: Any) -> bytes:
    """With definitions of `__main__`, lambdas and tensors as plain bytes."""
    from ray.cloudpickle import CloudPickler

    class Pickler(CloudPickler):
        def reducer_override(self, value: Any) -> Any:
            if type(value) is Tensor and value.layout is torch.strided:
                return plain(value)
            return super().reducer_override(value)

    file = io.BytesIO()
    Pickler(file, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def loads(content: bytes) -> Any:
    """What came from another process of this cluster: nothing that lies on a disk is read this way."""
    return pickle.loads(content)


def _gathered(box: queue.SimpleQueue[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    messages, until = [], time.monotonic() + PAUSE
    while (wait := until - time.monotonic()) > 0:
        try:
            messages.append(box.get(timeout=wait))
        except queue.Empty:
            break
        if messages[-1][0] in ("done", "stopped", "large", "error"):
            break
    return messages


def _train(task: Task, message: bytes, line: Line) -> None:
    try:
        given: Given = loads(message)
        here, shelf, _ = _kept_here(task, line, given.points, _checkpoints(task, line, given.checkpoint))
        here.chosen, here.chunk = task.plan, task.chunk
        shared = task.token is not None and task.token.exists()

        def members(group: list[int]) -> Iterator[Any]:
            coupled = here.run.work.method.coupled
            for trained in here.train_all([group], lambda group: []) if coupled else here.train(group):
                if shared and shelf is not None and trained.family is not None:
                    shelf.write(trained.position, trained.family, trained.curves)
                    yield trained.position
                else:
                    yield trained

        with freed_memory_kept():
            line.send(*outcome(line, members, given.group))
    except BaseException as error:
        line.send("error", *error_parts(error))


def _kept_here(task: Task, line: Line, points: dict[int, Point] | None, saved: Checkpoints) -> _Kept:
    """What trains groups on this node: that of the last task, where it was of the same job."""
    import ray

    Seen(_name(), versions(), True).refuse_unless(task.versions)
    torch.set_num_threads(1)
    set_torch(*task.settings)
    about, key = (reference.hex() for reference in task.references)
    if about not in _data:
        _data.clear()
        _data[about] = loads(ray.get(task.references[0]))
    if key not in _kept:
        _kept.clear()
        job, shelf = loads(ray.get(task.references[1]))
        job = job._replace(work=job.work._replace(data=_data[about][0], val=_data[about][1]))
        engine = replace(job.engine, executor=None, device=task.device)
        here = job.here(engine, line.progress, None, saved, line.interrupt, job.roster.point)
        _kept[key] = _Kept(here, shelf, job.observed)
    here, _, observed = _kept[key]
    observe = line.observe if observed else None
    here.run = here.run._replace(progress=line.progress, observe=observe, checkpoints=saved, interrupt=line.interrupt)
    if points is not None:
        here.roster = here.roster._replace(point=lambda i, attempt: points[i])
    return _kept[key]


def _checkpoints(task: Task, line: Line, content: Any) -> Checkpoints:
    if task.token is None:
        return Checkpoints()
    if task.token.exists():
        return line.checkpoints(task.token.parent, task.interval, task.run)
    return _Posted(line, task.interval, task.run, content)


class _Posted(Checkpoints):
    """Checkpoints that go to the driver, where the folder is."""

    def __init__(self, line: Line, interval: float, run: str, content: Any) -> None:
        super().__init__(None, interval, run)
        self.line, self.before = line, content

    @property
    def kept(self) -> bool:
        return True

    def write(self, name: str, trees: dict[str, Any], meta: dict[str, Any]) -> None:
        tensors = {n: x.detach().cpu().clone() for n, x in flattened(trees).items()}
        self.line.send("checkpoint", name, tensors, json.loads(json.dumps(meta)))  # as it is now: it is sent later
        self.last = time.monotonic()

    def read(self, name: str, shape: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        if self.before is None or "file" in (self.before[1]["bank"] or {}):  # samples in a file that is not here
            return None
        device = leaves(shape["state"])[0].device
        return unflattened({n: x.to(device) for n, x in self.before[0].items()}, shape), self.before[1]

    def fail(self, position: int) -> None:
        self.line.send("fail", position)


def _name() -> str:
    import ray

    return f"{platform.node()} ({ray.util.get_node_ip_address()})"


def _node() -> str:
    """The number of this node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())
