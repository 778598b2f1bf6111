"""Predictions of labels that are present or not: probabilities, and the entropy of each label in its parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Bernoulli
from torch.nn.functional import logsigmoid

from ..problem.likelihoods import LabelLikelihood, aligned
from .outcomes import OutcomePredictive
from .predictive import weighted


@dataclass(frozen=True, eq=False, repr=False)
class LabelPredictive(OutcomePredictive):
    """Each label is a class of its own with two outcomes: H[p] = -p log p - (1 - p) log(1 - p).

    `probs`, that a label is present, and entropies are elementwise, (B, ..., L). Given a sample the labels are
    independent; the mixture's are not.
    """

    @cached_property
    def logits(self) -> Tensor:
        """Log-odds of each sample, (M, S, B, ..., L)."""
        assert isinstance(self.likelihood, LabelLikelihood)
        return self.likelihood.logits(self.outputs, self.learned)

    def sample_probs(self) -> Tensor:
        return self.logits.sigmoid()

    def entropy_of(self, probs: Tensor) -> Tensor:
        return torch.special.entr(probs) + torch.special.entr(1 - probs)

    @cached_property
    def aleatoric(self) -> Tensor:
        x = self.logits.clamp(-1e4, 1e4)  # where an outcome has no probability it adds nothing
        each = -x.sigmoid() * logsigmoid(x) - (-x).sigmoid() * logsigmoid(-x)
        return weighted(self.mass, each)

    def log_densities(self, targets: Tensor) -> Tensor:
        y = aligned(self.outputs[0, 0], targets).to(self.logits.dtype)
        return logsigmoid((2 * y - 1) * self.logits)

    def to_distribution(self) -> Bernoulli:
        """The labels one by one: their marginals."""
        return Bernoulli(probs=self.probs, validate_args=False)
