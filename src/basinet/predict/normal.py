"""Predictions of real numbers in closed form: outputs that are Gaussian, and Gaussian noise on them."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from ..core.noise import Noise
from .predictive import weighted
from .real import RealPredictive


@dataclass(frozen=True, eq=False)
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
    def noise(self) -> Tensor:
        """The variance of the noise, (M, S, B, *event)."""
        return self._numbers.distribution(self.outputs, self.learned).variance

    @cached_property
    def components(self) -> Normal:
        return Normal(self.outputs, (self.noise + self.spread).sqrt(), validate_args=False)

    @cached_property
    def aleatoric(self) -> Tensor:
        return weighted(self.mass, self.noise)

    @cached_property
    def within(self) -> Tensor:
        means = weighted(self.mass, (self.outputs - self.member_mean.unsqueeze(1)).square())
        return means + weighted(self.mass, self.spread)

    def component_quantile(self, q: float) -> Tensor:
        wide = Normal(self.outputs.double(), self.components.scale.double(), validate_args=False)
        return wide.icdf(torch.full((), q, dtype=torch.float64)).to(self.outputs.dtype)

    def log_joint(self, targets: Tensor, mask: Tensor | None = None) -> Tensor:
        y = self.aligned(targets)
        gap = (y - self.outputs).reshape(*self.outputs.shape[:3], -1)
        covariance = self._total()
        count: Any = gap.shape[-1]
        if mask is not None:  # elements that do not count become independent, with nothing to explain
            here = mask.to(gap.device).reshape(gap.shape[2:]) > 0  # a joint density has no exponents of elements
            both = here.unsqueeze(-1) & here.unsqueeze(-2)
            eye = torch.eye(gap.shape[-1], dtype=gap.dtype, device=gap.device)
            gap, covariance, count = torch.where(here, gap, 0.0), torch.where(both, covariance, eye), here.sum(-1)
        factor = torch.linalg.cholesky(covariance)
        z = torch.linalg.solve_triangular(factor, gap.unsqueeze(-1), upper=False).squeeze(-1)
        volume = factor.diagonal(dim1=-2, dim2=-1).log().sum(-1)
        return -0.5 * z.square().sum(-1) - volume - 0.5 * count * math.log(2 * math.pi)

    def drawn(self, m: Tensor, s: Tensor, b: Tensor, noise: Noise) -> Tensor:
        outputs = self.outputs[m, s, b]
        z = noise.normal(outputs.reshape(*m.shape, -1, 1))
        return outputs + (torch.linalg.cholesky(self._total())[m, s, b] @ z).reshape(outputs.shape)

    def some(self, index: Any) -> dict[str, Any]:
        assert self.covariance is not None
        return super().some(index) | {"covariance": self.covariance[index]}

    def _total(self) -> Tensor:
        """(M, S, B, E, E), noise included."""
        noise = torch.diag_embed(self.noise.reshape(*self.outputs.shape[:3], -1))
        assert self.covariance is not None
        return self.covariance + noise
