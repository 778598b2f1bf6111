"""Colours of image batches (B, 3, H, W): grey, hue-saturation-value and back, luma-chroma and back."""

from __future__ import annotations

import torch
from torch import Tensor

_LUMA = (0.299, 0.587, 0.114)  # of red, green and blue, ITU-R BT.601


def luma(x: Tensor) -> Tensor:
    """How light each pixel is, (B, 1, H, W)."""
    return x if x.shape[1] == 1 else sum(w * c for w, c in zip(_LUMA, x.split(1, 1)))


def paint(red: float, green: float, blue: float, like: Tensor) -> Tensor:
    """A colour as (1, C, 1, 1), its luma where images are grey."""
    colour = torch.tensor((red, green, blue), dtype=like.dtype, device=like.device)[None, :, None, None]
    return colour if like.shape[1] == 3 else luma(colour)


def to_hsv(x: Tensor) -> Tensor:
    """Hue in [0, 1), saturation, value; hue 0 where there is no colour."""
    value, which = x.max(1)
    chroma = value - x.amin(1)
    red, green, blue = x.unbind(1)
    safe = torch.where(chroma > 0, chroma, 1.0)
    sixth = torch.where(
        which == 0, (green - blue) / safe, torch.where(which == 1, 2 + (blue - red) / safe, 4 + (red - green) / safe)
    )
    saturation = chroma / torch.where(value > 0, value, 1.0)
    return torch.stack(((sixth / 6) % 1, saturation, value), 1)


def from_hsv(x: Tensor) -> Tensor:
    """Red, green, blue."""
    hue, saturation, value = x.unbind(1)
    channels = []
    for n in (5, 3, 1):
        k = (n + 6 * hue) % 6
        channels.append(value - value * saturation * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, 1)


def to_ycc(x: Tensor) -> tuple[Tensor, Tensor]:
    """Luma (B, 1, H, W), and the two chromas (B, 2, H, W) around 0."""
    y = luma(x)
    blue, red = x[:, 2:] - y, x[:, :1] - y
    return y, torch.cat((blue / (2 - 2 * _LUMA[2]), red / (2 - 2 * _LUMA[0])), 1)


def from_ycc(y: Tensor, chroma: Tensor) -> Tensor:
    """Red, green, blue."""
    blue = y + (2 - 2 * _LUMA[2]) * chroma[:, :1]
    red = y + (2 - 2 * _LUMA[0]) * chroma[:, 1:]
    green = (y - _LUMA[0] * red - _LUMA[2] * blue) / _LUMA[1]
    return torch.cat((red, green, blue), 1)
