"""The ResNets of He et al. (2016) for CIFAR: 6n + 2 layers, widths 16, 32, 64, shortcuts without parameters (option A).

Parameter names are those of the published weights (conv1, bn1, layer1.0.conv1 ..., linear), so `load_state_dict` takes
them with `strict=False`, since those files lack `num_batches_tracked`.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, and a shortcut that skips pixels and pads channels with zeros."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.stride, self.extra = stride, outputs - inputs

    def _get_name(self) -> str:
        return "Block"  # how it prints: pools and run folders compare networks by that

    def forward(self, x: Tensor) -> Tensor:
        shortcut = x
        if self.extra or self.stride > 1:
            before = self.extra // 2
            shortcut = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.extra - before))
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + shortcut)


class ResNet(nn.Module):
    """A CIFAR ResNet of 6n + 2 layers for images (B, 3, 32, 32)."""

    def __init__(self, depth: int = 20, outputs: int = 10) -> None:
        super().__init__()
        if depth < 8 or (depth - 2) % 6:
            raise ValueError(f"expected a depth of 6n + 2 (8, 14, 20, 32, 44, 56, 110), got {depth}")
        n = (depth - 2) // 6
        self.conv1 = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(16)
        self.layer1 = nn.Sequential(*(ResidualBlock(16, 16, 1) for _ in range(n)))
        self.layer2 = nn.Sequential(ResidualBlock(16, 32, 2), *(ResidualBlock(32, 32, 1) for _ in range(n - 1)))
        self.layer3 = nn.Sequential(ResidualBlock(32, 64, 2), *(ResidualBlock(64, 64, 1) for _ in range(n - 1)))
        self.linear = nn.Linear(64, outputs)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.linear(x.mean((-2, -1)))
