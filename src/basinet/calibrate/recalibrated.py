"""Predictions of real numbers whose quantiles were recalibrated (Kuleshov et al. 2018).

Where F says u, the target is below with probability R(u): R is a line on each of K stretches of equal length, as steep
as the share of validation targets that fell there. So R(F(y)) is the distribution function, and the density is that of
the mixture times the slope K m_k. Mean and variance are integrals of 1 - R(F(y)), to 1e-4 of the standard deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, ClassVar, NoReturn

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..core.noise import Noise
from ..predict.crps import mixture_cdf, panels
from ..predict.predictive import weighted
from ..predict.real import RealPredictive

FAR = 1e-9  # the level of the quantiles between which draws are looked for


@dataclass(frozen=True, eq=False, repr=False)
class RecalibratedPredictive(RealPredictive):
    """One number per input. It is one distribution, and no mixture of the samples': its variance has no parts."""

    parts: ClassVar = ()
    mixes: ClassVar = False

    inner: RealPredictive = field(kw_only=True)  # the mixture
    masses: Tensor = field(kw_only=True)  # (K,), positive, summing to one: the steps of R

    def __post_init__(self) -> None:
        super().__post_init__()
        event = tuple(self.plain(self.outputs.dtype).batch_shape[3:])
        if math.prod(event) != 1:
            raise ValueError(
                f"quantile recalibration is for one number per input, got targets {event} each: use of='average', a "
                "factor on the spread of all"
            )

    @staticmethod
    def of(inner: RealPredictive, masses: Tensor) -> RecalibratedPredictive:
        """The mixture `inner` with these steps."""
        given = inner.outputs, inner.likelihood, inner.learned, inner.weights
        return RecalibratedPredictive(*given, inner=inner, masses=masses)

    def plain(self, dtype: torch.dtype) -> Distribution:
        return self.inner.plain(dtype)

    def recalibrated(self, levels: Tensor) -> Tensor:
        masses = self._masses.to(levels.device)
        k = (levels * len(masses)).floor().long().clamp(0, len(masses) - 1)
        return (masses.cumsum(0) - masses)[k] + masses[k] * (levels * len(masses) - k)

    def uncalibrated(self, q: float) -> float:
        masses = self._masses
        edges = masses.cumsum(0) - masses
        k = int((edges <= q).sum()) - 1
        return float((k + (q - edges[k]) / masses[k]) / len(masses))

    def log_joint(self, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        levels = weighted(self.exact_mass, self.wide.cdf(self.aligned(targets).double()))
        k = (levels * len(self._masses)).floor().long().clamp(0, len(self._masses) - 1)
        slope = (len(self._masses) * self._masses.to(levels.device)[k]).log().reshape(len(levels))
        if mask is not None:
            exponents = mask.to(slope).reshape(slope.shape)
            slope = torch.where(exponents > 0, slope * exponents, 0.0)
        return self.inner.log_joint(targets, mask) + slope.to(self.outputs.dtype)

    @cached_property
    def mean(self) -> Tensor:
        return self._moments[0].to(self.outputs.dtype)

    @property
    def variance(self) -> Tensor:
        return self._moments[1].to(self.outputs.dtype)

    def drawn(self, m: Tensor, s: Tensor, b: Tensor, noise: Noise) -> Tensor:
        plain = self.inner.drawn(m, s, b, noise)
        wanted = mixture_cdf(self, plain.double(), recalibrated=False)  # uniform: the levels of what is drawn
        low, high = (self.component_quantile(q) for q in (FAR, 1 - FAR))
        low, high = low.amin((0, 1)).expand_as(wanted), high.amax((0, 1)).expand_as(wanted)
        for _ in range(60):
            middle = (low + high) / 2
            right = mixture_cdf(self, middle) < wanted
            low, high = torch.where(right, middle, low), torch.where(right, high, middle)
        return high.to(plain.dtype)

    def some(self, index: Any) -> dict[str, Any]:
        raise ValueError("recalibrated quantiles are those of all members: slice the posterior, then bn.temper")

    @property
    def aleatoric(self) -> Tensor:
        _refuse("aleatoric")

    @property
    def between(self) -> Tensor:
        _refuse("between")

    @property
    def within(self) -> Tensor:
        _refuse("within")

    @property
    def epistemic(self) -> Tensor:
        _refuse("epistemic")

    def to_distribution(self) -> NoReturn:
        raise ValueError("recalibrated quantiles are not a torch distribution: use cdf, quantile and log_prob")

    @property
    def _masses(self) -> Tensor:
        return self.masses.double()

    @cached_property
    def _moments(self) -> tuple[Tensor, Tensor]:
        """Mean and variance, (B, *event): with a below all of it, E[Y] = a + integral of P(Y > y) from there, and
        E[(Y - a)^2] that of 2 (y - a) P(Y > y)."""
        edges, points, weights = panels(self)
        above = weights * (1 - mixture_cdf(self, points))
        start = edges[0]
        first = above.sum(0)
        second = (2 * (points - start) * above).sum(0)
        return start + first, (second - first.square()).clamp(min=0)


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        f"recalibrated quantiles are those of one distribution, without a part that is {what}: bn.temper with "
        "of='average' or of='members' keeps the parts; mean, variance and quantiles are there"
    )
