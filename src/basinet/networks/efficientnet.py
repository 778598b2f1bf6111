"""EfficientNet-Lite (after Tan and Le 2019, for phones): ReLU6, no squeeze-and-excitation; images (B, 3, H, W).

Parameter names are those of the published weights (_conv_stem, _blocks.0._depthwise_conv, ..., _fc), which
`with_weights` reads. Padding is TensorFlow's "SAME": where a stride leaves a rest, one pixel more on the right and
below. Lite0 has 4,652,008 parameters and was trained on pixels (p - 127) / 128 at 224 x 224.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch.nn.functional as F
from torch import Tensor, nn


class Stage(NamedTuple):
    """Blocks of one width; the first of them has the stride."""

    blocks: int
    kernel: int
    expand: int  # how many times wider the block is inside
    outputs: int
    stride: int


LITE0 = (
    Stage(1, 3, 1, 16, 1),
    Stage(2, 3, 6, 24, 2),
    Stage(2, 5, 6, 40, 2),
    Stage(3, 3, 6, 80, 2),
    Stage(3, 5, 6, 112, 1),
    Stage(4, 5, 6, 192, 2),
    Stage(1, 3, 6, 320, 1),
)


class MobileBlock(nn.Module):
    """Widens, filters each channel by itself, narrows; the input is added where it has the shape of the output."""

    def __init__(self, inputs: int, outputs: int, kernel: int, expand: int, stride: int) -> None:
        super().__init__()
        inside = inputs * expand
        if expand > 1:
            self._expand_conv = nn.Conv2d(inputs, inside, 1, bias=False)
            self._bn0 = _norm(inside)
        self._depthwise_conv = Same(inside, inside, kernel, stride, groups=inside)
        self._bn1 = _norm(inside)
        self._project_conv = nn.Conv2d(inside, outputs, 1, bias=False)
        self._bn2 = _norm(outputs)
        self.widens, self.skips = expand > 1, stride == 1 and inputs == outputs

    def _get_name(self) -> str:
        return "Block"  # how it prints: pools and run folders compare networks by that

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu6(self._bn0(self._expand_conv(x))) if self.widens else x
        y = F.relu6(self._bn1(self._depthwise_conv(y)))
        y = self._bn2(self._project_conv(y))
        return x + y if self.skips else y


class EfficientNetLite(nn.Module):
    """A stem, stages of blocks, a head, and a dense layer; by default Lite0 for the 1,000 classes of ImageNet."""

    def __init__(self, outputs: int = 1000, stages: Sequence[Stage] = LITE0, stem: int = 32, head: int = 1280) -> None:
        super().__init__()
        self._conv_stem = Same(3, stem, 3, stride=2)
        self._bn0 = _norm(stem)
        blocks, width = [], stem
        for stage in stages:
            for i in range(stage.blocks):
                stride = stage.stride if i == 0 else 1
                blocks.append(MobileBlock(width, stage.outputs, stage.kernel, stage.expand, stride))
                width = stage.outputs
        self._blocks = nn.ModuleList(blocks)
        self._conv_head = nn.Conv2d(width, head, 1, bias=False)
        self._bn1 = _norm(head)
        self._dropout = nn.Dropout(0.2)
        self._fc = nn.Linear(head, outputs)

    def forward(self, x: Tensor) -> Tensor:
        return self._fc(self._dropout(self.features(x)))

    def features(self, x: Tensor) -> Tensor:
        """What the dense layer is given, (B, head)."""
        x = F.relu6(self._bn0(self._conv_stem(x)))
        for block in self._blocks:
            x = block(x)
        return F.relu6(self._bn1(self._conv_head(x))).mean((-2, -1))


class Same(nn.Conv2d):
    """A convolution whose output has one place for each `stride` pixels, whatever their number."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1) -> None:
        super().__init__(inputs, outputs, kernel, stride, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        sides = []
        for size in (x.shape[-1], x.shape[-2]):
            k, s = self.kernel_size[0], self.stride[0]
            missing = max(0, (-(-size // s) - 1) * s + k - size)
            sides += [missing // 2, missing - missing // 2]
        return F.conv2d(F.pad(x, sides), self.weight, None, self.stride, groups=self.groups)


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3, momentum=0.01)
