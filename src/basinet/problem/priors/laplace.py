"""Independent Laplace densities: log p = -sum |theta| / scale - log(2 scale). Its mode is the lasso's."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.noise import Noise
from ...core.tree import Params
from .prior import Prior, constant, total
from .scales import Scale, check_layers, check_scale, scales_of


@dataclass(frozen=True, kw_only=True)
class Laplace(Prior):
    """Sparse parameters: theta ~ Laplace(0, scale), of variance 2 scale^2. `scale` is given as for Normal; a rule by
    fan gives this scale, not the standard deviation."""

    scale: Scale = 1.0
    """Mean of |theta|: a number, one per layer, or a rule by fan."""

    def __post_init__(self) -> None:
        check_scale(self.scale, "scale")

    def energy(self, params: Params) -> Tensor:
        scales = scales_of(self.scale, params)
        return total(x.abs() / scales[n] for n, x in params.items())

    def log_normaliser(self, params: Params) -> Tensor:
        scales = scales_of(self.scale, params)
        return constant(sum(x.numel() * math.log(2 * scales[n]) for n, x in params.items()), params)

    def sample(self, like: Params, noise: Noise) -> Params:
        scales = scales_of(self.scale, like)
        return {n: scales[n] * _standard(noise.split(n), x) for n, x in like.items()}

    def check(self, params: Params) -> None:
        check_layers(self.scale, params)


def _standard(noise: Noise, like: Tensor) -> Tensor:
    """The difference of two exponential draws."""
    a, b = (noise.split(name).uniform(torch.empty_like(like, dtype=torch.float64)) for name in ("plus", "minus"))
    return (torch.log1p(-b) - torch.log1p(-a)).to(like)
