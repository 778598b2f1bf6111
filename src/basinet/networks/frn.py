"""Filter response normalisation: a norm layer without batch statistics (Singh & Krishnan 2020)."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class FilterResponseNorm(nn.Module):
    """max(gamma x / sqrt(mean_hw x^2 + eps) + beta, tau): norm and activation in one, for images (B, C, H, W)."""

    def __init__(self, channels: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(channels, 1, 1))
        self.bias = nn.Parameter(torch.zeros(channels, 1, 1))
        self.threshold = nn.Parameter(torch.zeros(channels, 1, 1))

    def reset_parameters(self) -> None:
        """Ones and zeros."""
        nn.init.ones_(self.weight)
        nn.init.zeros_(self.bias)
        nn.init.zeros_(self.threshold)

    def forward(self, x: Tensor) -> Tensor:
        # a factor for each plane, not for each pixel; in the type of x, since float32 parameters would make every pass
        # over images in bf16 twice as large; and relu for the maximum, whose derivative takes many passes
        factor = self.weight * torch.rsqrt(x.square().mean((-2, -1), keepdim=True) + self.eps)
        threshold, offset, factor = (v.to(x.dtype) for v in (self.threshold, self.bias - self.threshold, factor))
        return torch.addcmul(offset, x, factor).relu() + threshold
