"""Predictions of numbers, real or counted: the exact mixture of the samples' distributions."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, final

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from ..calibrate.conformal_sets import Conformal
from ..problem.distributions import parameters_of, with_parameters
from ..problem.likelihoods import NumberLikelihood
from ..problem.likelihoods.fitting import in_shape
from .predictive import Predictive, weighted


@dataclass(frozen=True, eq=False, repr=False)
class NumberPredictive(Predictive):
    """Variance = aleatoric (mean of the samples' variances) + between (variance of the members' means) + within (mean
    over members of the variance of their samples' means); all with divisor 1/S, so that the parts add up exactly."""

    mixes: ClassVar[bool] = True  # whether it is the mixture of its components, and nothing else

    @cached_property
    def components(self) -> Distribution:
        """The distribution of each sample, batch shape (M, S, B, *event of the targets)."""
        return self.calibrated(self.plain(self.outputs.dtype))

    @cached_property
    def wide(self) -> Distribution:
        """The same in double precision: what tails are computed in."""
        return self.calibrated(self.plain(torch.float64))

    def plain(self, dtype: torch.dtype) -> Distribution:
        """What the likelihood makes of the outputs."""
        return self._numbers.distribution(self.outputs.to(dtype), {k: v.to(dtype) for k, v in self.learned.items()})

    def calibrated(self, parts: Distribution) -> Distribution:
        """The samples' distributions, recalibrated where that was asked for."""
        return parts

    @cached_property
    def member_mean(self) -> Tensor:
        """The mean of each member, (M, B, *event)."""
        inside = self.member_mass()[1].to(self.outputs)
        return torch.einsum("ms,ms...->m...", inside, self.components.mean)

    @cached_property
    def mean(self) -> Tensor:
        """The mean of the mixture, (B, *event)."""
        return weighted(self.member_mass()[0], self.member_mean)

    @property
    def variance(self) -> Tensor:
        """The variance of the mixture, (B, *event)."""
        return self.aleatoric + self.epistemic

    @property
    def sd(self) -> Tensor:
        """The standard deviation of the mixture, (B, *event)."""
        return self.variance.sqrt()

    @cached_property
    def aleatoric(self) -> Tensor:
        return weighted(self.mass, self.components.variance)

    @cached_property
    def between(self) -> Tensor:
        return weighted(self.member_mass()[0], (self.member_mean - self.mean).square())

    @cached_property
    def within(self) -> Tensor:
        return weighted(self.mass, (self.components.mean - self.member_mean.unsqueeze(1)).square())

    @final
    def aligned(self, values: Tensor) -> Tensor:
        """Values in the shape of what is predicted, (B, *event): a missing last axis of length one is added."""
        return in_shape(values.to(self.outputs.device), self.components.batch_shape[2:])

    @final
    def log_densities(self, targets: Tensor) -> Tensor:
        return self.components.log_prob(self.aligned(targets))

    @final
    def cdf(self, values: Tensor) -> Tensor:
        """P(target <= value) elementwise, for values (B, *event): in double precision, in which 1 - 1e-9 is not 1."""
        each = self.wide.cdf(self.aligned(values).double())
        return self.recalibrated(weighted(self.exact_mass, each).clamp(0, 1))  # sums of weights are rounded

    @final
    def quantile(self, q: float) -> Tensor:
        """The q-quantile of the mixture elementwise, (B, *event): the least number with P(target <= it) >= q."""
        if not 0 < q < 1:
            raise ValueError(f"expected a quantile level between 0 and 1, got {q}")
        each = self.component_quantile(self.uncalibrated(q))
        return self.search(q, each.amin((0, 1)), each.amax((0, 1))).to(self.outputs.dtype)

    @final
    def component_quantile(self, q: float) -> Tensor:
        """The q-quantile of each sample's distribution, (M, S, B, *event), in double precision."""
        return self.wide.icdf(torch.full((), q, dtype=torch.float64, device=self.outputs.device))

    def recalibrated(self, levels: Tensor) -> Tensor:
        """P(target <= value) where the mixture says `levels`."""
        return levels

    def uncalibrated(self, q: float) -> float:
        """What the mixture says where P(target <= value) is q."""
        return q

    @abstractmethod
    def search(self, q: float, low: Tensor, high: Tensor) -> Tensor:
        """The q-quantile, which lies between those of the components: low and high."""

    @final
    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds the target with probability `level`: quantiles (1 - level)/2 and (1 +
        level)/2."""
        if not 0 < level < 1:
            raise ValueError(f"expected an interval level between 0 and 1, got {level}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    @cached_property
    def conformal_interval(self) -> tuple[Tensor, Tensor]:
        """Low and high, (B, *event) each: the interval that holds the target, all of its elements together, with the
        probability for which `bn.conformal` calibrated it."""
        rule = self.rule()
        low, high, unit = self._band(rule)
        low, high = low - rule.threshold * unit, high + rule.threshold * unit
        middle = (low + high) / 2  # an interval that would be empty is a point
        return torch.minimum(low, middle), torch.maximum(high, middle)

    @final
    def conformal_scores(self, targets: Tensor, rule: Conformal) -> Tensor:
        """By how many units each element of the targets lies outside the band, (B, *event); inside, negative."""
        low, high, unit = self._band(rule)
        y = self.aligned(targets)
        return torch.maximum(low - y, y - high) / unit

    def _band(self, rule: Conformal) -> tuple[Tensor, Tensor, Tensor]:
        """What calibration widens, and the unit in which it does."""
        if rule.kind == "cqr":
            low, high = self.interval(rule.level)
            return low, high, torch.ones_like(low)
        if rule.kind == "scaled":
            return self.mean, self.mean, self.variance.sqrt()
        return self.mean, self.mean, torch.ones_like(self.mean)

    def to_distribution(self) -> MixtureSameFamily:
        """A mixture whose component axis (M * S) is the last batch axis of its parts, as torch wants it."""
        parts = self.components
        values = {k: v.expand(parts.batch_shape) for k, v in parameters_of(parts).items()}
        moved = with_parameters(parts, {k: v.flatten(0, 1).movedim(0, -1) for k, v in values.items()})
        mass = self.mass.flatten().expand(moved.batch_shape)
        return MixtureSameFamily(Categorical(probs=mass, validate_args=False), moved, validate_args=False)

    @property
    def _numbers(self) -> NumberLikelihood:
        assert isinstance(self.likelihood, NumberLikelihood)
        return self.likelihood
