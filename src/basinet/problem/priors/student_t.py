"""Independent Student's t densities: energy = sum (nu + 1) / 2 log(1 + theta^2 / (nu scale^2))."""

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
class StudentT(Prior):
    """Heavy tails: theta = scale T, T of Student's t; most parameters small, a few large. df = 1 is Cauchy. `scale` is
    given as for Normal; a rule by fan gives this scale, not the standard deviation."""

    df: float = 3.0
    """Nu, degrees of freedom, positive."""
    scale: Scale = 1.0
    """The scale: a number, one per layer, or a rule by fan."""

    def __post_init__(self) -> None:
        if not (self.df > 0 and math.isfinite(self.df)):
            raise ValueError(f"expected positive, finite degrees of freedom df, got {self.df}")
        check_scale(self.scale, "scale")

    def energy(self, params: Params) -> Tensor:
        scales = scales_of(self.scale, params)
        logs = (torch.log1p((x / scales[n]).square() / self.df) for n, x in params.items())
        return 0.5 * (self.df + 1) * total(logs)

    def log_normaliser(self, params: Params) -> Tensor:
        scales, df = scales_of(self.scale, params), self.df
        beta = math.lgamma(df / 2) - math.lgamma((df + 1) / 2) + 0.5 * math.log(math.pi * df)
        return constant(sum(x.numel() * (beta + math.log(scales[n])) for n, x in params.items()), params)

    def sample(self, like: Params, noise: Noise) -> Params:
        scales = scales_of(self.scale, like)
        return {n: scales[n] * _standard(noise.split(n), x, self.df) for n, x in like.items()}

    def check(self, params: Params) -> None:
        check_layers(self.scale, params)


def _standard(noise: Noise, like: Tensor, df: float) -> Tensor:
    """Student's t as Box-Muller makes normals, sqrt(nu (u^(-2 / nu) - 1)) cos(2 pi v) (Bailey 1994)."""
    u, v = (noise.split(name).uniform(torch.empty_like(like, dtype=torch.float64)) for name in ("radius", "angle"))
    radius = (df * torch.expm1(-2 / df * torch.log1p(-u))).sqrt()  # 1 - u in (0, 1]
    return (radius * (2 * math.pi * v).cos()).to(like)
