"""How far each parameter spreads: variances within chains, pooled over them, for a diagonal mass matrix.

Within, since chains may be in different modes, whose distance says nothing about steps inside one. Estimates of few
draws are drawn towards their average.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

PRIOR = 5.0  # draws that the average counts for


class Scales(NamedTuple):
    """Running moments of each chain."""

    mean: Tensor  # (M, d)
    squares: Tensor  # (M, d), sums of squared deviations
    seen: Tensor  # (M,)

    @staticmethod
    def none(like: Tensor) -> Scales:
        """Of no draws; `like` is a position, (d,) of one chain or (M, d)."""
        zero = torch.zeros_like(like)
        return Scales(zero, zero.clone(), torch.zeros(like.shape[:-1], dtype=torch.float64, device=like.device))

    def add(self, position: Tensor, which: Tensor) -> Scales:
        """With the positions (M, d) of the chains in `which` (M,)."""
        count = self.seen + which
        share = torch.where(which, 1 / count.clamp(min=1), 0.0).to(position.dtype)[:, None]
        off = position - self.mean
        mean = self.mean + share * off
        squares = self.squares + torch.where(which[:, None], off * (position - mean), 0.0)
        return Scales(mean, squares, count)

    def variance(self) -> Tensor:
        """Of each parameter, the same for all chains, (M, d); 1 before there are two draws of a chain."""
        freedom = (self.seen - 1).clamp(min=0).sum().to(self.squares.dtype)
        pooled = self.squares.sum(0) / freedom.clamp(min=1)
        share = freedom / (freedom + PRIOR)
        shrunk = share * pooled + (1 - share) * pooled.mean()
        usable = (freedom > 0) & (shrunk > 0) & shrunk.isfinite()
        return torch.where(usable, shrunk, 1.0).expand_as(self.squares)
