"""The ResNet whose posterior was sampled by full-batch HMC (Izmailov et al. 2021): filter response norm and swish.

Depth and widths are those of He et al. (2016) for CIFAR. Each convolution has a bias and is followed by filter response
norm with its threshold, then swish; shortcuts that change the shape are 1x1 convolutions with norm. Nothing in it
depends on other images of a batch, so that it has a posterior.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from .frn import FilterResponseNorm


class SwishBlock(nn.Module):
    """Two convolutions with norm, added to the input."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first, self.second = _layer(inputs, outputs, 3, stride), _layer(outputs, outputs, 3, 1)
        self.shortcut = nn.Identity() if stride == 1 and inputs == outputs else _layer(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.silu(self.shortcut(x) + self.second(F.silu(self.first(x))))


class SwishResNet(nn.Module):
    """A ResNet of 6n + 2 layers for images (B, 3, 32, 32), without batch statistics."""

    def __init__(self, depth: int = 20, outputs: int = 10) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"expected a depth of 6n + 2 (8, 14, 20, 32, 44, 56, 110), got {depth}")
        n, widths = (depth - 2) // 6, (16, 16, 32, 64)
        blocks = [
            SwishBlock(widths[stage if i == 0 else stage + 1], widths[stage + 1], 2 if stage and i == 0 else 1)
            for stage in range(3)
            for i in range(n)
        ]
        self.first = _layer(3, 16, 3, 1)
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.blocks(F.silu(self.first(x))).mean((-2, -1)))


def _layer(inputs: int, outputs: int, size: int, stride: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(inputs, outputs, size, stride, padding=size // 2), FilterResponseNorm(outputs))
