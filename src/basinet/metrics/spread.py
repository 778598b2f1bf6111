"""Half the mean distance between two draws of a Gaussian mixture, ½ E|X − X'|: the part of its CRPS without the target.

Components are on the leading axis: mean and sd (K, ...), weights (K,); the result is elementwise, of shape (...).

`by_pairs` is exact: with A(d, s) = E|d + sZ| = d erf(d / s√2) + s √(2/π) exp(−d²/2s²),

    ½ E|X − X'| = ½ Σ_ij w_i w_j A(μ_i − μ_j, √(σ_i² + σ_j²))        (Grimit et al. 2006).

`by_grid` takes K · 257 evaluations in place of K² / 2. It integrates ½ E|X − X'| = ∫ F(1 − F) dx over 256 cells of each
element's own: 128 borders at quantiles of points spread over the components within 4 sd, and 129 equally spaced
from min(μ − 6σ) to max(μ + 6σ). The integral of F over a cell of width h is known, E max(x − X, 0) being its
antiderivative, and with it the cell's mean F̄. Since F rises from F₀ to F₁, the cell contributes h (F̄(1 − F̄) − v)
with 0 ≤ v ≤ (F̄ − F₀)(F₁ − F̄); a third of that upper end is used, which is v for a straight F. So the error is of
fourth order in h where F is smooth, and at most h ΔF² / 6 per cell where it is not (components far narrower than a
cell).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

NUMBERS = 2**21  # of one temporary tensor: 8 MiB in float32
_CELLS = 128  # of either kind: tests/metrics/test_crps.py measures the error they leave
_POINTS = 512  # that propose where the quantiles are


def distance(gap: Tensor, sd: Tensor) -> Tensor:
    """A(gap, sd) = E|gap + sd Z| for a standard normal Z; |gap| where sd is 0."""
    z = gap / sd.clamp_min(torch.finfo(sd.dtype).tiny)
    return gap * torch.erf(z / math.sqrt(2)) + sd * (math.sqrt(2 / math.pi) * torch.exp(-0.5 * z * z))


def by_pairs(mean: Tensor, sd: Tensor, weights: Tensor) -> Tensor:
    """½ E|X − X'| from all pairs of components, as many at a time as the memory allows."""
    half, variance = torch.zeros_like(mean[0]), sd * sd
    step = max(1, NUMBERS // mean.numel())
    for start in range(0, len(mean), step):
        here, rest = slice(start, start + step), slice(start, None)
        gap = mean[here].unsqueeze(1) - mean[rest]  # (step, K - start, ...)
        pair = distance(gap, (variance[here].unsqueeze(1) + variance[rest]).sqrt())
        once, later = weights[here], weights[start + step :]  # pairs with a later component stand for two
        w = once.unsqueeze(1) * torch.cat((once, 2 * later))
        half = half + 0.5 * (w.reshape(*w.shape, *[1] * half.ndim) * pair).sum((0, 1))
    return half


def by_grid(mean: Tensor, sd: Tensor, weights: Tensor) -> Tensor:
    """½ E|X − X'| by integration of F(1 − F) over 256 cells."""
    info = torch.finfo(mean.dtype)
    mean = mean - (_column(weights, mean) * mean).sum(0)  # positions are differences, however far from 0 all means are
    low, high = (mean - 6 * sd).amin(0), (mean + 6 * sd).amax(0)
    sd = torch.maximum(sd, 8 * info.eps * (high - low) + info.tiny)  # wide enough for borders inside a point mass
    border = _borders(mean, sd, weights, low, high)  # (257, ...)

    below, area = torch.zeros_like(border), torch.zeros_like(border)  # F and its antiderivative at the borders
    step = max(1, NUMBERS // border.numel())
    for start in range(0, len(mean), step):
        part = slice(start, start + step)
        gap, s = border - mean[part].unsqueeze(1), sd[part].unsqueeze(1)  # (step, 257, ...)
        z, w = gap / s, _column(weights[part], gap)
        cdf = 0.5 + 0.5 * torch.erf(z / math.sqrt(2))
        below = below + (w * cdf).sum(0)
        area = area + (w * (gap * cdf + s * (torch.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)))).sum(0)

    width, first, last = border.diff(dim=0), below[:-1], below[1:]
    average = (area.diff(dim=0) / width.clamp_min(info.tiny)).clamp(first, last)
    return (width * (average * (1 - average) - (average - first) * (last - average) / 3)).sum(0)


def _borders(mean: Tensor, sd: Tensor, weights: Tensor, low: Tensor, high: Tensor) -> Tensor:
    """128 quantiles of proposed points and 129 equal steps from low to high, sorted: (257, ...)."""
    u, v = (_sequence(step, mean) for step in (0.7548776662466927, 0.5698402909980532))  # even in the square
    pick = torch.searchsorted(weights.cumsum(0), u).clamp_max(len(weights) - 1)
    z = 8 * v - 4
    points = (mean[pick] + _column(z, mean) * sd[pick]).sort(0).values
    every = _POINTS // _CELLS
    steps = torch.arange(_CELLS + 1, device=mean.device).to(mean.dtype) / _CELLS
    return torch.cat((points[every // 2 :: every], low + _column(steps, mean) * (high - low))).sort(0).values


def _sequence(step: float, like: Tensor) -> Tensor:
    """Multiples of an irrational number modulo 1: as even as a grid, without its period."""
    return torch.tensor([n * step % 1 for n in range(1, _POINTS + 1)], dtype=like.dtype, device=like.device)


def _column(vector: Tensor, like: Tensor) -> Tensor:
    """A vector over the first axis of `like`, with an axis of length 1 for each of the others."""
    return vector.reshape(-1, *[1] * (like.ndim - 1))
