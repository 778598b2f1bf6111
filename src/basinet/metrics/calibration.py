"""Calibration errors of class probabilities beside `ece`: bins of equal mass, and every class by itself.

Predictions are (..., B, C) and targets (B,), as in `classification`; the errors keep the leading axes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from . import binning, checks
from .classification import Spacing, ece


def adaptive_ece(probs: Tensor, targets: Tensor, bins: int = 15) -> Tensor:
    """Calibration error of the top class over bins with equally many examples: `ece` with `spacing="mass"`.

    It resolves the range where the confidences are, where equal widths would put nearly all of a confident network's
    examples into one bin (Nguyen & O'Connor 2015). Bins are runs of the sorted confidences, sizes differing by at most
    one; equal confidences keep the order of the data.

    Confidences 0.9 and 0.7, right and wrong: two bins are off by 0.1 and 0.7, their mean is 0.4.

    >>> round(adaptive_ece(torch.tensor([[0.9, 0.1], [0.7, 0.3]]), torch.tensor([0, 1]), bins=2).item(), 4)
    0.4
    """
    return ece(probs, targets, bins, spacing="mass")


def classwise_ece(probs: Tensor, targets: Tensor, bins: int = 15, spacing: Spacing = "width") -> Tensor:
    """Calibration error of every class, (1/C) Σ_c Σ_k (n_kc / B) |p̄_kc − ȳ_kc| (Kull et al. 2019; Nixon et al. 2019).

    For each class c, all B probabilities p_b(c) are put into bins k, also those of classes that are not on top; p̄_kc is
    their mean in a bin and ȳ_kc the share of its n_kc examples whose target is c. Bins are those of `reliability`: of
    equal width, (lo, hi], or of equal mass by class. With many classes most probabilities are near zero and well
    calibrated, so the error shrinks like 1/C: compare it at equal C only.

    Claiming (0.8, 0.2) and being right half of the time is off by 0.3 in either class:

    >>> round(classwise_ece(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1])).item(), 4)
    0.3
    """
    checks.classes("probs", probs, targets)
    checks.probabilities(probs)
    checks.bins(bins, customary=15)
    n, c = probs.shape[-2:]
    if spacing == "width":
        gap = _residuals(probs, targets)
        place = binning.by_width(probs, bins)
    elif spacing == "mass":
        order = probs.argsort(dim=-2, stable=True)
        gap = _residuals(probs, targets).gather(-2, order)
        place = binning.by_mass(n, bins, probs.device).unsqueeze(-1).expand_as(gap)
    else:
        raise ValueError(f'expected spacing "width" or "mass", got {spacing!r}: choose one of the two')
    total = probs.new_zeros(*probs.shape[:-2], c)
    for k in range(bins):  # n_kc |p̄_kc − ȳ_kc| is the absolute sum of the residuals in the bin
        total = total + torch.where(place == k, gap, 0.0).sum(-2).abs()
    return total.mean(-1) / n


def _residuals(probs: Tensor, targets: Tensor) -> Tensor:
    """p_b(c) − 1[c = y_b], (..., B, C)."""
    return probs - torch.nn.functional.one_hot(targets.long(), probs.shape[-1]).to(probs.dtype)
