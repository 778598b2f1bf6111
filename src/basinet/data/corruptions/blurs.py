"""Blur: a lens out of focus, frosted glass, a moving camera, a zooming one, and the Gaussian."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.noise import Noise
from .filters import blur, convolve, disc_kernel, pixels, positions, streak, zoom
from .keyed import uniform


def defocus(x: Tensor, noise: Noise, radius: float, smooth: float) -> Tensor:
    """Averages over a disc with a smoothed rim."""
    return convolve(x, disc_kernel(radius * pixels(x), smooth))


def glass(x: Tensor, noise: Noise, sigma: float, reach: float, times: int) -> Tensor:
    """Between two Gaussian blurs, every pixel takes the colour of one nearby, `times` over.

    It lies from `reach` above to `reach` - 1 below, and as far to the sides: with a reach of 1, as in the table, one
    pixel in four stays. All take their colour at once, from the image as it was before the pass.
    """
    reach = round(reach * pixels(x))
    height, width = x.shape[-2:]
    rows, columns = (p.long() for p in positions(x))
    x = blur(x, sigma * pixels(x))
    for i in range(times):
        step = (2 * reach * uniform(noise.split(i), (2, height, width))).long() - reach
        from_row = (rows + step[:, 0]).clamp(0, height - 1)
        from_column = (columns + step[:, 1]).clamp(0, width - 1)
        index = (from_row * width + from_column).flatten(1)[:, None].expand(-1, x.shape[1], -1)
        x = x.flatten(2).gather(2, index).reshape(x.shape)
    return blur(x, sigma * pixels(x))


def motion(x: Tensor, noise: Noise, reach: float, sigma: float) -> Tensor:
    """Draws the image out along an angle between -45 and 45 degrees."""
    angle = math.pi * (uniform(noise) / 2 - 1 / 4)
    return streak(x, angle, reach * pixels(x), sigma * pixels(x))


def zooms(x: Tensor, noise: Noise, most: float) -> Tensor:
    """The mean of the image and of itself enlarged by 0, 1, ... percent, up to a share of `most`."""
    steps = round(100 * most)
    return torch.stack([x, *(zoom(x, 1 + i / 100) for i in range(steps + 1))]).mean(0)


def gaussian(x: Tensor, noise: Noise, sigma: float) -> Tensor:
    """A Gaussian blur."""
    return blur(x, sigma * pixels(x))
