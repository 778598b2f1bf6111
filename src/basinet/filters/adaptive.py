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
from .drift import LEAST, Drift, Evidence, blended, mean_variance


@dataclass(frozen=True)
class AdaptiveForget(Drift):
    """Forgetting at the rate under which the coming batch is most probable: none while the past explains it."""

    rates: tuple[float, ...] = (1.0, 0.999, 0.99, 0.9)  # weights of the past for each example, that are tried
    widest: float = 1.0  # mean standard deviation up to which is forgotten: along directions of which no example tells,
    #                      the variance would grow without end

    def __post_init__(self) -> None:
        if not self.widest > 0:
            raise ValueError(f"expected a positive widest standard deviation, got {self.widest}")
        if not self.rates or not all(0 < rate <= 1 for rate in self.rates):
            raise ValueError(f"expected rates above 0 and at most 1, got {self.rates}")

    def after(self, family: Family, examples: int) -> Family:
        return self._wider(family, max(self.rates) ** -examples)

    def given(self, family: Family, examples: int, evidence: Evidence) -> Family:
        return max((self._wider(family, rate**-examples) for rate in self.rates), key=evidence)

    def _wider(self, family: Family, factor: float) -> Family:
        """With the covariance times a factor, as far as there is room."""
        if factor == 1:
            return family
        return family.scaled(max(1.0, min(factor, self.widest**2 / mean_variance(family))))


@dataclass(frozen=True)
class Change(Drift):
    """A change of everything at once, as probable as the batch makes it: the covariance becomes g^2 S + (1 - g^2)
    scale^2 I, with g the probability that nothing has changed, and scale^2 I where that is below one half.

    The mean stays where it is: for a network it is a better start than none.
    """

    hazard: float = 0.001  # probability of a change before each example
    scale: float = 1.0  # standard deviation of the parameters after a change

    def __post_init__(self) -> None:
        if not 0 < self.hazard < 1:
            raise ValueError(f"expected a hazard above 0 and below 1, got {self.hazard}")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"expected a positive, finite scale, got {self.scale}")

    def after(self, family: Family, examples: int) -> Family:
        return blended(family, (1 - self.hazard) ** examples, self.scale)

    def given(self, family: Family, examples: int, evidence: Evidence) -> Family:
        anew = blended(family, LEAST, self.scale)
        stays = examples * math.log1p(-self.hazard)
        odds = stays + evidence(family) - math.log(-math.expm1(stays)) - evidence(anew)
        kept = 1 / (1 + math.exp(-odds)) if odds > -500 else 0.0
        return blended(family, kept, self.scale) if kept > 0.5 else anew
