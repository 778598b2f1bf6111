"""Predictions of real numbers: the exact mixture of the samples' distributions."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Categorical, Distribution, MixtureSameFamily

from ..core.noise import Noise
from ..core.tree import Params
from ..problem.likelihoods import RealLikelihood, aligned
from .predictive import Predictive, weighted


@dataclass(frozen=True, eq=False)
class RealPredictive(Predictive):
    """Variance = aleatoric (mean of the samples' variances) + between (variance of the members' means) + within (mean
    over
    members of the variance of their samples' means); all with divisor 1/S, so that the parts add up exactly."""

    @cached_property
    def components(self) -> Distribution:
        """The distribution of each sample, batch shape (M, S, B, *event)."""
        assert isinstance(self.likelihood, RealLikelihood)
        return self.likelihood.distribution(self.outputs, self.learned)

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

    @cached_property
    def aleatoric(self) -> Tensor:
        return weighted(self.mass, self.components.variance)

    @cached_property
    def between(self) -> Tensor:
        return weighted(self.member_mass()[0], (self.member_mean - self.mean).square())

    @cached_property
    def within(self) -> Tensor:
        return weighted(self.mass, (self.components.mean - self.member_mean.unsqueeze(1)).square())

    def log_prob(self, targets: Tensor) -> Tensor:
        y = aligned(self.outputs[0, 0], targets.to(self.outputs.device))
        each = self.components.log_prob(y).flatten(2)  # (M, S, B * event)
        joint = each.reshape(*each.shape[:2], self.outputs.shape[2], -1).sum(-1)
        return torch.logsumexp(joint + self.mass.log()[..., None], (0, 1))

    def cdf(self, values: Tensor) -> Tensor:
        """P(target <= value) elementwise, for values (B, *event)."""
        return weighted(self.mass, self.components.cdf(aligned(self.outputs[0, 0], values)))

    def quantile(self, q: float) -> Tensor:
        """The q-quantile of the mixture elementwise, (B, *event), by bisection of its distribution function."""
        if not 0 < q < 1:
            raise ValueError(f"expected a quantile level between 0 and 1, got {q}")
        each = self._icdf(self.outputs, self.learned, torch.full((), q, dtype=torch.float64))
        low, high = (
            each.amin((0, 1)),
            each.amax((0, 1)),
        )  # the mixture's quantile lies between those of its components
        for _ in range(100):
            middle = (low + high) / 2
            right = self.cdf(middle) < q
            low, high = torch.where(right, middle, low), torch.where(right, high, middle)
            if bool(((high - low) <= 4 * torch.finfo(low.dtype).eps * middle.abs()).all()):
                break
        return (low + high) / 2

    def interval(self, level: float = 0.9) -> tuple[Tensor, Tensor]:
        """The central interval that holds the target with probability `level`: quantiles (1 - level)/2 and (1 +
        level)/2."""
        if not 0 < level < 1:
            raise ValueError(f"expected an interval level between 0 and 1, got {level}")
        return self.quantile((1 - level) / 2), self.quantile((1 + level) / 2)

    def sample(self, n: int, seed: int = 0) -> Tensor:
        noise = Noise.seed(seed, self.outputs.device)
        m, s, b = self.choose(n, noise.split("component"))
        outputs = self.outputs[m, s, b]  # (n, B, *event)
        level = noise.split("within").uniform(torch.empty_like(outputs, dtype=torch.float64))
        return self._icdf(outputs, {k: v[m, s] for k, v in self.learned.items()}, level.clamp(min=2.0**-53))

    def _icdf(self, outputs: Tensor, learned: Params, level: Tensor) -> Tensor:
        """Quantiles of the samples' distributions, in doubles: floats reach infinity at levels near 0 and 1."""
        assert isinstance(self.likelihood, RealLikelihood)
        wide = self.likelihood.distribution(outputs.double(), {k: v.double() for k, v in learned.items()})
        return wide.icdf(level.to(outputs.device)).to(outputs.dtype)

    def to_distribution(self) -> MixtureSameFamily:
        """A mixture whose component axis (M * S) is the last batch axis of its parts, as torch wants it."""
        outputs = self.outputs.flatten(0, 1).movedim(0, -1)  # (B, *event, M * S)
        assert isinstance(self.likelihood, RealLikelihood)
        learned = {k: v.flatten(0, 1) for k, v in self.learned.items()}
        # the likelihood aligns its own parameters with leading axes: hand it the samples first, then move the axis
        parts = self.likelihood.distribution(self.outputs.flatten(0, 1), learned)
        moved = parts.__class__(
            **{k: getattr(parts, k).expand(parts.batch_shape).movedim(0, -1) for k in parts.arg_constraints},
            validate_args=False,
        )
        mass = self.mass.flatten().expand(outputs.shape)
        return MixtureSameFamily(Categorical(probs=mass, validate_args=False), moved, validate_args=False)
