"""Digital: less contrast, an elastic sheet, coarser pixels. (JPEG has its own file.)"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.noise import Noise
from .filters import blur, positions, sample
from .keyed import uniform


def contrast(x: Tensor, noise: Noise, keep: float) -> Tensor:
    """Brings each channel towards its mean, keeping a share of the distance."""
    mean = x.mean((2, 3), keepdim=True)
    return mean + keep * (x - mean)


def elastic(x: Tensor, noise: Noise, push: float, smooth: float, tilt: float) -> Tensor:
    """Pushes pixels along a smooth random field, and tilts the whole by a random affine map.

    All three are shares of the shorter side: `push` times a field that is uniform on [-1, 1] before a Gaussian blur of
    `smooth`; and three corners of a square around the middle, each moved by up to `tilt`.
    """
    side = min(x.shape[-2:])
    places = torch.stack(positions(x))  # (2, H, W)
    if push > 0:
        field = 2 * uniform(noise.split("push"), places.shape) - 1
        places = places + push * side * blur(field, smooth * side)  # (B, 2, H, W)
    middle = torch.tensor([(n - 1) / 2 for n in x.shape[-2:]], dtype=x.dtype, device=x.device)
    corners = side / 3 * torch.tensor([[1.0, 1.0], [1.0, -1.0], [-1.0, -1.0]], device=x.device)  # around the middle
    moved = corners + tilt * side * (2 * uniform(noise.split("tilt"), (3, 2)) - 1)  # (B, 3, 2)
    plane = torch.linalg.inv(F.pad(corners, (0, 1), value=1.0)) @ moved  # (B, 3, 2): linear part, then shift
    away = F.pad((places - middle[:, None, None]).movedim(-3, -1), (0, 1), value=1.0)  # (B?, H, W, 3)
    rows, columns = (away @ plane[:, None] + middle).unbind(-1)
    return sample(x, rows, columns, "reflection")


def pixelate(x: Tensor, noise: Noise, keep: float) -> Tensor:
    """Every pixel becomes the mean of its cell, of a grid of `keep` times the sides."""
    height, width = x.shape[-2:]
    return _cells(height, keep).to(x) @ x @ _cells(width, keep).to(x).T


def _cells(n: int, keep: float) -> Tensor:
    """The matrix (n, n) that takes means over cells, of unequal sizes where `keep` n does not divide n."""
    small = max(1, int(keep * n))
    cell = ((torch.arange(n) + 0.5) * small / n).long()
    same = (cell[:, None] == cell).float()
    return same / same.sum(1, keepdim=True)
