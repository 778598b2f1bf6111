"""Forgetting that looks at the examples first: how much of the past explains them?

    AdaptiveForget   the rate, of a few, under which the batch is most probable
    Change           the probability that the stream has just changed, and a new beginning to that extent

Both ask for the log probability of the batch before it is learned from, which the filter has in closed form
(`evidence.py`): one number for each alternative, and nothing is kept between batches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..families import Family
from .drift import LEAST, Drift, Evidence, blended, flat, forgotten


@dataclass(frozen=True)
class AdaptiveForget(Drift):
    """Forgetting towards the prior, as `Forget`, at the rate under which the coming batch is most probable: none while
    the past explains it."""

    rates: tuple[float, ...] = (1.0, 0.999, 0.99, 0.9)
    """The weights of the past that are tried, for each example."""

    def __post_init__(self) -> None:
        if not self.rates or not all(0 < rate <= 1 for rate in self.rates):
            raise ValueError(f"expected rates above 0 and at most 1, got {self.rates}")

    def after(self, family: Family, examples: int, prior: Family) -> Family:
        return forgotten(family, max(self.rates) ** examples, prior)

    def given(self, family: Family, examples: int, prior: Family, evidence: Evidence) -> Family:
        return max((forgotten(family, rate**examples, prior) for rate in self.rates), key=evidence)


@dataclass(frozen=True)
class Change(Drift):
    """A change of everything at once, as probable as the batch makes it: the covariance becomes g^2 S + (1 - g^2) S0,
    with g the probability that nothing has changed and S0 the prior's covariance, and S0 where g is below one half.

    The mean stays where it is: for a network it is a better start than none.
    """

    hazard: float = 0.001
    """Probability of a change before each example."""
    scale: float | None = None
    """Standard deviation of the parameters after a change; None: as in the prior."""

    def __post_init__(self) -> None:
        if not 0 < self.hazard < 1:
            raise ValueError(f"expected a hazard above 0 and below 1, got {self.hazard}")
        if self.scale is not None and not 0 < self.scale < math.inf:
            raise ValueError(f"expected a positive, finite scale or None, got {self.scale}")

    def after(self, family: Family, examples: int, prior: Family) -> Family:
        return blended(family, max((1 - self.hazard) ** examples, LEAST), self._anew(prior))

    def given(self, family: Family, examples: int, prior: Family, evidence: Evidence) -> Family:
        other = self._anew(prior)
        anew = blended(family, LEAST, other)
        stays = examples * math.log1p(-self.hazard)
        odds = stays + evidence(family) - math.log(-math.expm1(stays)) - evidence(anew)
        kept = 1 / (1 + math.exp(-odds)) if odds > -500 else 0.0
        return blended(family, kept, other) if kept > 0.5 else anew

    def _anew(self, prior: Family) -> Family:
        return prior if self.scale is None else flat(prior, self.scale)
