"""Predictions of real numbers in closed form: outputs that are Gaussian, and Gaussian noise on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..core.noise import Noise
from ..problem.distributions import Normal
from .predictive import weighted
from .real import RealPredictive

REMEDY = "check that inputs are scaled as in training, that the prior is not far too wide, and the noise not too small"


@dataclass(frozen=True, eq=False, repr=False)
class NormalPredictive(RealPredictive):
    """The mixture of N(outputs, covariance + noise): the spread of the outputs is integrated, not sampled.

    `within` is the mean of the members' variances, with that of their means where a member has several samples; the
    elements of a target are correlated through the outputs, and `log_prob` and `sample` know it.
    """

    covariance: Tensor | None = None  # (M, S, B, E, E), over the E elements of the outputs of an input

    @cached_property
    def spread(self) -> Tensor:
        """The variance of each output, (M, S, B, *event)."""
        assert self.covariance is not None
        return self.covariance.diagonal(dim1=-2, dim2=-1).reshape(self.outputs.shape)

    @cached_property
    def noise_variance(self) -> Tensor:
        """The variance of the noise, (M, S, B, *event)."""
        return self._numbers.distribution(self.outputs, self.learned).variance

    def plain(self, dtype: torch.dtype) -> Normal:
        return Normal(self.outputs.to(dtype), (self.noise_variance.to(dtype) + self.spread).sqrt(), validate_args=False)

    @cached_property
    def aleatoric(self) -> Tensor:
        return weighted(self.mass, self.factor.square().to(self.noise_variance) * self.noise_variance)

    @cached_property
    def within(self) -> Tensor:
        means = weighted(self.mass, (self.components.mean - self.member_mean.unsqueeze(1)).square())
        return means + weighted(self.mass, self.factor.square().to(self.spread) * self.spread)

    def log_joint(self, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.aligned(targets).double()
        gap = (y - self.wide.mean).reshape(*self.outputs.shape[:3], -1)
        covariance = self.factor.square().reshape(-1, 1, 1, 1, 1) * self._total
        count: Any = gap.shape[-1]
        if mask is not None:  # elements that do not count become independent, with nothing to explain
            here = mask.to(gap.device).reshape(gap.shape[2:]) > 0  # a joint density has no exponents of elements
            both = here.unsqueeze(-1) & here.unsqueeze(-2)
            eye = torch.eye(gap.shape[-1], dtype=gap.dtype, device=gap.device)
            gap, covariance, count = torch.where(here, gap, 0.0), torch.where(both, covariance, eye), here.sum(-1)
        factor = _root(covariance)
        z = torch.linalg.solve_triangular(factor, gap.unsqueeze(-1), upper=False).squeeze(-1)
        volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return (-0.5 * z.square().sum(-1) - volume - 0.5 * count * math.log(2 * math.pi)).to(self.outputs.dtype)

    def drawn(self, m: Tensor, s: Tensor, b: Tensor, noise: Noise) -> Tensor:
        outputs = self.outputs[m, s, b]
        z = noise.normal(outputs.reshape(*m.shape, -1, 1)).double()
        plain = outputs + (_root(self._total)[m, s, b] @ z).reshape(outputs.shape).to(outputs.dtype)
        return self.moved(plain, m, b)

    def some(self, index: Any) -> dict[str, Any]:
        assert self.covariance is not None
        return super().some(index) | {"covariance": self.covariance[index]}

    @cached_property
    def _total(self) -> Tensor:
        """(M, S, B, E, E), noise included: in double precision, where a large covariance leaves room for the noise. A
        covariance that rounding made indefinite beyond the noise is taken without its negative part."""
        assert self.covariance is not None
        diagonal = torch.diag_embed(self.noise_variance.double().reshape(*self.outputs.shape[:3], -1))
        covariance = self.covariance.double()
        total = (covariance + covariance.mT) / 2 + diagonal
        if not bool(total.isfinite().all()):
            raise FloatingPointError(f"the covariance of what is predicted is not finite: {REMEDY}")
        indefinite = torch.linalg.cholesky_ex(total).info > 0
        if not bool(indefinite.any()):
            return total
        values, vectors = torch.linalg.eigh((total - diagonal)[indefinite])
        total = total.clone()
        total[indefinite] = (vectors * values.clamp(min=0).unsqueeze(-2)) @ vectors.mT + diagonal[indefinite]
        return total


def _root(covariance: Tensor) -> Tensor:
    """Its lower triangular factor."""
    factor, info = torch.linalg.cholesky_ex(covariance)
    if bool((info > 0).any()):
        raise FloatingPointError(
            f"the covariance of what is predicted is not positive in double precision beside its noise: {REMEDY}"
        )
    return factor
