"""The nouns of a run: what is trained, who, what is told on the way, and what comes of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.tree import Point
from ..data import Data, Stream
from ..families import Family
from ..problem import Problem
from .checkpoint import Checkpoints
from .interrupt import Interrupt
from .method import Method, Schedule, plan_of
from .progress import Progress

SEGMENTS = 100  # reports in a run, at most, unless the method's schedule says otherwise


class Member(NamedTuple):
    """Who a member is, wherever it stands in a posterior: the seed of the run that made it, and its number there."""

    seed: int
    k: int


class Roster(NamedTuple):
    """Who is trained, and from where."""

    members: Sequence[Member]
    point: Callable[[int, int], Point]  # where the member at a position begins an attempt
    keys: Tensor  # (M, 2), the noise of each
    blocks: Sequence[int] | None = None  # the block of each; members train side by side only within a block
    given: bool = False  # whether points were given, and are the same at every attempt


class Work(NamedTuple):
    """What is trained: a method for a problem on data."""

    method: Method
    problem: Problem  # as the method adapts it
    data: Any  # Data | Stream | None
    val: Data | Stream | None
    schedule: Schedule
    context: Any = ()  # what the method took from the data, where they are on the device

    @staticmethod
    def of(method: Method, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Work:
        """The work of a method, wherever the data are."""
        return Work(method, problem, data, val, plan_of(method, 0 if data is None else data.n))

    def to(self, device: torch.device, dtype: torch.dtype) -> Work:
        """The same with data and points on a device, and what the method takes from them."""
        data, val = (None if x is None else x.to(device, dtype) for x in (self.data, self.val))
        problem = self.problem.to(device, dtype)
        context = () if data is None else self.method.context(problem, data)
        return self._replace(problem=problem, data=data, val=val, context=context)

    @property
    def segment(self) -> int:
        """Steps between reports: what the method asks for, or an epoch, or more where there would be too many."""
        if self.schedule.report is not None:
            return self.schedule.report
        whole = self.schedule.batch_size is None or self.data is None
        epoch = 1 if whole else max(1, self.data.n // self.schedule.batch_size)
        return max(epoch, -(-self.schedule.steps // SEGMENTS))


class Event(NamedTuple):
    """What `observe` is called with, about once an epoch."""

    method: str
    members: tuple[Member, ...]  # those that are reported
    step: int  # steps done
    steps: int  # steps planned
    loss: Tensor  # (g,), mean over the last steps
    val_nll: Tensor | None  # (g,), per validation example


Observer = Callable[[Event], None]


class Trained(NamedTuple):
    """A member that is done."""

    position: int  # in the list of members asked for
    family: Family | None  # None: it diverged at every attempt
    curves: dict[str, list[Any]]  # step, loss, val_nll with validation data; seconds it took; what `finish` adds


class Run(NamedTuple):
    """Work on a device, and what all groups of it share."""

    work: Work
    progress: Progress
    observe: Observer | None
    checkpoints: Checkpoints
    interrupt: Interrupt
