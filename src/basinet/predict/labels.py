"""Predictions of labels that are there or not: probabilities, and the entropy of each label in its parts."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Bernoulli
from torch.nn.functional import logsigmoid

from ..problem.likelihoods import LabelLikelihood, aligned
from .predictive import Predictive, weighted


@dataclass(frozen=True, eq=False)
class LabelPredictive(Predictive):
    """Each label is a class of its own with two outcomes. Its total uncertainty is the entropy of its probability,
    H[p] = -p log p - (1 - p) log(1 - p); aleatoric the mean entropy of the samples, between and within as for classes.
    All elementwise, (B, ..., L), in nats. Given a sample the labels are independent; the mixture's are not."""

    @cached_property
    def logits(self) -> Tensor:
        """Log-odds of each sample, (M, S, B, ..., L)."""
        assert isinstance(self.likelihood, LabelLikelihood)
        return self.likelihood.logits(self.outputs, self.learned)

    @cached_property
    def member_probs(self) -> Tensor:
        """Probabilities of each member, averaged over its samples, (M, B, ..., L)."""
        inside = self.member_mass()[1].to(self.logits)
        return torch.einsum("ms,ms...->m...", inside, self.logits.sigmoid())

    @cached_property
    def probs(self) -> Tensor:
        """The probability that each label is there, averaged over members and samples, (B, ..., L)."""
        return weighted(self.member_mass()[0], self.member_probs)

    @cached_property
    def entropy(self) -> Tensor:
        """The entropy of each label: total uncertainty, (B, ..., L)."""
        return binary_entropy(self.probs)

    @cached_property
    def aleatoric(self) -> Tensor:
        x = self.logits.clamp(-1e4, 1e4)  # where an outcome has no probability it adds nothing
        each = -x.sigmoid() * logsigmoid(x) - (-x).sigmoid() * logsigmoid(-x)
        return weighted(self.mass, each)

    @cached_property
    def between(self) -> Tensor:
        return (self.entropy - self._member_entropy).clamp(min=0)

    @cached_property
    def within(self) -> Tensor:
        return (self._member_entropy - self.aleatoric).clamp(min=0)

    @cached_property
    def _member_entropy(self) -> Tensor:
        return weighted(self.member_mass()[0], binary_entropy(self.member_probs))

    def log_densities(self, targets: Tensor) -> Tensor:
        y = aligned(self.outputs[0, 0], targets).to(self.logits.dtype)
        return logsigmoid((2 * y - 1) * self.logits)

    def to_distribution(self) -> Bernoulli:
        """The labels one by one: their marginals."""
        return Bernoulli(probs=self.probs, validate_args=False)


def binary_entropy(p: Tensor) -> Tensor:
    """-p log p - (1 - p) log(1 - p), zero at both ends."""
    return torch.special.entr(p) + torch.special.entr(1 - p)
