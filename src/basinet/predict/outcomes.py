"""What predictions over classes and over labels share: averaged probabilities, and their entropy in its parts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .predictive import Predictive, weighted


@dataclass(frozen=True, eq=False, repr=False)
class OutcomePredictive(Predictive):
    """Total uncertainty is the entropy of the mean, H[p]; aleatoric the mean entropy of the samples; their difference,
    the mutual information with the weights, is epistemic: between = H[p] - mean_m H[p_m] and
    within = mean_m (H[p_m] - mean_s H[p_ms]). All in nats."""

    @abstractmethod
    def sample_probs(self) -> Tensor:
        """Probabilities of each sample, (M, S, B, ...)."""

    @abstractmethod
    def entropy_of(self, probs: Tensor) -> Tensor:
        """The entropy of probabilities with any leading axes."""

    @cached_property
    def member_probs(self) -> Tensor:
        """Probabilities of each member, averaged over its samples, (M, B, ...)."""
        probs = self.sample_probs()
        return torch.einsum("ms,ms...->m...", self.member_mass()[1].to(probs), probs)

    @cached_property
    def probs(self) -> Tensor:
        """Probabilities, averaged over members and samples, (B, ...)."""
        return weighted(self.member_mass()[0], self.member_probs)

    @cached_property
    def entropy(self) -> Tensor:
        """The entropy of `probs`: total uncertainty."""
        return self.entropy_of(self.probs)

    @cached_property
    def between(self) -> Tensor:
        if self.outputs.shape[0] == 1:  # a difference would be rounding, which ranks inputs
            return torch.zeros_like(self.entropy)
        return (self.entropy - self._member_entropy).clamp(min=0)

    @cached_property
    def within(self) -> Tensor:
        if self.outputs.shape[1] == 1:
            return torch.zeros_like(self.entropy)
        return (self._member_entropy - self.aleatoric).clamp(min=0)

    @cached_property
    def _member_entropy(self) -> Tensor:
        return weighted(self.member_mass()[0], self.entropy_of(self.member_probs))
