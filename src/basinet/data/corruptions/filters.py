"""Filters and resampling of image batches (B, C, H, W): every kernel sums to one."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.noise import Noise
from .keyed import normal


def pixels(x: Tensor) -> float:
    """What one pixel of a 32 x 32 image is here: the shorter side over 32, at least 1."""
    return max(1.0, min(x.shape[-2:]) / 32)


def gaussian_kernel(sigma: float, reach: int | None = None) -> Tensor:
    """A normal density at the integers up to `reach` (4 sigma unless given), summing to one."""
    reach = max(1, math.ceil(4 * sigma)) if reach is None else reach
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1) / sigma) ** 2)
    return weights / weights.sum()


def disc_kernel(radius: float, smooth: float) -> Tensor:
    """A disc of pixels, its rim smoothed over the eight neighbours by a normal density of that width."""
    reach = math.floor(radius)
    line = torch.arange(-reach, reach + 1)
    disc = (line[:, None] ** 2 + line**2 <= radius**2).float()
    soft = gaussian_kernel(smooth, 1)
    kernel = F.conv2d(F.pad(disc, (2, 2, 2, 2))[None, None], (soft[:, None] * soft)[None, None])[0, 0]
    return kernel / kernel.sum()


def convolve(x: Tensor, kernel: Tensor) -> Tensor:
    """Every channel with one kernel of odd sides; what is outside the image is its edge."""
    rows, columns = kernel.shape
    padded = F.pad(x, (columns // 2, columns // 2, rows // 2, rows // 2), mode="replicate")
    out = F.conv2d(padded.flatten(0, 1)[:, None], kernel.to(x)[None, None])
    return out.reshape(x.shape)


def blur(x: Tensor, sigma: float) -> Tensor:
    """A Gaussian blur of `sigma` pixels, rows then columns."""
    kernel = gaussian_kernel(sigma)
    return convolve(convolve(x, kernel[:, None]), kernel[None, :])


def sample(x: Tensor, rows: Tensor, columns: Tensor, padding: str = "border") -> Tensor:
    """The images at real positions (B, H', W'), in pixels from the middle of the first, linear in between."""
    height, width = x.shape[-2:]
    grid = torch.stack(((2 * columns + 1) / width - 1, (2 * rows + 1) / height - 1), -1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode=padding, align_corners=False)


def positions(x: Tensor) -> tuple[Tensor, Tensor]:
    """Row and column of each pixel, (H, W) each."""
    height, width = x.shape[-2:]
    lines = [torch.arange(n, dtype=x.dtype, device=x.device) for n in (height, width)]
    rows, columns = torch.meshgrid(lines, indexing="ij")
    return rows, columns


def streak(x: Tensor, angle: Tensor, reach: float, sigma: float) -> Tensor:
    """Each image drawn out to one side along its own angle (B,), over `reach` pixels, weights falling as a normal's.

    Where `reach` exceeds 3 sigma the rest has no weight to speak of and is left out.
    """
    count = max(1, math.ceil(min(reach, 3 * sigma)))
    weights = torch.exp(-0.5 * (torch.arange(count + 1) / sigma) ** 2)
    weights = weights / weights.sum()
    rows, columns = positions(x)
    down, right = angle.sin()[:, None, None], angle.cos()[:, None, None]
    out = weights[0].item() * x
    for i in range(1, count + 1):
        out = out + weights[i].item() * sample(x, rows + i * down, columns + i * right, "reflection")
    return out


def zoom(x: Tensor, factor: float) -> Tensor:
    """The middle of each image, enlarged `factor` times to the image's size."""
    middle = [(n - 1) / 2 for n in x.shape[-2:]]
    rows, columns = (m + (p - m) / factor for m, p in zip(middle, positions(x)))
    return sample(x, rows.expand(len(x), -1, -1), columns.expand(len(x), -1, -1))


def grain(x: Tensor, noise: Noise) -> Tensor:
    """Standard normal fields (B, 1, H, W) whose grain is a pixel of a 32 x 32 image."""
    height, width = (max(1, round(n / pixels(x))) for n in x.shape[-2:])
    field = normal(noise, (1, height, width))
    return field if (height, width) == x.shape[-2:] else F.interpolate(field, x.shape[-2:], mode="nearest")
