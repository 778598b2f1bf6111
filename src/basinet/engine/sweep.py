"""Recipes that differ only in numbers, run as one method: each member carries which of them is its own.

Inside the lifted step a member looks its numbers up, so that the recipe it runs has tensors where the plain ones have
different floats. What does not run under `vmap` (`finish`) is given the plain recipe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.recipe import Path, differences, flat, rebound
from ..core.tree import Params, Point, leaves
from ..data import Data, Stream
from ..families import Family
from ..problem import Problem
from .method import Finished, Method, Report, Review, Schedule
from .step import Info, Step


class Apart(Exception):
    """Recipes that cannot run as one: nothing was trained, and they are to run one after another."""


class Marked(NamedTuple):
    """Where a member starts, and by which recipe."""

    params: Params
    buffers: Params
    which: Tensor  # (), its number among the recipes


class Carried(NamedTuple):
    """A member's state, and by which recipe it is made."""

    state: Any
    which: Tensor  # ()


@dataclass(frozen=True, kw_only=True, eq=False)
class Together(Method, kind="method"):
    """Many plain recipes as one method. Gradient methods step with their pure optimiser, lifted with the rest."""

    recipes: tuple[Method, ...]
    problem: Problem  # before any recipe adapts it
    paths: tuple[Path, ...]  # of the numbers in which the recipes differ
    numbers: Tensor  # (recipes, paths), float64

    @staticmethod
    def of(recipes: Sequence[Method], problem: Problem, device: torch.device) -> Together:
        """One method from the recipes of a cohort."""
        paths, values = differences(recipes), [dict(flat(recipe)) for recipe in recipes]
        numbers = torch.tensor([[v[p] for p in paths] for v in values], dtype=torch.float64, device=device)
        return Together(recipes=tuple(recipes), problem=problem, paths=tuple(paths), numbers=numbers)

    def to(self, device: torch.device, dtype: torch.dtype) -> Together:
        """The same with its tensors on a device."""
        return replace(self, problem=self.problem.to(device, dtype), numbers=self.numbers.to(device))

    @property
    def label(self) -> str:
        return self.recipes[0].label

    @property
    def norm(self) -> Any:  # type: ignore[override]
        """As the recipes have it."""
        return self.recipes[0].norm

    @property
    def restarts(self) -> bool:  # type: ignore[override]
        """As the recipes have it."""
        return self.recipes[0].restarts

    @property
    def best(self) -> bool:
        return self.recipes[0].best

    def schedule(self, n: int) -> Schedule:
        return self.recipes[0].schedule(n)

    def context(self, problem: Problem, data: Data | Stream) -> Any:
        first, *_ = [recipe.context(problem, data) for recipe in self.recipes]  # each may refuse the data
        return first

    def init(self, point: Point | Marked, problem: Problem, noise: Noise) -> Carried:
        assert isinstance(point, Marked)
        own = self._own(point.which)
        return Carried(own.init(Point(point.params, point.buffers), own.adapt(self.problem), noise), point.which)

    def update(self, state: Carried, step: Step) -> tuple[Carried, Info]:
        own = self._own(state.which)
        after, info = own.update(state.state, step._replace(problem=own.adapt(self.problem)))
        for old, new in zip(leaves(state.state), leaves(after), strict=True):
            if old.dtype != new.dtype:
                raise TypeError(f"a step of {self.label} with tensors for numbers makes {new.dtype} of {old.dtype}")
        return Carried(after, state.which), info

    def point(self, state: Carried) -> Point:
        return self._own(state.which).point(state.state)

    def judged(self, state: Carried, problem: Problem, n: int) -> Sequence[Point]:
        return self._own(state.which).judged(state.state, problem, n)

    def review(self, state: Carried, report: Report) -> Review:
        own = self.recipes[int(state.which)]
        done = own.review(state.state, report._replace(problem=own.adapt(self.problem)))
        return done._replace(state=state if done.state is state.state else Carried(done.state, state.which))

    def seen(self, state: Carried) -> Problem:
        """The problem as this member's recipe sees it."""
        return self._own(state.which).adapt(self.problem)

    def finish(
        self, state: Carried, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Family | Finished:
        own = self.recipes[int(state.which)]
        return own.finish(state.state, samples, own.adapt(self.problem), data, val, noise)

    def _own(self, which: Tensor) -> Method:
        values = self.numbers.index_select(0, which.reshape(1))[0]  # (paths,)
        return rebound(self.recipes[0], dict(zip(self.paths, values.unbind())))
