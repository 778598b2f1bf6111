"""Classes through a Dirichlet model of label noise (Kapoor et al. 2022, "On uncertainty, tempering, and data
augmentation in Bayesian classification").

A label y stands for Dirichlet parameters alpha_k = 1[k = y] + alpha. Their Gamma variables are matched by log-normal
ones, of log mean m_k = log alpha_k - s_k / 2 and log variance s_k = log(1 + 1 / alpha_k), and those are regressed on:
-log p = sum_k (f_k - m_k)^2 / (2 s_k) + log(2 pi s_k) / 2, of Hessian diag(1 / s_k). It predicts by softmax.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.tree import Params
from .blocks import diagonal
from .fitting import check_classes
from .likelihood import ClassLikelihood


@dataclass(frozen=True, kw_only=True)
class NoisyDirichlet(ClassLikelihood):
    """Normal noise on logits instead of softmax: the posterior of hard labels without a cold temperature. The training
    likelihood is a density over logits, so its values do not compare with those of Categorical; predictions do."""

    alpha: float = 0.01
    """A count that every class gets beside its labels: larger for noisier labels; from 0.1 predictions are
    under-confident."""

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise ValueError(f"expected a positive, finite alpha, got {self.alpha}")

    def log_probs(self, outputs: Tensor, learned: Params) -> Tensor:
        return outputs.log_softmax(-1)

    def log_density(self, outputs: Tensor, targets: Tensor, learned: Params) -> Tensor:
        mean, variance = self._moments(outputs, targets)
        return -0.5 * ((outputs - mean).square() / variance + (2 * math.pi * variance).log()).sum(-1)

    def hessian(self, outputs: Tensor, targets: Tensor | None, learned: Params) -> Tensor:
        if targets is None:
            raise ValueError("the Hessian of NoisyDirichlet depends on the class: pass targets")
        return diagonal(1 / self._moments(outputs, targets)[1])

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_classes(self, outputs, targets)

    def _moments(self, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
        classes = torch.arange(outputs.shape[-1], device=outputs.device)
        alpha = (targets.unsqueeze(-1) == classes).to(outputs.dtype) + self.alpha
        variance = torch.log1p(1 / alpha)
        return alpha.log() - variance / 2, variance
