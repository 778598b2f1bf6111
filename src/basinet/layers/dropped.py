"""Dropout before a layer: of a fixed rate, or of one that is learned (concrete dropout, Gal et al. 2017).

fixed    a * mask / (1 - p),    mask 0 with probability p for each element of what the layer is given
learned  in training a * (1 - z) / (1 - p),   z = sigmoid((logit p + logit u) / 0.1),   u uniform: a mask through
         which gradients reach p; in prediction the mask itself
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .perturbed import FUNCTIONS, SETTINGS

TEMPERATURE = 0.1  # of the relaxed mask, as published
RATE = "rate"  # the buffer that holds a learned rate


def takes_dropout(layer: nn.Module) -> bool:
    """Whether dropout can be put before a layer: linear layers and convolutions."""
    return type(layer) in FUNCTIONS and getattr(layer, "padding_mode", "zeros") == "zeros"


class Dropped(nn.Module):
    """A linear layer or convolution with dropout on what it is given."""

    weight: Tensor
    bias: Any  # Tensor | None
    rate: Tensor

    def __init__(self, layer: nn.Module, rate: float, learned: bool) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias  # type: ignore[assignment]
        self.function: Any = FUNCTIONS[type(layer)]
        self.settings = () if isinstance(layer, nn.Linear) else tuple(getattr(layer, name) for name in SETTINGS)
        self.p, self.learned = rate, learned
        if learned:
            self.register_buffer(RATE, torch.full((), rate, dtype=layer.weight.dtype))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self._drop(x), self.weight, self.bias, *self.settings)

    def _drop(self, x: Tensor) -> Tensor:
        if not self.learned:
            return F.dropout(x, self.p, training=True)
        u = torch.rand_like(x)
        if not self.training:
            return torch.where(u < self.rate, 0.0, x / (1 - self.rate))
        tiny = torch.finfo(x.dtype).eps
        odds = torch.logit(self.rate) + torch.logit(u, eps=tiny)
        return x * (1 - torch.sigmoid(odds / TEMPERATURE)) / (1 - self.rate)

    def extra_repr(self) -> str:
        return f"{self.function.__name__}, {'learned' if self.learned else f'p={self.p}'}"
