"""Where and how members run: what a user may set, how long they would take, and training them."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..core.allocator import freed_memory_kept
from ..core.documented import with_field_doc
from ..core.tree import Point, leaves, move
from ..pool.files import FileError
from ..pool.pool import Shelf
from .checkpoint import Checkpoints
from .executor import Executor, Here
from .interrupt import Interrupt
from .planner import Planner
from .probe import STRATEGIES, Plan, Strategy
from .progress import Progress
from .refusals import in_words
from .scheduler import Local, train_all
from .sweep import Apart, Together
from .work import Observer, Roster, Run, Trained, Work
from .worker_loop import Line, Train
from .workers import refuse_while_importing


@with_field_doc
@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where and how members run. Every field has a sensible default, and the choice is printed in one line."""

    device: str | None = None
    """Such as "cpu", "cuda" or "cuda:1"; default: the GPU if there is one."""
    dtype: torch.dtype | None = None
    """Type of floating-point parameters and data; default: as the network is built."""
    autocast: torch.dtype | None = None
    """Compute matrix products in this type, such as torch.bfloat16; default: in dtype."""
    strategy: Strategy | None = None
    """How members run: "stacked", "streams" (GPU) or "loop"; default: the faster one in a short trial."""
    compile: bool | None = None
    """Compile loss and gradient; default: if the run is long enough to gain from it."""
    processes: int | None = None
    """Processes over which members are spread, each with a GPU or a share of a CPU; default: one per GPU; on a CPU one
    per core for strategy "loop", and one in all for "stacked", if the run is long enough."""
    group: int | None = None
    """Members that train side by side, at most; default: as many as fit in memory, or 8 where they are spread over a
    cluster."""
    executor: str | None = None
    """Set to "ray" or "ray:ADDRESS", it trains on a Ray cluster; default: on this machine."""
    memory: int | None = None
    """Bytes that members may take; default: four fifths of what is free."""
    checkpoint: float = 60.0
    """Seconds between checkpoints, which are written if fit is given a pool."""
    deterministic: bool = False
    """Choose how members run by rules, not by timing or free memory: the same command then gives the same members to
    the last bit; another plan gives them up to rounding."""
    progress: bool | None = None
    """Show a progress bar; default: where the error stream is a terminal."""

    def __post_init__(self) -> None:
        if self.strategy not in (None, *STRATEGIES):
            raise ValueError(f"expected strategy 'stacked', 'streams', 'loop' or None, got {self.strategy!r}")
        if self.executor is not None and not re.fullmatch(r"ray(:.+)?", str(self.executor)):
            raise ValueError(f"expected executor as 'ray', 'ray:ADDRESS' or None, got {self.executor!r}")
        if self.device is not None:
            self._check_device(str(self.device))
        if self.group is not None and (type(self.group) is not int or self.group < 1):
            raise ValueError(f"expected group as a positive number of members or None, got {self.group!r}")
        if self.dtype is not None and not (isinstance(self.dtype, torch.dtype) and self.dtype.is_floating_point):
            raise ValueError(f"expected dtype as a floating one such as torch.float64, or None, got {self.dtype!r}")
        if self.autocast not in (None, torch.bfloat16, torch.float16):
            raise ValueError(f"expected autocast to torch.bfloat16 or torch.float16, or None, got {self.autocast!r}")
        if self.memory is not None and (isinstance(self.memory, bool) or not isinstance(self.memory, int)):
            raise ValueError(f"expected memory as a whole number of bytes, 4 * 2**30 say, or None, got {self.memory!r}")
        if not (isinstance(self.checkpoint, (int, float)) and self.checkpoint >= 0):
            raise ValueError(f"expected checkpoint as seconds between checkpoints, at least 0, got {self.checkpoint!r}")
        if self.processes is not None and (not isinstance(self.processes, int) or self.processes < 1):
            raise ValueError(f"expected processes to be a positive integer or None, got {self.processes!r}")
        if not isinstance(self.deterministic, bool):
            raise ValueError(f"expected deterministic as True or False, got {self.deterministic!r}")
        if self.processes is not None and self.processes > self.most_processes:
            raise ValueError(
                f"processes={self.processes} need a GPU each, and there {'is' if self.most_processes == 1 else 'are'} "
                f"{self.most_processes} with device={self.device!r}: ask for fewer processes, or leave out the number "
                "of the GPU"
            )

    def _check_device(self, name: str) -> None:
        kind, _, index = name.partition(":")
        if kind not in ("cpu", "cuda") or not (index or "0").isdigit():
            raise ValueError(f"expected device as 'cpu', 'cuda' or 'cuda:1', say, or None, got {name!r}")
        if self.executor is not None:  # the cluster knows what it has
            if index:
                raise ValueError(
                    f"expected device 'cpu' or 'cuda' with an executor, which chooses the GPU, got {name!r}"
                )
            return
        count = torch.cuda.device_count()
        if kind == "cuda" and int(index or 0) >= count:
            raise ValueError(
                f"device {name!r} was asked for, and torch sees "
                f"{f'{count} CUDA devices' if count else 'no CUDA device'} here: use device='cpu'"
            )

    @property
    def place(self) -> torch.device:
        """The device in use; on this side of a cluster, the CPU."""
        if self.executor is not None:
            return torch.device("cpu")
        return torch.device(self.device or ("cuda" if torch.cuda.is_available() else "cpu"))

    @property
    def most_processes(self) -> int:
        """Over how many processes members can be spread: visible GPUs unless one is named; on a CPU any number."""
        if self.place.type == "cpu":
            return sys.maxsize
        return torch.cuda.device_count() if self.place.index is None else 1

    def move(self, tree: Any) -> Any:
        """A tree of tensors in this engine's device and dtype."""
        return move(tree, self.place, self.dtype)

    def train(
        self,
        work: Work,
        roster: Roster,
        *,
        missing: Sequence[int] | None = None,
        observe: Observer | None = None,
        checkpoints: Checkpoints | None = None,
        shelf: Shelf | None = None,
    ) -> Generator[Trained | None, None, None]:
        """Yields the missing members of a roster (by position; default all) as they finish, and None while it waits for
        other machines.

        Other machines put members on the shelf, if there is one.
        Raises Apart, before any step, where members whose recipes differ (`Together`) cannot or should not run side by
        side.
        """
        refuse_while_importing()
        wanted = list(range(len(roster.members))) if missing is None else list(missing)
        first = self.move(roster.point(wanted[0], 0))
        label = f"{work.method.label} x {len(wanted)}"
        with Progress(label, work.schedule.steps * len(wanted), self.progress) as progress, freed_memory_kept():
            saved = checkpoints or Checkpoints()
            interrupt = Interrupt(waits=saved.folder is not None)
            job = Job(self, work, leaves(first.params)[0].dtype, roster, observe is not None, saved=saved.place())
            with closing(self._executor(job, progress, observe, saved, interrupt, shelf)) as executor:
                try:
                    with in_words(self, job.dtype, trying=True):
                        yield from executor.plan(first, wanted)
                except (RuntimeError, TypeError, ValueError) as error:
                    if isinstance(error, FileError) or not isinstance(work.method, Together):
                        raise
                    raise Apart(str(error).strip().split("\n")[0]) from error
                with interrupt, in_words(self, job.dtype):
                    yield from train_all(executor, wanted)
            saved.clear()

    def _executor(
        self,
        job: Job,
        progress: Progress,
        observe: Observer | None,
        saved: Checkpoints,
        interrupt: Interrupt,
        shelf: Shelf | None,
    ) -> Executor:
        if self.executor is not None:
            from .cluster.driver import Cluster

            return Cluster(self, Run(job.work, progress, observe, saved, interrupt), job, shelf)
        here = job.here(self, progress, observe, saved, interrupt, job.roster.point)
        elsewhere = job._replace(roster=job.roster._replace(point=_elsewhere))
        return Local(here, lambda planned: elsewhere._replace(plan=planned.chosen).begin)

    def pace(self, work: Work, roster: Roster) -> Pace:
        """How `train` would run members, and how long they would take: by a few steps, of which nothing is kept."""
        first, wanted = self.move(roster.point(0, 0)), list(range(len(roster.members)))
        job = Job(self, work, leaves(first.params)[0].dtype, roster, False)
        quiet = Progress("", 0, False)
        here = job.here(self, quiet, None, Checkpoints(), Interrupt(waits=False), roster.point)
        planner = Planner(self, here)
        with freed_memory_kept():
            planner.plan(first, wanted, say=False)
            return Pace(here.chosen, planner.largest * here.chosen.processes, planner.estimate(wanted))


class Pace(NamedTuple):
    """How members run."""

    plan: Plan
    at_once: int  # members in memory at the same time
    seconds: float  # that all steps of all members take, at the pace of those that were tried


class Job(NamedTuple):
    """What a run is about, wherever it runs: here, or in a worker to which this travels."""

    engine: Engine
    work: Work
    dtype: torch.dtype
    roster: Roster
    observed: bool
    plan: Plan | None = None
    saved: tuple[Any, ...] = ()

    def here(
        self,
        engine: Engine,
        progress: Progress,
        observe: Observer | None,
        checkpoints: Checkpoints,
        interrupt: Interrupt,
        point: Callable[[int, int], Point],
    ) -> Here:
        """What trains groups on the device of `engine`."""
        work, method = self.work, self.work.method
        if isinstance(method, Together):
            work = work._replace(method=method.to(engine.place, self.dtype))
        run = Run(work.to(engine.place, self.dtype), progress, observe, checkpoints, interrupt)
        keys = self.roster.keys.to(engine.place)
        return Here(engine, run, self.roster._replace(point=point, keys=keys))

    def begin(self, line: Line, number: int) -> Train:
        """In a worker: the function that trains a group there."""
        place = self.engine.place
        if place.type == "cuda":
            place = torch.device("cuda", number)
            torch.cuda.set_device(place)
        engine = replace(self.engine, device=str(place), processes=None, progress=False)
        observe = line.observe if self.observed else None
        here = self.here(engine, line.progress, observe, line.checkpoints(*self.saved), line.interrupt, line.point)
        assert self.plan is not None
        here.chosen = self.plan
        return here.train


def _elsewhere(position: int, attempt: int) -> Point:
    """Where a member starts is asked of the parent, in a worker."""
    raise RuntimeError(f"member {position} starts where the parent says")
