"""Scores of real-valued predictions against real targets.

Point predictions and bounds are (..., *targets.shape): any axes of members or subsets before those of the targets. A
Gaussian mixture has its K components on one leading axis: mean and sd (K, B) for targets (B,), or (K, B, D) for (B,
D), each of the D outputs by itself. Scores are per element for the CRPS and means over all elements otherwise.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from . import checks, spread

PAIRS_UP_TO = 512  # components: beyond, the pairs of the CRPS cost more than the grid of `spread`


def rmse(mean: Tensor, targets: Tensor) -> Tensor:
    """Root mean squared error, √((1/n) Σ (mean − target)²) over all n elements of the targets.

    >>> rmse(torch.tensor([[0.0, 0.0], [3.0, 4.0]]), torch.tensor([3.0, 4.0])).square().tolist()  # two members
    [12.5, 0.0]
    """
    checks.real("mean", mean, targets)
    return (mean - targets).square().mean(_axes(targets)).sqrt()


def mae(mean: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error, (1/n) Σ |mean − target| over all n elements of the targets.

    >>> mae(torch.tensor([[0.0, 0.0], [3.0, 5.0]]), torch.tensor([3.0, 4.0])).tolist()  # two members
    [3.5, 0.5]
    """
    checks.real("mean", mean, targets)
    return (mean - targets).abs().mean(_axes(targets))


def coverage(lower: Tensor, upper: Tensor, targets: Tensor) -> Tensor:
    """Share of targets with lower ≤ target ≤ upper, over all elements of the targets.

    >>> coverage(torch.zeros(4), torch.ones(4), torch.tensor([-0.5, 0.0, 0.5, 1.0])).item()
    0.75
    """
    _check_bounds(lower, upper, targets)
    held = ((lower <= targets) & (targets <= upper)).to(lower.dtype)
    return torch.where(lower.isnan() | upper.isnan() | targets.isnan(), torch.nan, held).mean(_axes(targets))


def interval_width(lower: Tensor, upper: Tensor, targets: Tensor) -> Tensor:
    """Mean width of intervals, (1/n) Σ (upper − lower), to be read beside their `coverage`: of two with equal
    coverage, the narrower is better.

    Of the targets only the shape counts: it tells the axes of examples and outputs, which are averaged, from those of
    members, which are kept.

    >>> interval_width(torch.zeros(2, 3), torch.tensor([[1.0, 1.0, 4.0], [0.0, 0.0, 3.0]]), torch.zeros(3)).tolist()
    [2.0, 1.0]
    """
    _check_bounds(lower, upper, targets)
    return (upper - lower).mean(_axes(targets))


def crps_gaussian(mean: Tensor, sd: Tensor, targets: Tensor) -> Tensor:
    """CRPS of Gaussians, σ (z (2Φ(z) − 1) + 2φ(z) − 1/√π) with z = (y − μ)/σ, per element; |y − μ| where σ = 0.

    The three tensors have one shape. At the target's best place, y = μ, the score is σ (√2 − 1)/√π:

    >>> score = crps_gaussian(torch.zeros(1), torch.full((1,), math.pi).sqrt(), torch.zeros(1))
    >>> round(score.item() + 1, 4)  # √2
    1.4142
    """
    if mean.shape != targets.shape or sd.shape != targets.shape:
        raise ValueError(
            f"expected mean, sd and targets of one shape, got {tuple(mean.shape)}, {tuple(sd.shape)} and "
            f"{tuple(targets.shape)}: expand a shared sd, squeeze a trailing axis of length 1"
        )
    _check_gaussian(mean, sd)
    return spread.distance(targets - mean, sd) - sd / math.sqrt(math.pi)


def crps_gaussian_mixture(mean: Tensor, sd: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """CRPS of Gaussian mixtures, ∫ (F(x) − 1[y ≤ x])² dx = Σ_i w_i A(y − μ_i, σ_i) − ½ E|X − X'|, per element.

    A(d, s) = E|d + sZ| in closed form, and X, X' are two independent draws (formulas in `spread`). `weights` (K,) sum
    to one; None weighs all K alike. Exact for up to 512 components. Beyond, ½ E|X − X'| is integrated on a grid with an
    error below 1e-4 of the mixture's sd: at most 2e-5 was measured on hard mixtures, 1e-7 on smooth ones. In float32
    rounding adds up to 1e-6 of the range from min(μ − 6σ) to max(μ + 6σ), which outliers may make long. Memory beyond
    arguments and result is a few tensors of 2²¹ numbers, or of one example of `mean` (K, D) where that is larger; to
    keep it so the score carries no gradient.

    Point masses (sd 0) at −1 and 1 with the target in their middle score 1 − ½ · 1:

    >>> crps_gaussian_mixture(torch.tensor([[-1.0], [1.0]]), torch.zeros(2, 1), torch.zeros(1)).item()
    0.5
    """
    _check_mixture(mean, sd, targets, weights)
    mean, sd, targets = mean.detach(), sd.detach(), targets.detach()
    k = len(mean)
    w = mean.new_full((k,), 1 / k) if weights is None else weights.detach().to(mean.dtype)
    half = spread.by_pairs if k <= PAIRS_UP_TO else spread.by_grid
    column = w.reshape(-1, *[1] * targets.ndim)
    rows = max(1, spread.NUMBERS // mean[:, 0].numel())
    scores = []
    for start in range(0, len(targets), rows):
        part = slice(start, start + rows)
        m, s = mean[:, part], sd[:, part]
        scores.append((column * spread.distance(targets[part] - m, s)).sum(0) - half(m, s, w))
    return torch.cat(scores)


def _axes(targets: Tensor) -> tuple[int, ...]:
    return tuple(range(-targets.ndim, 0))


def _check_bounds(lower: Tensor, upper: Tensor, targets: Tensor) -> None:
    checks.real("lower", lower, targets)
    if upper.shape != lower.shape:
        raise ValueError(
            f"expected upper of the shape of lower, got {tuple(upper.shape)} and {tuple(lower.shape)}: "
            "give one pair of bounds per prediction"
        )
    crossed = int((lower > upper).sum())
    if crossed:
        raise ValueError(
            f"expected lower <= upper everywhere, got {crossed} of {lower.numel()} the other way round: "
            "swap the two, or sort crossing quantiles"
        )


def _check_gaussian(mean: Tensor, sd: Tensor) -> None:
    checks.floats("mean", mean)
    if sd.dtype != mean.dtype:
        raise ValueError(f"expected mean and sd of one dtype, got {mean.dtype} and {sd.dtype}: convert one of them")
    if sd.numel() > 0 and float(sd.min()) < 0:
        raise ValueError(
            f"expected sd of at least 0, got {sd.min().item():.4g}: "
            "pass standard deviations, neither their logarithms nor raw outputs"
        )


def _check_mixture(mean: Tensor, sd: Tensor, targets: Tensor, weights: Tensor | None) -> None:
    if targets.ndim == 0 or targets.numel() == 0 or mean.ndim != targets.ndim + 1 or len(mean) == 0:
        raise ValueError(
            f"expected mean (K, B) and targets (B,), or (K, B, D) and (B, D), none of them empty, got "
            f"{tuple(mean.shape)} and {tuple(targets.shape)}: put all components on one leading axis"
        )
    if mean.shape[1:] != targets.shape or sd.shape != mean.shape:
        raise ValueError(
            f"expected mean and sd of shape (K, {', '.join(map(str, targets.shape))}) for targets of shape "
            f"{tuple(targets.shape)}, got {tuple(mean.shape)} and {tuple(sd.shape)}: "
            "expand a shared sd with sd.expand_as(mean), squeeze a trailing axis of length 1"
        )
    _check_gaussian(mean, sd)
    if weights is None:
        return
    if weights.shape != mean.shape[:1]:
        raise ValueError(
            f"expected weights of shape ({len(mean)},), one per component, got {tuple(weights.shape)}: "
            "the weights are shared by all examples"
        )
    if bool((weights < 0).any()) or not abs(float(weights.sum()) - 1) <= 1e-5:  # nor NaN
        raise ValueError(
            f"expected weights of at least 0 that sum to 1, got a least one of {weights.min().item():.4g} and a sum of "
            f"{weights.sum().item():.6g}: divide them by their sum"
        )
