"""The extended Kalman filter: a network, linearised at the mean of the last posterior, batch by batch.

    full        any covariance, P x P numbers
    diagonal    precision += diag(J'R^-1 J): the variational diagonal filter (Chang et al. 2022)
    decoupled   variance -= diag(K J P): the fully decoupled filter (Puskorius & Feldkamp 1991)

All three have the mean of the exact update from where they stand. Normal noise and classes are one formula, through
the Fisher information of the likelihood. On a linear model `full` is the exact posterior; the diagonal kinds are not,
and what they end in depends on the order of the batches. `iterations` linearises anew at each new mean (Bell &
Cathey 1993: Gauss-Newton steps to the mode of the batch's posterior).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core.tree import Params
from ..families import Diagonal, Family
from . import condition
from .filter import Prior, Seen
from .kalman import full_of
from .linearised import Linearised

Structure = Literal["full", "diagonal", "decoupled"]
STRUCTURES: tuple[Structure, ...] = ("full", "diagonal", "decoupled")


@dataclass(frozen=True, kw_only=True)
class EKF(Linearised):
    """A network filtered by its linear function at the last mean, with a full or a diagonal covariance."""

    structure: Structure = "full"
    """Structure: full, diagonal (that of the precision) or decoupled (that of the covariance)."""

    def __post_init__(self) -> None:
        if self.structure not in STRUCTURES:
            raise ValueError(f"expected a structure among {', '.join(STRUCTURES)}, got {self.structure!r}")
        super().__post_init__()

    def numbers(self, parameters: int) -> int:
        return parameters**2 if self.structure == "full" else parameters

    def opened(self, prior: Prior, buffers: Params) -> Family:
        return full_of(prior, buffers) if self.structure == "full" else diagonal_of(prior, buffers, self.label)

    def conditioned(self, before: Family, seen: Seen) -> Family:
        if isinstance(before, Diagonal):
            return condition.diagonal(before, *seen, decoupled=self.structure == "decoupled")
        return condition.full(before, *seen)  # type: ignore[arg-type]


def diagonal_of(prior: Prior, buffers: Params, label: str) -> Diagonal:
    """A prior of independent parameters as a family."""
    if prior.scale is not None:
        return Diagonal(prior.centre, prior.scale, buffers)
    if isinstance(prior.family, Diagonal):
        return Diagonal(prior.centre, {n: prior.family.scale[n] for n in prior.centre}, buffers)
    raise ValueError(
        f"this {label} keeps no correlations, and the prior is a {type(prior.family).__name__}: use a Diagonal, or "
        "EKF(structure='full')"
    )
