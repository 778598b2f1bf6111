"""Real numbers whose noise the network predicts: y ~ N(mu, sigma^2), sigma = c (softplus(rho) + floor), where c is 1 or
learned.

With r = y - mu, s = c sigmoid(rho) and -log p = r^2 / (2 sigma^2) + log sigma + ..., the second derivatives are
1 / sigma^2 in mu; 2 r s / sigma^3 in mu and rho; (3 r^2 / sigma^4 - 1 / sigma^2) s^2 + (1 / sigma - r^2 / sigma^3)
s (1 - s / c) in rho. Their expectations are 1 / sigma^2, 0 and 2 s^2 / sigma^2 (Nix and Weigend 1994 introduced the
model).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributions import Distribution
from torch.nn.functional import softplus

from ...core.tree import Params
from ..distributions import Normal
from .blocks import block_diagonal
from .fitting import aligned, check_real, shape
from .likelihood import RealLikelihood
from .scales import scale_like


@dataclass(frozen=True, kw_only=True)
class Heteroscedastic(RealLikelihood):
    """D targets from 2D outputs on the last axis: the first D are means mu, the last D raw scales rho."""

    floor: float = 1e-3
    """Least standard deviation, in units of the target: keeps the density bounded."""
    learned: bool = False
    """Whether a factor c on all of the noise is learned, as an entry likelihood.log_factor of the params."""

    def __post_init__(self) -> None:
        if not (self.floor >= 0 and math.isfinite(self.floor)):
            raise ValueError(f"expected a finite floor of at least 0, got {self.floor}")

    def init(self) -> Params:
        return {"log_factor": torch.zeros(())} if self.learned else {}

    @property
    def spread(self) -> str | None:
        return "log_factor" if self.learned else None

    def distribution(self, outputs: Tensor, learned: Params) -> Distribution:
        mean, raw = _halves(outputs)
        return Normal(mean, self._factor(raw, learned) * (softplus(raw) + self.floor), validate_args=False)

    def hessian(self, outputs: Tensor, targets: Tensor | None, learned: Params) -> Tensor:
        mean, raw = _halves(outputs)
        factor, bend = self._factor(raw, learned), 1 - raw.sigmoid()
        sd, slope = factor * (softplus(raw) + self.floor), factor * raw.sigmoid()
        if targets is None:
            cross, square = torch.zeros_like(mean), 2 * (slope / sd).square()
        else:
            z = (aligned(mean, targets) - mean) / sd
            cross = 2 * z * slope / sd.square()
            square = (3 * z.square() - 1) * (slope / sd).square() + (1 - z.square()) / sd * slope * bend
        first = torch.cat([torch.diag_embed(sd**-2), torch.diag_embed(cross)], -1)
        second = torch.cat([torch.diag_embed(cross), torch.diag_embed(square)], -1)
        return block_diagonal(torch.cat([first, second], -2), tuple(outputs.shape[1:-1]))

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_real(self, _halves(outputs)[0], targets)

    def _factor(self, raw: Tensor, learned: Params) -> Tensor:
        return scale_like(raw, 1.0, learned["log_factor"] if self.learned else None)


def _halves(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Means and raw scales."""
    if outputs.dim() < 2 or outputs.shape[-1] % 2:
        raise ValueError(
            f"Heteroscedastic expects an even number of outputs on the last axis, a mean and a raw scale for each "
            f"target, got {shape('batch', outputs.shape[1:])}: end the network in twice as many outputs as targets"
        )
    mean, raw = outputs.chunk(2, -1)
    return mean, raw
