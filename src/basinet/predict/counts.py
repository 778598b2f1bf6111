"""Predictions of counts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .numbers import NumberPredictive


@dataclass(frozen=True, eq=False)
class CountPredictive(NumberPredictive):
    """The mixture of the samples' probabilities. Quantiles are whole numbers, so that a central interval holds its
    level or more."""

    def search(self, q: float, low: Tensor, high: Tensor) -> Tensor:
        low = low - 1  # P(target <= low) < q <= P(target <= high)
        while bool((high - low > 1).any()):
            middle = ((low + high) / 2).floor()
            below = (self.cdf(middle) < q) & (high - low > 1)
            low, high = torch.where(below, middle, low), torch.where(~below & (high - low > 1), middle, high)
        return high
