"""Scores of class probabilities against class indices.

Predictions are (..., B, C): any axes of members or subsets, then B examples and C classes. Targets are (B,) indices.
Every score is a mean over the B examples and keeps the leading axes, so a stack of members is scored in one call. A
member that predicts NaN scores NaN and leaves the others alone.

Published numbers of calibration error agree only at equal settings. Jordahn et al. (2025) use 15 bins of equal width,
as the defaults here; torchmetrics closes its bins on the left, [lo, hi), and thereby gives confidences of exactly 1 a
bin of their own, so the two differ on confidences that fall on an edge.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from . import binning, checks

Spacing = Literal["width", "mass"]


class Reliability(NamedTuple):
    """Per bin of confidence, each of shape (..., bins): what was claimed, what came true, and how often.

    >>> Reliability(torch.tensor([0.9]), torch.tensor([0.7]), torch.tensor([10])).count.item()
    10
    """

    confidence: Tensor  # mean probability of the top class; NaN in an empty bin
    accuracy: Tensor  # share of examples whose top class is the target; NaN in an empty bin
    count: Tensor  # type: ignore[assignment]  # int64, number of examples; nobody counts in this tuple by tuple.count


def nll(log_probs: Tensor, targets: Tensor) -> Tensor:
    """Negative log-likelihood per example, −(1/B) Σ_b log p_b(y_b), in nats, from log-probabilities.

    A uniform guess among C classes scores log C:

    >>> round(nll(torch.full((2, 4), 0.25).log(), torch.tensor([0, 3])).exp().item(), 4)
    4.0
    """
    checks.classes("log_probs", log_probs, targets)
    checks.log_probabilities(log_probs)
    index = targets.long().expand(log_probs.shape[:-1]).unsqueeze(-1)  # (..., B, 1)
    return -log_probs.gather(-1, index).squeeze(-1).mean(-1)


def brier(probs: Tensor, targets: Tensor) -> Tensor:
    """Brier score, (1/B) Σ_b Σ_c (p_b(c) − 1[c = y_b])²: summed over classes, so between 0 and 2.

    A uniform guess among C classes scores 1 − 1/C:

    >>> brier(torch.full((2, 4), 0.25), torch.tensor([0, 3])).item()
    0.75
    """
    checks.classes("probs", probs, targets)
    checks.probabilities(probs)
    truth = torch.nn.functional.one_hot(targets.long(), probs.shape[-1]).to(probs.dtype)  # (B, C)
    return (probs - truth).square().sum(-1).mean(-1)


def accuracy(probs: Tensor, targets: Tensor) -> Tensor:
    """Share of examples whose most probable class is the target; of tied classes the first counts.

    Only the order of the classes matters, so logits and log-probabilities serve as well.

    >>> accuracy(torch.tensor([[0.9, 0.1], [0.4, 0.6], [0.5, 0.5], [0.2, 0.8]]), torch.tensor([0, 1, 1, 1])).item()
    0.75
    """
    checks.classes("probs", probs, targets)
    best, top = probs.max(-1)  # (..., B)
    return torch.where(best.isnan(), best, (top == targets).to(probs.dtype)).mean(-1)


def ece(probs: Tensor, targets: Tensor, bins: int = 15, spacing: Spacing = "width", min_count: int = 1) -> Tensor:
    """Expected calibration error of the top class, Σ_k (n_k / n) |confidence_k − accuracy_k| over bins k of confidence.

    The bins are those of `reliability`. Bins of fewer than `min_count` examples are left out, and n counts the examples
    of the bins that remain: the weights sum to one again. Where no bin remains the error is NaN.

    Claiming 0.8 and being right half of the time is off by 0.3:

    >>> round(ece(torch.tensor([[0.8, 0.2], [0.8, 0.2]]), torch.tensor([0, 1])).item(), 4)
    0.3
    """
    if min_count < 1:
        raise ValueError(f"expected min_count of at least 1, got {min_count}: 1 keeps every bin that is not empty")
    return calibration_gap(reliability(probs, targets, bins, spacing), min_count)


def calibration_gap(seen: Reliability, min_count: int = 1) -> Tensor:
    """Σ_k (n_k / n) |confidence_k − accuracy_k| over the bins of at least `min_count` examples.

    >>> seen = Reliability(torch.tensor([0.5, 0.9]), torch.tensor([0.5, 0.7]), torch.tensor([10, 10]))
    >>> round(calibration_gap(seen).item(), 4)
    0.1
    """
    kept = (seen.count >= min_count) | ((seen.count > 0) & seen.confidence.isnan())  # no score hides a NaN
    weight = torch.where(kept, seen.count, 0)
    gap = torch.where(kept, (seen.confidence - seen.accuracy).abs(), 0.0)
    return (weight * gap).sum(-1) / weight.sum(-1)


def reliability(probs: Tensor, targets: Tensor, bins: int = 15, spacing: Spacing = "width") -> Reliability:
    """Confidence and accuracy of the top class in bins of confidence: the numbers of a reliability diagram.

    `spacing="width"` cuts [0, 1] at k / bins into intervals (lo, hi]. `spacing="mass"` sorts the examples by confidence
    and cuts them into runs whose sizes differ by at most one; equal confidences keep the order of the data, so a run
    may end among them.

    >>> seen = reliability(torch.tensor([[0.8, 0.2], [0.8, 0.2], [0.3, 0.7]]), torch.tensor([0, 1, 1]), bins=4)
    >>> seen.count.tolist(), seen.accuracy.tolist()  # 0.7 lies in (0.5, 0.75], 0.8 in (0.75, 1]
    ([0, 0, 1, 2], [nan, nan, 1.0, 0.5])
    """
    checks.classes("probs", probs, targets)
    checks.probabilities(probs)
    checks.bins(bins, customary=15)
    confidence, top = probs.max(-1)  # (..., B)
    return in_bins(confidence, (top == targets).to(probs.dtype), bins, spacing)


def in_bins(confidence: Tensor, correct: Tensor, bins: int = 15, spacing: Spacing = "width") -> Reliability:
    """The same from the probability of the top class and whether it is right, 1 or 0, each (..., B).

    >>> in_bins(torch.tensor([0.8, 0.8, 0.7]), torch.tensor([1.0, 0.0, 1.0]), bins=4).count.tolist()
    [0, 0, 1, 2]
    """
    if spacing == "width":
        place = binning.by_width(confidence, bins)
    elif spacing == "mass":
        order = confidence.argsort(dim=-1, stable=True)
        confidence, correct = confidence.gather(-1, order), correct.gather(-1, order)
        place = binning.by_mass(confidence.shape[-1], bins, confidence.device).expand_as(confidence)
    else:
        raise ValueError(f'expected spacing "width" or "mass", got {spacing!r}: choose one of the two')
    inside = [place == k for k in range(bins)]
    count = torch.stack([here.sum(-1) for here in inside], -1)  # (..., bins)
    claimed = torch.stack([torch.where(here, confidence, 0.0).sum(-1) for here in inside], -1)
    right = torch.stack([torch.where(here, correct, 0.0).sum(-1) for here in inside], -1)
    return Reliability(confidence=claimed / count, accuracy=right / count, count=count)
