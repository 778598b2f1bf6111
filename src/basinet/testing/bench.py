"""What a method's theory is measured with: problems with exact answers, fits in float64, and comparisons."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..core.lift import lift
from ..core.noise import Noise
from ..core.tree import ravel, stack, take, unravel
from ..data import Data
from ..engine import Engine, Member, Method
from ..families import Delta
from ..fit import fit
from ..posterior import Part, Posterior
from ..problem import Problem
from .exact import Conjugate, conjugate
from .noisy import Noisy, noisy


class Check(NamedTuple):
    """One comparison of what theory says with what was measured."""

    subject: str
    name: str
    says: str  # what theory says, in words or as a formula
    measured: float  # the largest deviation from it
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether the deviation is within the tolerance (NaN is not)."""
        return self.measured <= self.tolerance


class Bench:
    """What a method's `theory` measures with: problems with exact answers, and a fit in float64."""

    def __init__(self, subject: str) -> None:
        self.subject = subject

    def conjugate(
        self,
        temperature: float = 1.0,
        temper: Literal["posterior", "likelihood"] = "posterior",
        correlation: float = 0.8,
    ) -> Conjugate:
        """Linear regression with the exact posterior N(mean, covariance)."""
        return conjugate(temperature=temperature, temper=temper, correlation=correlation)

    def noisy(self) -> Noisy:
        """A quadratic with independent gradient noise, on which descent has a known stationary law."""
        return noisy()

    def fit(
        self,
        recipe: Method,
        problem: Problem,
        data: Data | None,
        members: int = 1,
        seed: int = 0,
        *,
        val: Data | None = None,
        start: Posterior | nn.Module | Tensor | None = None,
    ) -> Posterior:
        """`bn.fit` on the CPU in float64, without a progress bar; `start` may be a module or a vector."""
        if isinstance(start, nn.Module):
            start = Posterior.of(start, problem)
        elif isinstance(start, Tensor):
            point = problem.init(Noise.seed(seed))
            there = stack([Delta(unravel(start, point.params), point.buffers)])
            start = Posterior((Part(problem, there, (Member(seed, 0),)),))
        return fit(recipe, problem, data, val=val, members=members, seed=seed, start=start, engine=cpu_engine())

    def covariance(self, posterior: Posterior) -> Tensor:
        """That of the first member's parameters, where the family is Gaussian, (P, P)."""
        family: Any = take(posterior.parts[0].family, 0)
        params = family.mean().params
        total = sum(x.numel() for x in params.values())
        identity = torch.eye(total, dtype=torch.float64)
        return family.quad(lift(lambda row: unravel(row, params))(identity))

    def close(self, name: str, says: str, measured: Any, expected: Tensor, tolerance: float) -> Check:
        """The largest difference between what was found (a tensor, or params as one vector) and what is expected."""
        vector = ravel(measured) if isinstance(measured, dict) else measured
        return Check(self.subject, name, says, distance(vector.reshape(expected.shape), expected), tolerance)


def cpu_engine(strategy: Literal["stacked", "loop"] | None = None) -> Engine:
    return Engine(device="cpu", dtype=torch.float64, strategy=strategy, progress=False)


def distance(a: Tensor, b: Tensor) -> float:
    return float("nan") if a.shape != b.shape else float((a.double() - b.double()).abs().max())
