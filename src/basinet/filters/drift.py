"""How parameters may have moved while examples came in: what makes a filter forget.

    Forget   the covariance is divided by rate for each example, so that one of n examples ago counts rate^n
    Inflate  the covariance grows by variance x I for each example: each parameter walks at random
    Shrink   mean and covariance go back towards N(0, scale^2), by a share for each example (Ornstein-Uhlenbeck)

All count examples and not batches: how a stream is cut does not change how fast it is forgotten. Those that look at the
examples before they forget are in `adaptive.py`.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core.recipe import Recipe
from ..core.tree import Params, ravel
from ..families import Diagonal, Family, Full, LowRankPrecision

Evidence = Callable[[Family], float]
LEAST = 1e-3  # of a standard deviation that is kept: a precision cannot be infinite


class Drift(Recipe, kind="drift"):
    """What happens to a normal distribution between examples."""

    @abstractmethod
    def after(self, family: Family, examples: int) -> Family:
        """The distribution before the next batch, when this many examples have passed."""

    def given(self, family: Family, examples: int, evidence: Evidence) -> Family:
        """The same where the next batch may be looked at: `evidence` is its log probability under a distribution."""
        return self.after(family, examples)


@dataclass(frozen=True)
class Forget(Drift):
    """Exponential forgetting, prior included: about the last 1 / (1 - rate) examples count."""

    rate: float = 0.999  # weight of the past, for each example that comes; 1 forgets nothing

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"expected a rate above 0 and at most 1, got {self.rate}")

    def after(self, family: Family, examples: int) -> Family:
        return family.scaled(self.rate**-examples)


@dataclass(frozen=True)
class Inflate(Drift):
    """A random walk of each parameter, by which the past is known less and less."""

    variance: float = 1e-5  # of the step that each parameter takes, for each example that comes

    def __post_init__(self) -> None:
        if not 0 <= self.variance < math.inf:
            raise ValueError(f"expected a finite variance of at least 0, got {self.variance}")

    def after(self, family: Family, examples: int) -> Family:
        return widened(family, self.variance * examples)


@dataclass(frozen=True)
class Shrink(Drift):
    """Back towards N(0, scale^2): mean -> r mean, covariance -> r^2 covariance + (1 - r^2) scale^2 I, with r the rate
    to the power of examples. For linear models and last layers; a network of zeros cannot learn."""

    rate: float = 0.999  # part of the mean that stays, for each example that comes
    scale: float = 1.0  # standard deviation of what it goes back to

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"expected a rate above 0 and at most 1, got {self.rate}")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"expected a positive, finite scale, got {self.scale}")

    def after(self, family: Family, examples: int) -> Family:
        kept = max(self.rate**examples, LEAST)
        there: Any = blended(family, kept, self.scale)
        return replace(there, centre={n: kept * x for n, x in there.centre.items()})


def blended(family: Family, kept: float, scale: float) -> Family:
    """With the covariance kept^2 S + (1 - kept^2) scale^2 I in place of S."""
    return widened(family.scaled(kept**2), (1 - kept**2) * scale**2)


def widened(family: Family, more: float) -> Family:
    """With the covariance S + more I in place of S."""
    if isinstance(family, Full):
        wider = family.factor @ family.factor.mT
        factor = torch.linalg.cholesky(wider + more * torch.eye(len(wider), dtype=wider.dtype, device=wider.device))
        return Full(family.centre, factor, family.buffers)
    if isinstance(family, Diagonal):
        scale = {n: (s.square() + more).sqrt() for n, s in family.scale.items()}
        return Diagonal(family.centre, scale, family.buffers)
    if isinstance(family, LowRankPrecision):
        return _walked(family, more)
    raise TypeError(f"expected a family that filters keep (Full, Diagonal, LowRankPrecision), got {family!r}")


def mean_variance(family: Family) -> float:
    """Of the parameters; of a low-rank precision, what it is without the columns, which is more."""
    if isinstance(family, Full):
        return float(family.factor.square().sum()) / len(family.factor)
    values = family.scale if isinstance(family, Diagonal) else family.precision  # type: ignore[attr-defined]
    power = 2 if isinstance(family, Diagonal) else -1
    return float((ravel(values).double() ** power).mean())


def _walked(family: LowRankPrecision, more: float) -> LowRankPrecision:
    """((Y + C'C)^-1 + q I)^-1 is of the same form: Y' = Y / (1 + q Y), and C' = K' C / (1 + q Y) with
    K K' = (I + q C (1 + q Y)^-1 C')^-1."""
    shrink: Params = {n: 1 / (1 + more * x) for n, x in family.precision.items()}
    columns = ravel({n: family.columns[n] for n in family.centre}, 1)
    less = columns * ravel({n: shrink[n] for n in family.centre})
    inner = torch.eye(len(columns), dtype=less.dtype, device=less.device) + more * columns @ less.mT
    root = torch.linalg.cholesky(inner)  # inner^-1 = root^-T root^-1
    turned = torch.linalg.solve_triangular(root, less, upper=False)
    parts = turned.split([x.numel() for x in family.centre.values()], 1)
    new = {n: part.reshape(len(turned), *x.shape) for (n, x), part in zip(family.centre.items(), parts)}
    precision = {n: x * shrink[n] for n, x in family.precision.items()}
    return LowRankPrecision(family.centre, precision, new, family.buffers)
