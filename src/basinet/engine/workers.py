"""Spreads groups of members over processes, one a GPU or several on a CPU: a member does not depend on how many.

The parent plans, deals out a group at a time, answers where a member starts, shows progress, calls observers and hands
members on. A worker trains a group as the parent would, and sends through a pipe what there is to say. Nothing is
shared but the files of checkpoints, which each group has for itself.

On a CPU under Linux workers are forked, so that they have the problem as it stands, lambdas included; elsewhere they
are fresh processes to which it is pickled. A worker ends when its pipe closes, so that none outlives the parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import multiprocessing
import os
import pickle
import queue
import signal
import sys
import threading
import traceback
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ..core.tree import Point, move
from .checkpoint import Checkpoints
from .group import Event, Member, Run, Trained
from .interrupt import Interrupt
from .memory import is_out_of_memory
from .progress import Progress

START = 120.0  # seconds in which a worker must be ready
END = 10.0  # seconds in which an idle one must end
LOOK = 0.2  # seconds between looks at Ctrl-C
STOP, END_OF_WORK = b"stop", b"end"  # what a worker is told beside pickled groups and points
MALLOPT = ((-1, 2**31 - 1), (-2, 2**28), (-3, 2**25))  # glibc: bytes it keeps, fetches at once, maps one by one above

Train = Callable[[list[int]], Iterator[Trained]]
Job = Callable[["Line", int], Train]
"""Called in worker number i with its line to the parent: gives the function that trains a group there."""


class WorkerError(RuntimeError):
    """A worker ended before its members did, or the traceback of what was raised in one."""


def cores() -> int:
    """CPU cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def how_to_start(place: torch.device) -> Literal["fork", "spawn"]:
    """Forking takes a tenth of a second, and needs Linux and no GPU: with one, autograd has threads that would be
    lost."""
    forks = sys.platform == "linux" and place.type == "cpu" and not torch.accelerator.is_available()
    return "fork" if forks else "spawn"


def refuse_while_importing() -> None:
    """Raises in a fresh process that imports the script of its parent, where the script trains as it is imported."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "this script trains when it is imported, which processes that it starts do: put the work under if __name__ "
            '== "__main__":'
        )


class Crew:
    """So many workers, each with so many threads. `enlist` starts them, `train` gives them groups, `dismiss` ends
    them."""

    def __init__(
        self, run: Run, place: torch.device, members: Sequence[Member], point: Callable[[int, int], Point]
    ) -> None:
        self.run, self.place, self.members, self.point = run, place, members, point
        self.workers: list[_Worker] = []

    def enlist(self, job: Job, count: int, threads: int) -> str:
        """Starts workers; returns why that cannot be, and starts none then."""
        how = how_to_start(self.place)
        try:
            parcel = b"" if how == "fork" else _dumps(job)
        except Exception as error:  # pickle raises whatever the object does
            return (
                f"{_first_line(error)}; to train in several processes here, give a factory, and classes, that are "
                "defined at the top level of a module"
            )
        for number in range(count):
            here, there = multiprocessing.Pipe()
            others = [here, *(worker.pipe for worker in self.workers)]
            given = (there, others, job) if how == "fork" else (there, (), None)
            args = (*given, number, threads, _torch_settings())
            context: Any = multiprocessing.get_context(how)
            process = context.Process(target=_serve, args=args, daemon=True)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                process.start()
            there.close()
            self.workers.append(_Worker(process, here, self.members))
        reasons = [self._await(worker, parcel) for worker in self.workers]
        if any(reasons):
            self.dismiss()
        return next((reason for reason in reasons if reason), "")

    def train(self, groups: Sequence[list[int]], halves: Callable[[list[int]], list[list[int]]]) -> Iterator[Trained]:
        """Deals out groups and yields their members; `halves` cuts a group that did not fit in memory."""
        left = deque(groups)
        try:
            while left or self._busy():
                for worker in self.workers:
                    if left and not worker.group:
                        worker.group = left.popleft()
                        worker.send(_dumps(worker.group))
                for worker, kind, body in self._heard():
                    if kind == "large":
                        left.extendleft(reversed(halves(worker.end())))
                    else:
                        yield from self._take(worker, kind, body)
                self.run.interrupt.check()
        except (Exception, KeyboardInterrupt) as error:
            if self.run.checkpoints.folder is not None:
                yield from self._stop(isinstance(error, KeyboardInterrupt))
            raise

    def dismiss(self) -> None:
        """Ends all workers: those that are idle by asking."""
        for worker in self.workers:
            if worker.group or not worker.ready:
                worker.process.kill()
            else:
                with contextlib.suppress(WorkerError):
                    worker.send(END_OF_WORK)
        for worker in self.workers:
            worker.process.join(END)
            worker.process.kill()
            worker.process.join()
            worker.pipe.close()
        self.workers = []

    def _await(self, worker: _Worker, parcel: bytes) -> str:
        """Sends a new worker its job, and returns why it is not ready."""
        try:
            if parcel:
                worker.send(parcel)
            if not worker.pipe.poll(START):
                return f"a process was not ready after {START:.0f} s"
            kind, *body = worker.receive()
        except WorkerError:
            return (
                f"a process {worker.fate()} before it was ready; a script that trains in several processes must do so "
                'under if __name__ == "__main__":'
            )
        worker.ready = kind == "ready"
        return "" if worker.ready else str(body[1]).strip().split("\n")[-1]

    def _busy(self) -> list[_Worker]:
        return [worker for worker in self.workers if worker.group]

    def _heard(self) -> Iterator[tuple[_Worker, str, list[Any]]]:
        """One message of each worker that has sent some."""
        by_pipe = {worker.pipe: worker for worker in self._busy()}
        for pipe in wait(list(by_pipe), LOOK):
            worker = by_pipe[pipe]  # type: ignore[index]
            kind, *body = worker.receive()
            yield worker, kind, body

    def _take(self, worker: _Worker, kind: str, body: list[Any], stopping: bool = False) -> Iterator[Trained]:
        """Does what a message says."""
        if kind == "trained":
            trained = body[0]
            yield trained if trained.family is None else trained._replace(family=move(trained.family, self.place))
        elif kind == "point":
            worker.send(_dumps(self.point(*body)))
        elif kind == "advance":
            self.run.progress.advance(*body)
        elif kind == "fail":
            self.run.checkpoints.fail(*body)
        elif kind == "error":
            worker.end()
            error, text = body
            told = WorkerError(f"in a worker process:\n{text}")
            raise told if error is None else error from told
        elif kind in ("done", "stopped"):
            worker.end()
        elif not stopping and kind == "event" and self.run.observe is not None:
            self.run.observe(*body)
        elif not stopping and kind == "say":
            self.run.progress.say(*body)

    def _stop(self, asked: bool) -> Iterator[Trained]:
        """Lets workers save where they are, and says so once; yields members that end meanwhile."""
        for worker in self._busy():
            with contextlib.suppress(WorkerError):
                worker.send(STOP)
        while self._busy():
            try:
                for worker, kind, body in self._heard():
                    yield from self._take(worker, "stopped" if kind in ("error", "large") else kind, body, True)
            except WorkerError:  # one more that ended by itself: what it saved before is there
                continue
            if not asked:
                self.run.interrupt.check()
        if asked:
            self.run.progress.say("stopped: the same fit with the same pool goes on from there")


class _Worker:
    """A process as the parent sees it."""

    def __init__(self, process: Any, pipe: Connection, members: Sequence[Member]) -> None:
        self.process, self.pipe, self.members, self.ready = process, pipe, members, False
        self.group: list[int] = []  # what it trains now, by position

    def end(self) -> list[int]:
        """Takes note that it is idle; returns the group it had."""
        group, self.group = self.group, []
        return group

    def send(self, content: bytes) -> None:
        try:
            self.pipe.send_bytes(content)
        except OSError as error:
            raise self._lost() from error

    def receive(self) -> Any:
        try:
            return _loads(self.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def fate(self) -> str:
        """How the process ended."""
        self.process.join(1)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def _lost(self) -> WorkerError:
        who = [str(self.members[i].k) for i in self.end()]
        members = f"member{'s' if len(who) > 1 else ''} {', '.join(who)}" if who else "no member"
        fate = self.fate()
        why = " (the system does that where memory runs out)" if "SIGKILL" in fate else ""
        return WorkerError(
            f"the process that trained {members} {fate}{why}. With pool=, members that had ended are kept, and the "
            "same fit goes on from the last checkpoint; Engine(processes=...) sets how many train at once"
        )


class Line:
    """A worker's end of the pipe, with what a run needs to report to somebody who is elsewhere."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.interrupt = Interrupt()
        self.progress = _ToldProgress(self)
        self.inbox: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def send(self, kind: str, *body: Any) -> None:
        """Sends the parent a message; the thread that trains alone does so."""
        self.pipe.send_bytes(_dumps((kind, *body)))

    def receive(self) -> Any:
        """What the parent sends next; only the thread that trains may build tensors."""
        return _loads(self.inbox.get())

    def observe(self, event: Event) -> None:
        """An observer that the parent calls."""
        self.send("event", event)

    def point(self, position: int, attempt: int) -> Point:
        """Where a member starts, which the parent knows."""
        self.send("point", position, attempt)
        return self.receive()

    def checkpoints(self, folder: Path | None, interval: float, run: str) -> Checkpoints:
        """Checkpoints that write the files of groups, and leave the plan to the parent."""
        return _ToldCheckpoints(self, folder, interval, run)

    def listen(self) -> None:
        """Takes what the parent sends until it says that this is the end, or ends itself."""
        while (content := self.pipe.recv_bytes()) != END_OF_WORK:
            if content == STOP:
                self.interrupt.asked = True
            else:
                self.inbox.put(content)


class _ToldProgress(Progress):
    """Progress that the parent shows."""

    def __init__(self, line: Line) -> None:
        super().__init__("", 0, False)
        self.line = line

    def say(self, line: str) -> None:
        self.line.send("say", line)

    def advance(self, steps: int, text: str) -> None:
        self.line.send("advance", steps, text)


class _ToldCheckpoints(Checkpoints):
    """Checkpoints of which the parent keeps the plan."""

    def __init__(self, line: Line, folder: Path | None, interval: float, run: str) -> None:
        super().__init__(folder, interval, run)
        self.line = line

    def fail(self, position: int) -> None:
        self.line.send("fail", position)


def _serve(
    pipe: Connection, others: Sequence[Connection], job: Job | None, number: int, threads: int, settings: Any
) -> None:
    """The life of a worker: this thread listens, so that it ends with the parent; another one trains.

    It must be another one after a fork. OpenMP keeps a set of threads for each thread that calls it; the set of this
    one belongs to the parent, and an operation of torch from here would wait for it for ever.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches all processes of a terminal: the parent tells
    for other in others:
        other.close()
    _keep_memory()
    line = Line(pipe)
    threading.Thread(target=_work, args=(line, job, number, threads, settings), daemon=True).start()
    try:
        line.listen()
    except (EOFError, OSError):
        os._exit(1)  # at once: files are whole or absent


def _work(line: Line, job: Job | None, number: int, threads: int, settings: Any) -> None:
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the parent is gone
        try:
            torch.set_num_threads(threads)
            _set_torch(*settings)
            begin: Job = line.receive() if job is None else job
            train = begin(line, number)
        except Exception as error:  # a class that is not there, say
            line.send("error", *_told(error))
            return
        line.send("ready")
        while True:
            line.send(*_trained(line, train, line.receive()))


def _trained(line: Line, train: Train, group: list[int]) -> tuple[Any, ...]:
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
        return ("large",) if len(group) > 1 and is_out_of_memory(error) else ("error", *_told(error))


def _keep_memory() -> None:
    """Has the C library keep memory that is freed: each step needs it again, and to fetch it from the system takes a
    small convolutional network a sixth of its time."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):  # another C library
            adjust = ctypes.CDLL("libc.so.6").mallopt
            for setting, value in MALLOPT:
                adjust(setting, value)


def _torch_settings() -> tuple[Any, ...]:
    """What a user may have set in torch for this process and a fresh one would not have."""
    return torch.get_default_dtype(), torch.get_float32_matmul_precision(), torch.are_deterministic_algorithms_enabled()


def _set_torch(dtype: torch.dtype, precision: str, deterministic: bool) -> None:
    torch.set_default_dtype(dtype)
    torch.set_float32_matmul_precision(precision)
    if deterministic:  # the call imports half of torch
        torch.use_deterministic_algorithms(True)


def _told(error: BaseException) -> tuple[BaseException | None, str]:
    """An error as it travels: itself, where it can, and its traceback."""
    text = "".join(traceback.format_exception(error))
    try:
        return (_loads(_dumps(error)), text)
    except Exception:  # whatever its class does
        return (None, text)


class _Pickler(pickle.Pickler):
    """Tensors as plain bytes: no shared memory that a killed process would leave behind, and no device."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.layout is not torch.strided:
            return NotImplemented
        plain = value.detach().cpu().contiguous()
        return _tensor, (plain.dtype, tuple(plain.shape), plain.reshape(-1).view(torch.uint8).numpy().tobytes())


def _tensor(dtype: torch.dtype, shape: tuple[int, ...], content: bytes) -> Tensor:
    # copied, so that it is aligned as torch has it: kernels then give the same bits
    made = torch.empty(shape, dtype=dtype)
    if content:
        made.copy_(torch.frombuffer(bytearray(content), dtype=dtype).reshape(shape))
    return made


def _dumps(value: Any) -> bytes:
    file = io.BytesIO()
    _Pickler(file, pickle.HIGHEST_PROTOCOL).dump(value)
    return file.getvalue()


def _loads(content: bytes) -> Any:
    """What came through a pipe from a process of ours: nothing that lies on a disk is read this way."""
    return pickle.loads(content)


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().split(chr(10))[0][:160]}"
