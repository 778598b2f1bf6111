"""A last linear layer that also gives the variance of each output under a normal distribution of its weights.

z_c = w_c' a,   v_c = |L_c' a|^2   with w_c ~ N(., L_c L_c') and a 1 behind what it is given, where there is a bias
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FACTOR = "factor"  # the buffer that holds L, (C, D, D)


class Widened(nn.Module):
    """A linear layer whose output is means and variances, one behind the other."""

    weight: Tensor
    bias: Any  # Tensor | None
    factor: Tensor

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer(FACTOR, torch.empty(0, dtype=layer.weight.dtype))

    def forward(self, x: Tensor) -> Tensor:
        mean = F.linear(x, self.weight, self.bias)
        given = x if self.bias is None else torch.cat((x, torch.ones_like(x[..., :1])), -1)
        spread = torch.einsum("...i,cij->...cj", given, self.factor)
        return torch.cat((mean, spread.square().sum(-1)), -1)
