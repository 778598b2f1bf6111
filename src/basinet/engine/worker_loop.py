"""The life of a worker: its line to the parent, and what it does with the groups that come through it."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from ..core.allocator import freed_memory_kept
from ..core.lift import is_out_of_memory
from ..core.tree import Point
from .checkpoint import Checkpoints
from .interrupt import Interrupt
from .progress import Progress
from .transport import dumps, loads
from .work import Event, Run, Trained

STOP, END_OF_WORK = b"stop", b"end"  # what a worker is told beside pickled groups and points

Train = Callable[[list[int]], Iterator[Trained]]
Job = Callable[["Line", int], Train]
"""A job, called in worker number i with its line to the parent: gives the function that trains a group there."""


class WorkerError(RuntimeError):
    """What went wrong in a worker; the traceback of what was raised in one."""


class WorkerLost(WorkerError, ChildProcessError):
    """A worker ended before its members did: the message says how, and what to do."""


class Line:
    """A worker's end of the line to the parent, with what a run needs to report to somebody who is elsewhere."""

    def __init__(self, post: Callable[[tuple[Any, ...]], None]) -> None:
        self.post = post
        self.interrupt = Interrupt()
        self.progress = _SentProgress(self)
        self.inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def send(self, kind: str, *body: Any) -> None:
        """Sends the parent a message; the thread that trains alone does so."""
        self.post((kind, *body))

    def receive(self) -> Any:
        """What the parent sends next; only the thread that trains may build tensors."""
        return loads(self.inbox.get())

    def observe(self, event: Event) -> None:
        """An observer that the parent calls."""
        self.send("event", event)

    def point(self, position: int, attempt: int) -> Point:
        """Where a member starts, which the parent knows."""
        self.send("point", position, attempt)
        return self.receive()

    def checkpoints(self, folder: Path | None, interval: float, run: str) -> Checkpoints:
        """Checkpoints that write the files of groups, and leave the plan to the parent."""
        return _SentCheckpoints(self, folder, interval, run)

    def listen(self, pipe: Connection) -> None:
        """Takes what the parent sends until it says that this is the end, or ends itself."""
        while (content := pipe.recv_bytes()) != END_OF_WORK:
            if content == STOP:
                self.interrupt.asked = True
            else:
                self.inbox.put(content)


class _SentProgress(Progress):
    """Progress that the parent shows."""

    def __init__(self, line: Line) -> None:
        super().__init__("", 0, False)
        self.line = line

    def say(self, line: str) -> None:
        self.line.send("say", line)

    def warn(self, line: str) -> None:
        self.line.send("warn", line)

    def about(self, method: str, member: str, line: str, warns: bool = False) -> None:
        self.line.send("about", method, member, line, warns)

    def advance(self, steps: int, text: str) -> None:
        self.line.send("advance", steps, text)


class _SentCheckpoints(Checkpoints):
    """Checkpoints of which the parent keeps the plan."""

    def __init__(self, line: Line, folder: Path | None, interval: float, run: str) -> None:
        super().__init__(folder, interval, run)
        self.line = line

    def fail(self, position: int) -> None:
        self.line.send("fail", position)


def hear(run: Run, kind: str, body: Sequence[Any], stopping: bool = False) -> None:
    """In the parent: does what a message of a worker says, of progress, events and members that failed."""
    if kind == "advance":
        run.progress.advance(*body)
    elif kind == "fail":
        run.checkpoints.fail(*body)
    elif kind == "warn":
        run.progress.warn(*body)
    elif kind == "about":
        run.progress.about(*body)
    elif not stopping and kind == "event" and run.observe is not None:
        run.observe(*body)
    elif not stopping and kind == "say":
        run.progress.say(*body)


def raised(error: BaseException | None, text: str, where: str = "in a worker process") -> BaseException:
    """The error of a worker, as the parent raises it: with the traceback it had there."""
    origin = WorkerError(f"{where}:\n{text}")
    if error is None:
        return origin
    error.__cause__ = origin
    return error


def serve(
    pipe: Connection, others: Sequence[Connection], job: Job | None, number: int, threads: int, settings: Any
) -> None:
    """The life of a worker: this thread listens, so that it ends with the parent; another one trains.

    It must be another one after a fork. OpenMP keeps a set of threads for each thread that calls it; the set of this
    one belongs to the parent, and an operation of torch from here would wait for it forever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: the parent tells
    for other in others:
        other.close()
    line = Line(lambda message: pipe.send_bytes(dumps(message)))
    threading.Thread(target=_work, args=(line, job, number, threads, settings), daemon=True).start()
    try:
        line.listen(pipe)
    except (EOFError, OSError):
        os._exit(1)  # at once: files are whole or absent


def _work(line: Line, job: Job | None, number: int, threads: int, settings: Any) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone
        try:
            torch.set_num_threads(threads)
            set_torch(*settings)
            begin: Job = line.receive() if job is None else job
            train = begin(line, number)
        except Exception as error:  # a class that is not there, say
            line.send("error", *error_parts(error))
            return
        line.send("ready")
        with freed_memory_kept():
            while True:
                line.send(*outcome(line, train, line.receive()))


def outcome(line: Line, train: Train, group: list[int]) -> tuple[Any, ...]:
    """Trains a group; returns how that ended, as a message."""
    try:
        for trained in train(group):
            line.send("trained", trained)
        return ("done",)
    except KeyboardInterrupt:
        return ("stopped",)
    except BrokenPipeError:
        raise
    except BaseException as error:
        return ("large",) if len(group) > 1 and is_out_of_memory(error) else ("error", *error_parts(error))


def torch_settings() -> tuple[Any, ...]:
    """What a user may have set in torch for this process and a fresh one would not have."""
    return torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()


def set_torch(dtype: torch.dtype, precision: str, deterministic: bool) -> None:
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    if deterministic:  # the call imports half of torch
        torch.use_deterministic_algorithms(True)


def error_parts(error: BaseException) -> tuple[BaseException | None, str]:
    """An error as it travels: itself, where it can, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        return (loads(dumps(error)), text)
    except Exception:  # whatever its class does
        return (None, text)
