"""Wide ResNets (Zagoruyko & Komodakis 2016): WRN-16-4, WRN-28-10 and their kin, with batch or filter response norm."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from .frn import FilterResponseNorm

Norm = Literal["batch", "filter"]


class WideBlock(nn.Module):
    """Norm, activation, convolution, twice, added to the input (through a 1x1 convolution where the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int, norm: Norm) -> None:
        super().__init__()
        self.norm1 = _norm(norm, inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = _norm(norm, outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        same = inputs == outputs and stride == 1
        self.shortcut = nn.Identity() if same else nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm1(x)
        shortcut = x if isinstance(self.shortcut, nn.Identity) else self.shortcut(y)
        return self.conv2(self.norm2(self.conv1(y))) + shortcut


class WideResNet(nn.Module):
    """WRN-`depth`-`width` for images (B, 3, 32, 32); `norm="filter"` has no batch statistics."""

    def __init__(self, depth: int = 16, width: int = 4, outputs: int = 10, norm: Norm = "batch") -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise ValueError(f"expected a depth of 6n + 4 (10, 16, 22, 28, 40), got {depth}")
        if norm not in ("batch", "filter"):
            raise ValueError(f"expected norm 'batch' or 'filter', got {norm!r}")
        n, widths = (depth - 4) // 6, (16, 16 * width, 32 * width, 64 * width)
        blocks: list[nn.Module] = []
        for stage in range(3):
            for i in range(n):
                inputs = widths[stage] if i == 0 else widths[stage + 1]
                blocks.append(WideBlock(inputs, widths[stage + 1], 2 if i == 0 and stage > 0 else 1, norm))
        self.first = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(*blocks)
        self.norm = _norm(norm, widths[3])
        self.linear = nn.Linear(widths[3], outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.norm(self.blocks(self.first(x))).mean((-2, -1)))


class _BatchNormReLU(nn.BatchNorm2d):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(super().forward(x))


def _norm(norm: Norm, channels: int) -> nn.Module:
    return _BatchNormReLU(channels) if norm == "batch" else FilterResponseNorm(channels)
