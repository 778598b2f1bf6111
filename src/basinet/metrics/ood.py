"""Telling inputs from outside the distribution by a score, such as the predictive entropy, that is higher there.

Scores are (..., N) inside and (..., K) outside; leading axes broadcast against each other and are kept. Scores are
compared exactly, so results depend only on their order, and equal scores are treated as scikit-learn does: they cross
a threshold together. Cost is that of sorting. A member with a NaN among its scores gets NaN. A score that is low
outside, such as the largest probability, is passed with its sign changed.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from . import checks

Side = Literal["inside", "outside"]


def auroc(inside: Tensor, outside: Tensor) -> Tensor:
    """Area under the receiver operating characteristic, P(s_out > s_in) + ½ P(s_out = s_in).

    It is the same whichever side is called positive. Of the four pairs here, two are in order and one is a tie:

    >>> auroc(torch.tensor([0.0, 2.0]), torch.tensor([1.0, 2.0])).item()
    0.625
    """
    low, high = _sorted(inside, outside)
    twice = torch.searchsorted(low, high) + torch.searchsorted(low, high, right=True)  # 2 · (those below + ½ ties)
    value = twice.sum(-1).double() / (2 * low.shape[-1] * high.shape[-1])
    return _nan_kept(value, inside, outside)


def aupr(inside: Tensor, outside: Tensor, positive: Side = "outside") -> Tensor:
    """Area under the curve of precision over recall as average precision, Σ_t (R_t − R_{t−1}) P_t over thresholds t.

    No interpolation between thresholds, as scikit-learn's `average_precision_score`. With `positive="outside"` examples
    with scores of at least t are taken to be outside; with `positive="inside"` those of at most t to be inside. A score
    that says nothing has the share of positives: report it along, for it is not ½.

    >>> aupr(torch.zeros(3), torch.zeros(1)).item(), aupr(torch.zeros(3), torch.zeros(1), positive="inside").item()
    (0.25, 0.75)
    """
    other, positives = _oriented(inside, outside, positive)
    hits = positives.shape[-1] - torch.searchsorted(positives, positives)  # at or above the score of each positive
    alarms = other.shape[-1] - torch.searchsorted(other, positives)
    value = (hits.double() / (hits + alarms)).mean(-1)
    return _nan_kept(value, inside, outside)


def fpr95(inside: Tensor, outside: Tensor, positive: Side = "outside") -> Tensor:
    """Share of false positives at the strictest threshold that finds at least 95 % of the positives.

    With `positive="outside"` that is the share of inputs inside with scores at or above the threshold: false alarms.
    With `positive="inside"`, as Liang et al. (2018), the share of inputs outside that pass for inside when 95 % of
    those inside are let through. The two are different numbers.

    Finding 19 of 20 needs the threshold 1, and half of those inside reach it:

    >>> fpr95(torch.tensor([0.0, 0.0, 1.0, 3.0]), torch.arange(20.0)).item()
    0.5
    """
    other, positives = _oriented(inside, outside, positive)
    k = positives.shape[-1]
    needed = -(-95 * k // 100)  # 0.95 k rounded up, in integers
    threshold = positives[..., k - needed].unsqueeze(-1).contiguous()
    alarms = other.shape[-1] - torch.searchsorted(other, threshold).squeeze(-1)
    return _nan_kept(alarms.double() / other.shape[-1], inside, outside)


def symmetric_kl(inside: Tensor, outside: Tensor, bins: int = 50) -> Tensor:
    """Divergence of the distributions of the scores, KL(p‖q) + KL(q‖p) = Σ_k (p_k − q_k) log(p_k / q_k), in nats.

    With entropies as scores this is the test of Mehrtash et al. (2020, PEP). Densities are estimated by histograms of
    `bins` equal parts between the least and the greatest score of both sides together, [lo, hi), with half a count
    added to every bin, which keeps the value finite. Even for equal distributions finite samples give about
    (bins − 1)(1/N + 1/K). Values compare at equal bins and like numbers of examples only.

    One bin in common holds ⅔ of one side and all of the other, p = (2.5, 1.5)/4, q = (3.5, 0.5)/4:

    >>> value = symmetric_kl(torch.tensor([0.0, 0.0, 1.0]), torch.tensor([0.0, 0.0, 0.0]), bins=2)
    >>> round((4 * value).exp().item(), 4)  # (3.5 / 2.5) · (1.5 / 0.5)
    4.2
    """
    checks.bins(bins, customary=50)
    low, high = _sorted(inside, outside)
    low, high = low.double(), high.double()
    start = torch.minimum(low[..., :1], high[..., :1])
    width = torch.maximum(low[..., -1:], high[..., -1:]) - start
    p, q = (_smoothed(scores, start, width, bins) for scores in (low, high))
    value = ((p - q) * (p.log() - q.log())).sum(-1)
    return _nan_kept(torch.where(width.squeeze(-1).isfinite(), value, torch.nan), inside, outside)


def _smoothed(scores: Tensor, start: Tensor, width: Tensor, bins: int) -> Tensor:
    """Shares of the bins with half a count added to each, (..., bins), in float64."""
    part = ((scores - start) / width).nan_to_num(0.0)  # all in the first bin where all scores are equal
    place = (part * bins).long().clamp(0, bins - 1)
    count = place.new_zeros(*place.shape[:-1], bins).scatter_add(-1, place, torch.ones_like(place))
    return (count.double() + 0.5) / (scores.shape[-1] + 0.5 * bins)


def _sorted(inside: Tensor, outside: Tensor) -> tuple[Tensor, Tensor]:
    """Both in ascending order with common leading axes."""
    checks.rows("inside", inside)
    checks.rows("outside", outside)
    inside, outside = checks.together(("inside", "outside"), inside, outside, own=1)
    return inside.sort(-1).values.contiguous(), outside.sort(-1).values.contiguous()


def _oriented(inside: Tensor, outside: Tensor, positive: Side) -> tuple[Tensor, Tensor]:
    """Negatives and positives, sorted, with scores that are higher for the positives."""
    if positive == "outside":
        return _sorted(inside, outside)
    if positive == "inside":
        positives, other = _sorted(-inside, -outside)
        return other, positives
    raise ValueError(f'expected positive "inside" or "outside", got {positive!r}: choose the side to be found')


def _nan_kept(value: Tensor, inside: Tensor, outside: Tensor) -> Tensor:
    broken = inside.isnan().any(-1) | outside.isnan().any(-1)
    return torch.where(broken, torch.nan, value).to(inside.dtype)
