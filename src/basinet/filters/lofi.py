"""LOFI: a low-rank extended Kalman filter, whose precision is a diagonal plus a few columns (Chang et al. 2023).

    precision = diag(Y) + W W',  W (P, rank);   after a batch W~ = [W, J'R^-1/2]: its largest directions stay

What is left of W~ goes into Y with its diagonal, so that the diagonal of the precision is the exact one. A step costs
P (rank + k)^2 for k numbers that are observed, and keeps P (rank + 1). With a rank of at least that of the data it is
the EKF with a full covariance; on a linear model, the exact posterior.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.tree import Params
from ..families import Family, LowRankPrecision
from . import condition
from .ekf import diagonal_of
from .filter import Prior, Seen
from .linearised import Linearised


@dataclass(frozen=True, kw_only=True)
class LOFI(Linearised):
    """A network filtered by its linear function at the last mean, with a precision of low rank plus a diagonal."""

    rank: int = 20
    """How many directions are kept beside the diagonal."""

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise ValueError(f"expected rank of at least 1, got {self.rank}")
        super().__post_init__()

    def numbers(self, parameters: int) -> int:
        return parameters * (min(self.rank, parameters) + 1)

    def opened(self, prior: Prior, buffers: Params) -> Family:
        rank = min(self.rank, sum(x.numel() for x in prior.centre.values()))
        if isinstance(prior.family, LowRankPrecision):
            return _widened(prior.family, rank, buffers)
        flat = diagonal_of(prior, buffers, self.label)
        precision = {n: s**-2 for n, s in flat.scale.items()}
        columns = {n: x.new_zeros(rank, *x.shape) for n, x in flat.centre.items()}
        return LowRankPrecision(flat.centre, precision, columns, buffers)

    def conditioned(self, before: LowRankPrecision, seen: Seen) -> Family:
        return condition.low_rank(before, *seen)


def _widened(family: LowRankPrecision, rank: int, buffers: Params) -> LowRankPrecision:
    """With columns of zeros, up to a rank."""
    there = len(next(iter(family.columns.values())))
    if there > rank:
        raise ValueError(f"the prior has {there} directions, and LOFI keeps {rank}: use rank={there}, or more")
    columns = {n: torch.cat([x, x.new_zeros(rank - there, *x.shape[1:])]) for n, x in family.columns.items()}
    return LowRankPrecision(family.centre, family.precision, columns, buffers)
