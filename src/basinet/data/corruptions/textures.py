"""Textures made from noise: the plasma of fog, and crystals of ice."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.noise import Noise
from .filters import pixels, positions, sample
from .keyed import uniform


def plasma(x: Tensor, noise: Noise, decay: float) -> Tensor:
    """Plasma fractals (B, 1, H, W) from 0 to 1 by diamonds and squares on a torus.

    Each level halves the distance between points: the middle of a square is the mean of its corners plus noise, the
    middle of an edge the mean of the four points around it plus noise, which is `decay`^2 times weaker a level.
    """
    height, width = x.shape[-2:]
    field = torch.zeros(len(x), 1, 1, device=x.device)
    levels = max(1, math.ceil(math.log2(max(height, width))))
    for level in range(levels):
        n = 2**level
        u = 2 * uniform(noise.split(level), (3, n, n)) - 1
        u = u * decay ** (-2 * level)
        right, down = field.roll(-1, 2), field.roll(-1, 1)
        middle = (field + right + down + right.roll(-1, 1)) / 4 + u[:, 0]
        top = (field + right + middle + middle.roll(1, 1)) / 4 + u[:, 1]
        left = (field + down + middle + middle.roll(1, 2)) / 4 + u[:, 2]
        rows = torch.stack((torch.stack((field, top), -1), torch.stack((left, middle), -1)), 2)  # (B, n, 2, n, 2)
        field = rows.reshape(len(x), 2 * n, 2 * n)
    return stretched(field)[:, None, :height, :width]


def crystals(x: Tensor, noise: Noise) -> Tensor:
    """Ice (B, 1, H, W) from 0 to 1: thin needles in three directions, on patches of a plasma fractal."""
    cover = plasma(x, noise.split("cover"), 1.4)
    rows, columns = positions(x)
    needles = torch.zeros_like(cover)
    for i in range(3):
        key = noise.split(i)
        angle = math.pi / 3 * (uniform(key.split("angle")) + i)[:, None, None]
        line = (uniform(key.split("seeds"), cover.shape[1:]) < 0.1 / pixels(x)).to(x.dtype)
        for level in range(round(math.log2(8 * pixels(x)))):  # each doubles the length
            step = 2**level
            line = line + sample(line, rows + step * angle.sin(), columns + step * angle.cos(), "reflection")
        needles = needles + line
    needles = stretched(needles[:, 0])[:, None]
    return (0.1 + 0.6 * cover + 0.7 * needles * cover).clamp(0, 1)


def stretched(field: Tensor) -> Tensor:
    """Fields (B, H, W), each from 0 to 1."""
    low, high = field.amin((1, 2), keepdim=True), field.amax((1, 2), keepdim=True)
    return (field - low) / (high - low).clamp_min(1e-6)
