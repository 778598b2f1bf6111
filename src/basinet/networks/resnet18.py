"""ResNet-18 for small images (He et al. 2016): four stages of two blocks, widths 64 to 512, convolved shortcuts.

The first convolution is 3x3 with stride 1 and nothing is pooled before the end, as papers on CIFAR have it.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, added to the input (through a 1x1 convolution where the shape changes)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        same = inputs == outputs and stride == 1
        self.shortcut = (
            nn.Identity()
            if same
            else nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
        )

    def forward(self, x: Tensor) -> Tensor:
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """ResNet-18 for images (B, 3, 32, 32); `width` is that of the first stage.

    >>> sum(p.numel() for p in ResNet18().parameters())
    11173962
    """

    def __init__(self, outputs: int = 10, width: int = 64) -> None:
        super().__init__()
        if width < 1:
            raise ValueError(f"expected a width of at least 1, got {width}")
        widths = (width, width, 2 * width, 4 * width, 8 * width)
        blocks = [
            BasicBlock(widths[stage + (i > 0)], widths[stage + 1], 2 if stage > 0 and i == 0 else 1)
            for stage in range(4)
            for i in range(2)
        ]
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.blocks = nn.Sequential(*blocks)
        self.linear = nn.Linear(8 * width, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(self.blocks(F.relu(self.bn1(self.conv1(x)))).mean((-2, -1)))
