"""How far each parameter spreads: variances within chains, pooled over them, for a diagonal mass matrix.

Within, since chains may be in different modes, whose distance says nothing about steps inside one. Estimates of few
draws are drawn towards their geometric mean: the arithmetic one is that of the widest alone, and would make narrow
parameters many times too wide, with steps that are as many times too small.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

PRIOR = 5.0  # draws that the average counts for
LEAST = 1e-12  # of the largest variance: one that stood still


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

    def pooled(self) -> Tensor:
        """Variances within chains as they are, (d,); 0 before there are two draws of a chain."""
        return self.squares.sum(0) / self._freedom.clamp(min=1)

    def variance(self) -> Tensor:
        """Of each parameter, the same for all chains, (M, d); 1 before there are two draws of a chain."""
        pooled, freedom = self.pooled(), self._freedom
        share = freedom / (freedom + PRIOR)
        logs = pooled.clamp(min=LEAST * pooled.max()).log()
        shrunk = (share * logs + (1 - share) * logs.mean()).exp()
        usable = (freedom > 0) & (shrunk > 0) & shrunk.isfinite()
        return torch.where(usable, shrunk, 1.0).expand_as(self.squares)

    @property
    def _freedom(self) -> Tensor:
        return (self.seen - 1).clamp(min=0).sum().to(self.squares.dtype)
