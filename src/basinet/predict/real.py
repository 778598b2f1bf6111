"""Predictions of real numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .numbers import NumberPredictive


@dataclass(frozen=True, eq=False, repr=False)
class RealPredictive(NumberPredictive):
    """The mixture of the samples' densities. Its quantiles are found by bisection of the distribution function."""

    def search(self, q: float, low: Tensor, high: Tensor) -> Tensor:
        for _ in range(100):
            middle = (low + high) / 2
            right = self.cdf(middle) < q
            low, high = torch.where(right, middle, low), torch.where(right, high, middle)
            if bool(((high - low) <= 4 * torch.finfo(low.dtype).eps * middle.abs()).all()):
                break
        return (low + high) / 2
