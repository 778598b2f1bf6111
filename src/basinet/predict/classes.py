"""Predictions over classes: probabilities, and entropy split into aleatoric, between and within."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Categorical

from ..problem.likelihoods import ClassLikelihood
from .predictive import Predictive, weighted


@dataclass(frozen=True, eq=False)
class ClassPredictive(Predictive):
    """Total uncertainty is the entropy of the mean, H[p]; aleatoric the mean entropy of the samples; their difference,
    the mutual information with the weights, is epistemic: between = H[p] - mean_m H[p_m] and
    within = mean_m (H[p_m] - mean_s H[p_ms]). All in nats."""

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities of each sample, (M, S, B, ..., C)."""
        assert isinstance(self.likelihood, ClassLikelihood)
        return self.likelihood.log_probs(self.outputs, self.learned)

    @cached_property
    def member_probs(self) -> Tensor:
        """Probabilities of each member, averaged over its samples, (M, B, ..., C)."""
        inside = self.member_mass()[1].to(self.log_probs)
        return torch.einsum("ms,ms...->m...", inside, self.log_probs.exp())

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities, averaged over members and samples, (B, ..., C)."""
        return weighted(self.member_mass()[0], self.member_probs)

    @cached_property
    def entropy(self) -> Tensor:
        """The entropy of `probs`: total uncertainty, (B, ...)."""
        return entropy(self.probs)

    @cached_property
    def aleatoric(self) -> Tensor:
        return weighted(self.mass, -(self.log_probs.exp() * self.log_probs.clamp(min=-1e30)).sum(-1))

    @cached_property
    def between(self) -> Tensor:
        return (self.entropy - self._member_entropy).clamp(min=0)

    @cached_property
    def within(self) -> Tensor:
        return (self._member_entropy - self.aleatoric).clamp(min=0)

    @cached_property
    def _member_entropy(self) -> Tensor:
        return weighted(self.member_mass()[0], entropy(self.member_probs))

    def log_densities(self, targets: Tensor) -> Tensor:
        index = targets.long().expand(*self.outputs.shape[:2], *targets.shape).unsqueeze(-1)
        return self.log_probs.gather(-1, index).squeeze(-1)

    def to_distribution(self) -> Categorical:
        return Categorical(probs=self.probs, validate_args=False)


def entropy(probs: Tensor) -> Tensor:
    """-sum p log p over the last axis, zero where p is."""
    return torch.special.entr(probs).sum(-1)
