"""Selective prediction: the risk that remains when the most uncertain examples are left to someone else.

Uncertainties and losses are (..., B); leading axes of one broadcast against those of the other. The k examples of least
uncertainty make up coverage k/B, and their mean loss is the risk there. Equal uncertainties give no order: their losses
count as if in random order, in expectation, so the result does not depend on the order of the data. A row with NaN has
NaN throughout.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from . import checks


class RiskCoverage(NamedTuple):
    """The risk at every coverage.

    >>> RiskCoverage(torch.tensor([0.5, 1.0]), torch.tensor([0.0, 0.5])).risk[-1].item()  # all examples: the mean loss
    0.5
    """

    coverage: Tensor  # (B,), k/B for k = 1 ... B
    risk: Tensor  # (..., B), mean loss of the k most certain examples


def risk_coverage(uncertainty: Tensor, losses: Tensor) -> RiskCoverage:
    """The curve of risk over coverage, risk_k = (1/k) Σ_{b among the k most certain} loss_b.

    Losses may be 0 and 1 for right and wrong, or any score per example.

    >>> curve = risk_coverage(torch.tensor([0.1, 0.9, 0.5, 0.5]), torch.tensor([0.0, 1.0, 1.0, 0.0]))
    >>> (curve.risk * torch.arange(1, 5)).tolist()  # the two at 0.5 count one half each
    [0.0, 0.5, 1.0, 2.0]
    """
    risk = _risk(uncertainty, losses)
    n = risk.shape[-1]
    coverage = torch.arange(1, n + 1, dtype=torch.float64, device=risk.device) / n
    return RiskCoverage(coverage=coverage.to(losses.dtype), risk=risk.to(losses.dtype))


def aurc(uncertainty: Tensor, losses: Tensor) -> Tensor:
    """Area under the curve of risk over coverage, (1/B) Σ_k risk_k (Geifman et al. 2019); lower is better.

    Without any order, as for constant uncertainty, it is the mean loss. One error in two, found by the uncertainty:

    >>> aurc(torch.tensor([0.1, 0.9]), torch.tensor([0.0, 1.0])).item(), aurc(torch.zeros(2), torch.eye(2)).tolist()
    (0.25, [0.5, 0.5])
    """
    return _risk(uncertainty, losses).mean(-1).to(losses.dtype)


def excess_aurc(uncertainty: Tensor, losses: Tensor) -> Tensor:
    """AURC less that of the best order, which is by the losses themselves: 0 for a perfect ranking, never negative.

    The best area is that of the B examples given, not its limit r + (1 − r) log(1 − r) at error rate r that
    Geifman et al. (2019) subtract; the two differ by O(1/B).

    >>> excess_aurc(torch.tensor([[0.1, 0.9], [0.9, 0.1]]), torch.tensor([0.0, 1.0])).tolist()  # found, and missed
    [0.0, 0.5]
    """
    return (_risk(uncertainty, losses) - _risk(losses, losses)).mean(-1).clamp_min(0).to(losses.dtype)


def _risk(uncertainty: Tensor, losses: Tensor) -> Tensor:
    """risk_k in float64, (..., B)."""
    checks.rows("uncertainty", uncertainty)
    checks.rows("losses", losses)
    if uncertainty.shape[-1] != losses.shape[-1]:
        raise ValueError(
            f"expected uncertainty and losses of equally many examples, got {tuple(uncertainty.shape)} and "
            f"{tuple(losses.shape)}: give one of each per example"
        )
    uncertainty, losses = checks.together(("uncertainty", "losses"), uncertainty, losses, own=1)
    n = losses.shape[-1]
    ordered, order = uncertainty.contiguous().sort(-1)
    total = torch.nn.functional.pad(losses.double().gather(-1, order).cumsum(-1), (1, 0))  # of the first 0 ... B
    first = torch.searchsorted(ordered, ordered).clamp_max(n - 1)  # where the run of equal uncertainties starts
    after = torch.searchsorted(ordered, ordered, right=True)  # and where the next one does
    before, through = total.gather(-1, first), total.gather(-1, after)
    k = torch.arange(1, n + 1, device=losses.device)
    partly = before + (k - first) / (after - first) * (through - before)
    risk = torch.where(before.isinf(), before, partly) / k
    broken = (uncertainty.isnan() | losses.isnan()).any(-1, keepdim=True)
    return torch.where(broken, torch.nan, risk)
