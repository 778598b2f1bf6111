"""What each place of a convolution sees."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor


def patches(x: Tensor, kernel: Sequence[int], stride: Any, dilation: Any, padding: Any) -> Tensor:
    """For images (B, channels, ...) of one to three axes: (B, channels x kernel, T), in one copy for all images.
    Stride, dilation and padding are as convolutions take them."""
    dims = len(kernel)
    strides, dilations = _each(stride, dims), _each(dilation, dims)
    if padding == "same":
        whole = [d * (k - 1) for d, k in zip(dilations, kernel)]
        sides = [side for w in reversed(whole) for side in (w // 2, w - w // 2)]
    else:
        sides = [p for p in reversed(_each(0 if padding == "valid" else padding, dims)) for _ in range(2)]
    x = F.pad(x, sides)
    for i in range(dims):  # (B, C, ..., window of each axis)
        span = dilations[i] * (kernel[i] - 1) + 1
        x = x.unfold(2 + i, span, strides[i])[..., :: dilations[i]]
    x = x.movedim(tuple(range(2, 2 + dims)), tuple(range(-dims, 0)))  # (B, C, *kernel, *places)
    return x.reshape(x.shape[0], x.shape[1] * math.prod(kernel), -1)


def _each(value: Any, dims: int) -> list[int]:
    return [value] * dims if isinstance(value, int) else list(value) * (dims if len(value) == 1 else 1)
