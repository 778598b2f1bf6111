"""Real numbers with heavy-tailed noise: y = f + s T, T of Student's t with nu degrees of freedom.

-log p = (nu + 1) / 2 log(1 + z^2 / nu) + log s + ..., z = (y - f) / s. Its second derivative in f,
(nu + 1) (nu - z^2) / (s^2 (nu + z^2)^2), is negative for outliers; its expectation is (nu + 1) / ((nu + 3) s^2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution

from ...core.tree import Params
from .. import distributions
from .blocks import diagonal
from .fitting import aligned, check_real
from .likelihood import RealLikelihood
from .scales import Scale, check_scale_fits, checked_scale, log_scale, scale_like


@dataclass(frozen=True, kw_only=True)
class StudentT(RealLikelihood):
    """Robust regression: targets far from the outputs pull less than under a Gaussian."""

    df: float = 4.0
    """Nu, degrees of freedom; over 2, where the variance s^2 nu / (nu - 2) exists."""
    scale: Scale = 1.0
    """s in units of the target: a number, or one per output; the start if learned."""
    learned: bool = False
    """Whether the scale is learned, as an entry likelihood.log_scale of the params."""

    def __post_init__(self) -> None:
        if not (self.df > 2 and math.isfinite(self.df)):
            raise ValueError(
                f"expected finite degrees of freedom df > 2, where the variance exists, got {self.df}: from about a "
                "thousand on use Gaussian, which is nearly the same"
            )
        object.__setattr__(self, "scale", checked_scale(self.scale, "noise scale"))

    def init(self) -> Params:
        return {"log_scale": log_scale(self.scale)} if self.learned else {}

    @property
    def spread(self) -> str | None:
        return "log_scale" if self.learned else None

    def distribution(self, outputs: Tensor, learned: Params) -> Distribution:
        df = torch.full((), self.df, dtype=outputs.dtype, device=outputs.device)
        return distributions.StudentT(df, outputs, self._scale(outputs, learned), validate_args=False)

    def hessian(self, outputs: Tensor, targets: Tensor | None, learned: Params) -> Tensor:
        scale, df = self._scale(outputs, learned), self.df
        if targets is None:
            return diagonal((df + 1) / (df + 3) / scale.square())
        square = ((aligned(outputs, targets) - outputs) / scale).square()
        return diagonal((df + 1) * (df - square) / (df + square).square() / scale.square())

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_real(self, outputs, targets)
        check_scale_fits("StudentT", self.scale, outputs)

    def _scale(self, outputs: Tensor, learned: Params) -> Tensor:
        return scale_like(outputs, self.scale, learned["log_scale"] if self.learned else None)
