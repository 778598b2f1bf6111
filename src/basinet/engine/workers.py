"""Spreads groups of members over processes, one per GPU or several on a CPU: a member does not depend on how many.

The parent plans, deals out a group at a time, answers where a member starts, shows progress, calls observers and hands
members on. A worker trains a group as the parent would, and sends through a pipe what there is to say. Nothing is
shared but the files of checkpoints, which each group has for itself.

On a CPU under Linux workers are forked, so that they have the problem as it stands, lambdas included; elsewhere they
are fresh processes to which it is pickled. A worker ends when its pipe closes, so that none outlives the parent.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import torch

from ..core.tree import move
from .transport import dumps, loads
from .work import Member, Roster, Run, Trained
from .worker_loop import END_OF_WORK, STOP, Job, WorkerError, WorkerLost, hear, raised, serve, torch_settings

START = 120.0  # seconds in which a worker must be ready
END = 10.0  # seconds in which an idle one must end
LOOK = 0.2  # seconds between looks at Ctrl-C


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
            "this script trains when it is imported, and the processes that it starts import it: put the work under "
            'if __name__ == "__main__":'
        )


class Crew:
    """Workers, each with its share of the threads. `enlist` starts them, `train_all` gives them groups, `dismiss` ends
    them."""

    def __init__(self, run: Run, place: torch.device, roster: Roster) -> None:
        self.run, self.place, self.members, self.point = run, place, roster.members, roster.point
        self.workers: list[_Worker] = []

    def enlist(self, job: Job, count: int, threads: int) -> str:
        """Starts workers; returns why that cannot be, and starts none then."""
        how = how_to_start(self.place)
        try:
            parcel = b"" if how == "fork" else dumps(job)
        except Exception as error:  # pickle raises whatever the object does
            return (
                f"{_first_line(error)}; to train in several processes here, give a factory, and classes, that are "
                "defined at the top level of a module"
            )
        for number in range(count):
            here, there = multiprocessing.Pipe()
            others = [here, *(worker.pipe for worker in self.workers)]
            given = (there, others, job) if how == "fork" else (there, (), None)
            args = (*given, number, threads, torch_settings())
            context: Any = multiprocessing.get_context(how)
            process = context.Process(target=serve, args=args, daemon=True)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
                process.start()
            there.close()
            self.workers.append(_Worker(process, here, self.members))
        reasons = [self._await(worker, parcel) for worker in self.workers]
        if any(reasons):
            self.dismiss()
        return next((reason for reason in reasons if reason), "")

    def train_all(
        self, groups: Sequence[list[int]], halves: Callable[[list[int]], list[list[int]]]
    ) -> Iterator[Trained]:
        """Deals out groups and yields their members; `halves` cuts a group that did not fit in memory."""
        left = deque(groups)
        try:
            while left or self._busy():
                for worker in self.workers:
                    if left and not worker.group:
                        worker.group = left.popleft()
                        worker.send(dumps(worker.group))
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
            worker.send(dumps(self.point(*body)))
        elif kind == "error":
            worker.end()
            raise raised(*body)
        elif kind in ("done", "stopped"):
            worker.end()
        else:
            hear(self.run, kind, body, stopping)

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
            self.run.progress.say("stopped: the same fit with the same pool resumes from here")


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
            return loads(self.pipe.recv_bytes())
        except (EOFError, OSError) as error:
            raise self._lost() from error

    def fate(self) -> str:
        """How the process ended."""
        self.process.join(1)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"was ended by {signal.Signals(-code).name}"
        return f"ended with exit code {code}"

    def _lost(self) -> WorkerLost:
        who = [str(self.members[i].k) for i in self.end()]
        members = f"member{'s' if len(who) > 1 else ''} {', '.join(who)}" if who else "no member"
        fate = self.fate()
        why = " (the system does that when memory runs out)" if "SIGKILL" in fate else ""
        return WorkerLost(
            f"the process that trained {members} {fate}{why}. With pool=, members that had ended are kept, and the "
            "same fit resumes from the last checkpoint; Engine(processes=...) sets how many train at once"
        )


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().split(chr(10))[0][:160]}"
