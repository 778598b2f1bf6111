"""Probabilities of classes and labels under Gaussian logits, in closed form: probit and Laplace bridge.

Both average softmax(f) over f ~ N(mean, covariance) without samples, approximately. So there is one probability per
member and no more: what members disagree on is known (`between`), what samples of one member disagree on is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import torch
from torch import Tensor

from .classes import ClassPredictive
from .labels import LabelPredictive


def probit(mean: Tensor, variance: Tensor) -> Tensor:
    """Logits mean / sqrt(1 + pi variance / 8), elementwise: for a sigmoid within 0.02 of the exact average, for a
    softmax by analogy (MacKay 1992)."""
    return mean / (1 + math.pi / 8 * variance).sqrt()


def bridge(mean: Tensor, covariance: Tensor) -> Tensor:
    """Log-probabilities of the Dirichlet that the Laplace bridge matches to N(mean (..., C), covariance (..., C, C))
    (Hobbhahn et al. 2022): alpha_k = (1 - 2 / C + exp(m_k) / C^2 sum_j exp(-m_j)) / v_k.

    The Dirichlet fixes the sum of the logits at zero, which softmax does not see; so the normal is first conditioned
    on that. Without any variance the average is softmax(mean).
    """
    c = mean.shape[-1]
    to_sum = covariance.sum(-1)  # covariance of each logit with the sum of all
    of_sum = to_sum.sum(-1, keepdim=True)
    gain = torch.where(of_sum > 0, to_sum / of_sum, 1 / c)
    centred = mean - gain * mean.sum(-1, keepdim=True)
    variance = (covariance.diagonal(dim1=-2, dim2=-1) - gain * to_sum).clamp(min=0)
    # in logarithms: exp(m_k) sum_j exp(-m_j) overflows at logits of some 40
    tail = centred + torch.logsumexp(-centred, -1, keepdim=True) - 2 * math.log(c)
    first = torch.full_like(tail, 1 - 2 / c).log()
    alpha = torch.logaddexp(first, tail) - variance.clamp(min=torch.finfo(mean.dtype).tiny).log()
    known = variance.amax(-1, keepdim=True) <= 0
    return torch.where(known, mean, alpha).log_softmax(-1)


class _NoSamples:
    """What closed forms do not have."""

    parts: ClassVar = ("between",)

    @property
    def aleatoric(self) -> Tensor:
        _refuse("aleatoric")

    @property
    def within(self) -> Tensor:
        _refuse("within")

    @property
    def epistemic(self) -> Tensor:
        _refuse("epistemic")


def _refuse(what: str) -> NoReturn:
    raise ValueError(
        f"via='probit' and via='bridge' give one probability per member and no samples, so there is no {what} part: "
        "use via='linear' or via='sample' for it; probs, entropy and between are there"
    )


@dataclass(frozen=True, eq=False, repr=False)
class ClosedClassPredictive(_NoSamples, ClassPredictive):  # type: ignore[misc]
    """Probabilities of classes, one set per member: `outputs` (M, 1, B, ..., C) are their logarithms."""


@dataclass(frozen=True, eq=False, repr=False)
class ClosedLabelPredictive(_NoSamples, LabelPredictive):  # type: ignore[misc]
    """Probabilities of labels, one set per member: `outputs` (M, 1, B, ..., L) are their log-odds. Labels are taken as
    independent within a member."""
