"""A narrow and a wide normal (Blundell et al. 2015): p = pi N(0, scale_1^2) + (1 - pi) N(0, scale_2^2) for each
parameter. There is no closed form of the divergence from a normal to it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.noise import Noise
from ...core.tree import Params
from .prior import Prior, constant, total


@dataclass(frozen=True, kw_only=True)
class ScaleMixture(Prior):
    """Spike and slab: parameters are either ordinary or close to zero. The paper searched pi in 1/4, 1/2, 3/4,
    scale_1 in exp(0, -1, -2) and scale_2 in exp(-6, -7, -8)."""

    pi: float = 0.5
    """Probability of the first component, between 0 and 1."""
    scale_1: float = 1.0
    """Standard deviation of the first component."""
    scale_2: float = 0.0025
    """Standard deviation of the second component."""

    def __post_init__(self) -> None:
        if not 0 < self.pi < 1:
            raise ValueError(f"expected a probability pi between 0 and 1, got {self.pi}: with one scale, use Normal")
        for s in (self.scale_1, self.scale_2):
            if not (s > 0 and math.isfinite(s)):
                raise ValueError(f"expected positive, finite prior standard deviations, got {s}")

    def energy(self, params: Params) -> Tensor:
        def log_density(x: Tensor) -> Tensor:
            first = math.log(self.pi / self.scale_1) - 0.5 * (x / self.scale_1).square()
            second = math.log((1 - self.pi) / self.scale_2) - 0.5 * (x / self.scale_2).square()
            return torch.logaddexp(first, second)

        return -total(log_density(x) for x in params.values())

    def log_normaliser(self, params: Params) -> Tensor:
        return constant(0.5 * math.log(2 * math.pi) * sum(x.numel() for x in params.values()), params)

    def sample(self, like: Params, noise: Noise) -> Params:
        z, which = noise.split("value").normal_params(like), noise.split("component")
        first = {n: which.split(n).bernoulli(self.pi, x) for n, x in like.items()}
        return {n: torch.where(first[n], self.scale_1 * z[n], self.scale_2 * z[n]) for n in like}
