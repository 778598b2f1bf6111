"""Where and how members run: what a user may set, how long they would take, and training them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from ..core.allocator import freed_memory_kept
from ..core.tree import Point, leaves, move
from ..pool.files import FileError
from .checkpoint import Checkpoints
from .executor import Here
from .interrupt import Interrupt
from .line import Line, Train
from .planner import Planner
from .probe import STRATEGIES, Plan, Strategy
from .progress import Progress
from .refusals import in_words
from .scheduler import train_all
from .sweep import Apart, Together
from .work import Observer, Roster, Run, Trained, Work
from .workers import refuse_while_importing


@dataclass(frozen=True, kw_only=True)
class Engine:
    """Where and how members run. Everything has a default that fits, and is said in one line."""

    device: str | None = None  # "cpu", "cuda", "cuda:1"; default: the GPU where there is one
    dtype: torch.dtype | None = None  # of floating-point parameters and data; default: as the network is built
    autocast: torch.dtype | None = None  # compute matrix products in this dtype, torch.bfloat16 say; default: in dtype
    strategy: Strategy | None = None  # "stacked", "streams" (GPU) or "loop"; default: what a probe finds
    compile: bool | None = None  # compile loss and gradient; default: where the run is long enough to pay
    processes: int | None = None  # members are spread over so many, one a GPU or several on a CPU; default: as many as
    # there are GPUs, or on a CPU cores for strategy "loop" and one for "stacked", where the run is long enough to pay
    memory: int | None = None  # bytes that members may take; default: four fifths of what is free
    checkpoint: float = 60.0  # seconds between checkpoints, which are written where fit is given a pool
    deterministic: bool = (
        False  # choose how members run by rules alone and not by timing or by what memory is free: the
    )
    # same command gives the same members to the bit, where another plan would give them up to rounding
    progress: bool | None = None  # show a progress bar; default: where the error stream is a terminal

    def __post_init__(self) -> None:
        if self.strategy not in (None, *STRATEGIES):
            raise ValueError(f"expected strategy 'stacked', 'streams', 'loop' or None, got {self.strategy!r}")
        if self.device is not None:
            self._check_device(str(self.device))
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
                f"{self.most_processes} with device={self.device!r}: ask for fewer, or leave the number of the GPU out"
            )

    @staticmethod
    def _check_device(name: str) -> None:
        kind, _, index = name.partition(":")
        if kind not in ("cpu", "cuda") or not (index or "0").isdigit():
            raise ValueError(f"expected device as 'cpu', 'cuda' or 'cuda:1', say, or None, got {name!r}")
        count = torch.cuda.device_count()
        if kind == "cuda" and int(index or 0) >= count:
            raise ValueError(
                f"device {name!r} was asked for, and torch sees "
                f"{f'{count} CUDA devices' if count else 'no CUDA device'} here: use device='cpu'"
            )

    @property
    def place(self) -> torch.device:
        """The device in use."""
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
    ) -> Generator[Trained, None, None]:
        """Yields the missing members of a roster (by position; default all) as they finish.

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
            job = _Job(
                self, work, leaves(first.params)[0].dtype, roster._replace(point=_elsewhere), observe is not None
            )
            here = job.here(self, progress, observe, saved, interrupt, roster.point)
            try:
                with in_words(self, job.dtype, trying=True):
                    Planner(self, here).plan(first, wanted)
            except (RuntimeError, TypeError, ValueError) as error:
                if isinstance(error, FileError) or not isinstance(work.method, Together):
                    raise
                raise Apart(str(error).strip().split("\n")[0]) from error
            with interrupt, in_words(self, job.dtype):
                yield from train_all(here, wanted, job._replace(plan=here.chosen, saved=saved.place()).begin)
            saved.clear()

    def pace(self, work: Work, roster: Roster) -> Pace:
        """How `train` would run members, and how long they would take: by a few steps, of which nothing is kept."""
        first, wanted = self.move(roster.point(0, 0)), list(range(len(roster.members)))
        job = _Job(self, work, leaves(first.params)[0].dtype, roster, False)
        quiet = Progress("", 0, False)
        here = job.here(self, quiet, None, Checkpoints(), Interrupt(waits=False), roster.point)
        planner = Planner(self, here)
        with freed_memory_kept():
            planner.plan(first, wanted, say=False)
            return Pace(here.chosen, planner.largest * here.chosen.processes, planner.foretell(wanted))


class Pace(NamedTuple):
    """How members run."""

    plan: Plan
    at_once: int  # members in memory at the same time
    seconds: float  # that all steps of all members take, at the pace of those that were tried


class _Job(NamedTuple):
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
        run = Run(self.work.to(engine.place, self.dtype), progress, observe, checkpoints, interrupt)
        keys = self.roster.keys.to(engine.place)
        return Here(engine, run, Roster(self.roster.members, point, keys))

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
