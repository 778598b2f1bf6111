"""Predictions over classes: probabilities, and entropy split into aleatoric, between and within."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor
from torch.distributions import Categorical

from ..calibrate.conformal_sets import class_sets
from ..problem.likelihoods import ClassLikelihood
from .outcomes import OutcomePredictive
from .predictive import weighted


@dataclass(frozen=True, eq=False, repr=False)
class ClassPredictive(OutcomePredictive):
    """Classes on the last axis: `probs` are (B, ..., C), entropies (B, ...)."""

    @cached_property
    def log_probs(self) -> Tensor:
        """Log-probabilities of each sample, (M, S, B, ..., C)."""
        assert isinstance(self.likelihood, ClassLikelihood)
        return self.likelihood.log_probs(self.outputs, self.learned)

    def sample_probs(self) -> Tensor:
        return self.log_probs.exp()

    def entropy_of(self, probs: Tensor) -> Tensor:
        return torch.special.entr(probs).sum(-1)

    @cached_property
    def aleatoric(self) -> Tensor:
        return weighted(self.mass, -(self.log_probs.exp() * self.log_probs.clamp(min=-1e30)).sum(-1))

    @cached_property
    def conformal_set(self) -> Tensor:
        """The classes in the prediction set of each input, (B, ..., C), true for those inside: together they contain
        the truth with the probability for which `bn.conformal` calibrated them."""
        return class_sets(self.probs, self.rule())

    def log_densities(self, targets: Tensor) -> Tensor:
        if targets.shape != self.outputs.shape[2:-1]:
            expected, got = tuple(self.outputs.shape[2:-1]), tuple(targets.shape)
            raise ValueError(f"expected classes of shape {expected}, one for each input, got {got}")
        index = targets.long().expand(*self.outputs.shape[:2], *targets.shape).unsqueeze(-1)
        return self.log_probs.gather(-1, index).squeeze(-1)

    def to_distribution(self) -> Categorical:
        return Categorical(probs=self.probs, validate_args=False)
