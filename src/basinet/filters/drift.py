"""How parameters may have moved while examples came in: what makes a filter forget.

    Forget   precision -> rate precision + (1 - rate) prior precision for each example, so that what one of n examples
             ago said counts rate^n, and the prior always counts once: no direction is ever wider than the prior
    Inflate  the covariance grows by variance x I for each example: each parameter walks at random
    Shrink   mean and covariance go back towards N(0, scale^2), by a share for each example (Ornstein-Uhlenbeck)

All count examples and not batches: how a stream is cut does not change how fast it is forgotten. Those that look at the
examples before they forget are in `adaptive.py`. A covariance that were only divided by the rate would wind up: along
directions that no example tells of it grows without end, until it has no factor. (Forgetting towards a distribution:
Kulhavy and Zarrop 1993.) What is computed from covariances is computed in doubles.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core.recipe import Recipe
from ..core.tree import Params, ravel, unravel
from ..families import Diagonal, Family, Full, LowRankPrecision
from .condition import columns_of, factor_over, low_rank, moved

Evidence = Callable[[Family], float]
LEAST = 1e-3  # of a standard deviation that is kept: a precision cannot be infinite


class Drift(Recipe, kind="drift"):
    """What happens to a normal distribution between examples."""

    @abstractmethod
    def after(self, family: Family, examples: int, prior: Family) -> Family:
        """The distribution before the next batch, when this many examples have passed. `prior` is the one before
        any data, of the same kind; where it lies around the start of a network, here around the family's mean."""

    def given(self, family: Family, examples: int, prior: Family, evidence: Evidence) -> Family:
        """The same where the next batch may be looked at: `evidence` is its log probability under a distribution."""
        return self.after(family, examples, prior)


@dataclass(frozen=True)
class Forget(Drift):
    """Exponential forgetting towards the prior: about the last 1 / (1 - rate) examples count, and where none of them
    tells anything the prior is what remains. A network whose prior lies around its start keeps its mean."""

    rate: float = 0.999
    """Weight of the past for each new example; 1 forgets nothing."""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"expected a rate above 0 and at most 1, got {self.rate}")

    def after(self, family: Family, examples: int, prior: Family) -> Family:
        return forgotten(family, self.rate**examples, prior)


@dataclass(frozen=True)
class Inflate(Drift):
    """A random walk of each parameter, by which the past is known less and less."""

    variance: float = 1e-5
    """Variance of the step that each parameter takes, for each new example."""

    def __post_init__(self) -> None:
        if not 0 <= self.variance < math.inf:
            raise ValueError(f"expected a finite variance of at least 0, got {self.variance}")

    def after(self, family: Family, examples: int, prior: Family) -> Family:
        return widened(family, torch.full_like(ravel(family.mean().params), self.variance * examples))


@dataclass(frozen=True)
class Shrink(Drift):
    """Back towards N(0, scale^2): mean -> r mean, covariance -> r^2 covariance + (1 - r^2) scale^2 I, with r the rate
    to the power of examples. For linear models and last layers; a network of zeros cannot learn."""

    rate: float = 0.999
    """Part of the mean that stays, for each new example."""
    scale: float = 1.0
    """Standard deviation of the distribution to which it returns."""

    def __post_init__(self) -> None:
        if not 0 < self.rate <= 1:
            raise ValueError(f"expected a rate above 0 and at most 1, got {self.rate}")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"expected a positive, finite scale, got {self.scale}")

    def after(self, family: Family, examples: int, prior: Family) -> Family:
        kept = max(self.rate**examples, LEAST)
        there: Any = blended(family, kept, flat(family, self.scale))
        return replace(there, centre={n: kept * x for n, x in there.centre.items()})


def forgotten(family: Family, kept: float, prior: Family) -> Family:
    """q^kept p^(1 - kept), normalised, with q the family and p the prior: the weighted means of both precisions, and of
    both precisions times means."""
    if kept == 1:
        return family
    kept, back = max(kept, LEAST**2), ravel(prior.mean().params) - ravel(family.mean().params)
    if isinstance(family, Full):
        assert isinstance(prior, Full)
        factor, whole = family.factor.double(), torch.eye(len(family.factor)).to(family.factor.device).double()
        root = torch.linalg.solve_triangular(prior.factor.double(), torch.stack([whole, factor]), upper=False)
        new = factor_over(factor, kept * whole + (1 - kept) * root[1].mT @ root[1])
        push = (1 - kept) * root[0].mT @ (root[0] @ back.double())
        return Full(moved(family.centre, new @ (new.mT @ push)), new.to(family.factor), family.buffers)
    if isinstance(family, Diagonal):
        assert isinstance(prior, Diagonal)
        first = ravel({n: prior.scale[n] for n in family.centre}).double() ** -2
        precision = kept * ravel({n: family.scale[n] for n in family.centre}).double() ** -2 + (1 - kept) * first
        scale = unravel(precision.rsqrt().to(back), family.centre)
        return Diagonal(moved(family.centre, (1 - kept) * first / precision * back), scale, family.buffers)
    if isinstance(family, LowRankPrecision):
        assert isinstance(prior, LowRankPrecision)
        rows = ravel({n: prior.columns[n] for n in family.centre}, 1)
        rows = (1 - kept) ** 0.5 * rows[rows.any(1)]
        first = (1 - kept) * ravel({n: prior.precision[n] for n in family.centre})
        less = family.scaled(1 / kept)
        base = unravel(ravel({n: less.precision[n] for n in family.centre}) + first, family.centre)
        wide = LowRankPrecision(family.centre, base, less.columns, family.buffers)
        return low_rank(wide, rows, first * back + rows.mT @ (rows @ back))
    raise _other(family)


def blended(family: Family, kept: float, other: Family) -> Family:
    """With the covariance kept^2 S + (1 - kept^2) S1 in place of S, S1 that of another family of the same kind: of a
    low-rank precision, its diagonal."""
    less, share = family.scaled(kept**2), 1 - kept**2
    if isinstance(less, Full):
        assert isinstance(other, Full)
        factor = other.factor.double()
        return _plus(less, share * factor @ factor.mT)
    return widened(less, share * variances(other))


def widened(family: Family, more: Tensor) -> Family:
    """With the covariance S + diag(more) in place of S."""
    if isinstance(family, Full):
        return _plus(family, torch.diag(more.double()))
    if isinstance(family, Diagonal):
        parts = unravel(more.double(), family.centre)
        scale = {n: (s.square() + parts[n]).sqrt().to(family.scale[n]) for n, s in _double(family.scale)}
        return Diagonal(family.centre, scale, family.buffers)
    if isinstance(family, LowRankPrecision):
        return _walked(family, unravel(more, family.centre))
    raise _other(family)


def flat(like: Family, scale: float) -> Family:
    """Independent parameters of one standard deviation, as a family of the same kind."""
    if isinstance(like, Full):
        return Full(like.centre, scale * torch.eye(len(like.factor)).to(like.factor), like.buffers)
    if isinstance(like, Diagonal):
        return Diagonal(like.centre, {n: torch.full_like(s, scale) for n, s in like.scale.items()}, like.buffers)
    if isinstance(like, LowRankPrecision):
        precision = {n: torch.full_like(y, scale**-2) for n, y in like.precision.items()}
        columns = {n: torch.zeros_like(c) for n, c in like.columns.items()}
        return LowRankPrecision(like.centre, precision, columns, like.buffers)
    raise _other(like)


def variances(family: Family) -> Tensor:
    """Of each parameter, (P,)."""
    if isinstance(family, Diagonal):
        return ravel({n: family.scale[n] for n in family.centre}).square()
    assert isinstance(family, LowRankPrecision)
    base = ravel({n: family.precision[n] for n in family.centre})
    columns = ravel({n: family.columns[n] for n in family.centre}, 1) / base.sqrt()
    root = torch.linalg.cholesky(columns @ columns.mT + torch.eye(len(columns)).to(columns))
    return (1 - torch.linalg.solve_triangular(root, columns, upper=False).square().sum(0)) / base


def _plus(family: Full, more: Tensor) -> Full:
    """With the covariance S + more in place of S."""
    factor = family.factor.double()
    return Full(family.centre, torch.linalg.cholesky(factor @ factor.mT + more).to(family.factor), family.buffers)


def _walked(family: LowRankPrecision, more: Params) -> LowRankPrecision:
    """((Y + C'C)^-1 + Q)^-1, Q diagonal, is of the same form: Y' = Y / (1 + Q Y), and C' = K' C / (1 + Q Y) with
    K K' = (I + C Q (1 + Q Y)^-1 C')^-1."""
    shrink: Params = {n: 1 / (1 + more[n] * x) for n, x in family.precision.items()}
    columns = ravel({n: family.columns[n] for n in family.centre}, 1)
    less = columns * ravel({n: shrink[n] for n in family.centre})
    walk = ravel({n: more[n] for n in family.centre})
    inner = torch.eye(len(columns), dtype=less.dtype, device=less.device) + (columns * walk) @ less.mT
    root = torch.linalg.cholesky(inner)  # inner^-1 = root^-T root^-1
    turned = torch.linalg.solve_triangular(root, less, upper=False)
    precision = {n: x * shrink[n] for n, x in family.precision.items()}
    return LowRankPrecision(family.centre, precision, columns_of(turned, family.centre), family.buffers)


def _double(params: Params) -> Iterator[tuple[str, Tensor]]:
    return ((n, x.double()) for n, x in params.items())


def _other(family: Family) -> TypeError:
    return TypeError(f"expected a family that filters keep (Full, Diagonal, LowRankPrecision), got {family!r}")
