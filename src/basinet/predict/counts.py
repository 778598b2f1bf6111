"""Predictions of counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .numbers import NumberPredictive


@dataclass(frozen=True, eq=False, repr=False)
class CountPredictive(NumberPredictive):
    """The mixture of the samples' probabilities. Quantiles are whole numbers, so that a central interval holds its
    level or more."""

    def search(self, q: float, low: Tensor, high: Tensor) -> Tensor:
        low = low - 1  # P(target <= low) < q <= P(target <= high)
        middle = ((low + high) / 2).floor()
        while bool(((low < middle) & (middle < high)).any()):
            below, inside = self.cdf(middle) < q, (low < middle) & (middle < high)
            low, high = torch.where(inside & below, middle, low), torch.where(inside & ~below, middle, high)
            middle = ((low + high) / 2).floor()
        return high
