"""Likelihoods: how likely targets are, given the model's outputs.

A likelihood is a frozen dataclass. Parameters it learns (a noise level) are entries `likelihood.<name>` of the
params; it sees them as the dict `learned`, without the prefix. Outputs are (B, *event); every function of a
likelihood works on one member.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal

from ..core.registry import Saved
from ..core.tree import Params


class Likelihood(Saved, kind="likelihood"):
    """p(target | outputs). Final classes derive from ClassLikelihood or RealLikelihood, which say what predicting
    means."""

    def init(self) -> Params:
        """The parameters it learns, at their starting values; none unless it says otherwise."""
        return {}

    @abstractmethod
    def log_prob(self, outputs: Tensor, targets: Tensor, learned: Params) -> Tensor:
        """The log density of each example's target, (B,), summed over the event axes."""

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raises where outputs of this shape and all these targets do not fit the likelihood (outputs may have fewer
        rows)."""


class ClassLikelihood(Likelihood, kind="likelihood"):
    """A likelihood over classes on the last axis of the outputs."""

    @abstractmethod
    def log_probs(self, outputs: Tensor, learned: Params) -> Tensor:
        """Log-probabilities of all classes, in the shape of the outputs."""


class RealLikelihood(Likelihood, kind="likelihood"):
    """A likelihood over real numbers, elementwise: one number of the target for each element of the event shape."""

    @abstractmethod
    def distribution(self, outputs: Tensor, learned: Params) -> Distribution:
        """The distribution of each target element, with mean, variance, log_prob, cdf and icdf."""

    def log_prob(self, outputs: Tensor, targets: Tensor, learned: Params) -> Tensor:
        density = self.distribution(outputs, learned).log_prob(aligned(outputs, targets))
        return density.reshape(density.shape[0], -1).sum(1)


@dataclass(frozen=True, kw_only=True)
class Categorical(ClassLikelihood):
    """Classes from logits: softmax over the last axis of the outputs. Targets are class indices."""

    def log_probs(self, outputs: Tensor, learned: Params) -> Tensor:
        return outputs.log_softmax(-1)

    def log_prob(self, outputs: Tensor, targets: Tensor, learned: Params) -> Tensor:
        picked = outputs.log_softmax(-1).gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
        return picked.flatten(1).sum(1) if picked.dim() > 1 else picked

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        if outputs.dim() < 2 or outputs.shape[-1] < 2:
            raise ValueError(
                f"Categorical expects outputs (batch, ..., classes) with at least 2 classes, got "
                f"{tuple(outputs.shape)}: "
                "end the network in one logit per class"
            )
        if targets.is_floating_point() or targets.dtype == torch.bool:
            raise ValueError(f"Categorical expects integer class targets, got {targets.dtype}: use targets.long()")
        if targets.shape[1:] != outputs.shape[1:-1]:
            raise ValueError(
                f"Categorical expects targets {_shape('batch', outputs.shape[1:-1])} for outputs "
                f"{_shape('batch', outputs.shape[1:])}, "
                f"got {_shape('batch', targets.shape[1:])}: pass class indices, not one-hot vectors"
            )
        low, high, classes = int(targets.min()), int(targets.max()), outputs.shape[-1]
        if low < 0 or high >= classes:
            raise ValueError(
                f"Categorical expects targets in 0 ... {classes - 1}, one of the network's {classes} outputs, got "
                f"{low} ... {high}: "
                "relabel the classes or widen the network's last layer"
            )
        if low == high:
            raise ValueError(
                f"expected at least two classes among the targets, got class {low} alone: there is nothing to tell "
                f"apart"
            )


@dataclass(frozen=True, kw_only=True)
class Gaussian(RealLikelihood):
    """y = outputs + noise of one standard deviation, known or learned with the weights (its logarithm, flat prior)."""

    noise: float = 1.0  # standard deviation of the noise, in units of the target; the start value where it is learned
    learned: bool = False  # learn it: an entry likelihood.log_noise of the params

    def __post_init__(self) -> None:
        if not (self.noise > 0 and math.isfinite(self.noise)):
            raise ValueError(f"expected a positive, finite noise standard deviation, got {self.noise}")

    def init(self) -> Params:
        return {"log_noise": torch.tensor(math.log(self.noise))} if self.learned else {}

    def distribution(self, outputs: Tensor, learned: Params) -> Distribution:
        if self.learned:
            log_noise = learned["log_noise"]
            scale = log_noise.exp().reshape(log_noise.shape + (1,) * (outputs.dim() - log_noise.dim()))
        else:
            scale = torch.full((), self.noise, dtype=outputs.dtype, device=outputs.device)
        return Normal(outputs, scale.expand_as(outputs), validate_args=False)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_real(self, outputs, targets)


def aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets in the shape of the outputs: (B,) becomes (B, 1) where the network ends in one output. Never
    broadcast."""
    if outputs.shape[-1:] == (1,) and targets.dim() == outputs.dim() - 1:
        targets = targets.unsqueeze(-1)
    if targets.dim() != outputs.dim() or targets.shape[1:] != outputs.shape[1:]:
        raise ValueError(
            f"expected targets {_shape('batch', outputs.shape[1:])} for outputs of that shape, got "
            f"{_shape('batch', targets.shape[1:])}: match the network's last layer to the targets"
        )
    return targets


def check_real(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> None:
    """What every likelihood over real numbers asks of outputs and targets."""
    name = type(likelihood).__name__
    if not targets.is_floating_point():
        raise ValueError(f"{name} expects floating-point targets, got {targets.dtype}: use targets.float()")
    aligned(outputs, targets)


def _shape(first: str, rest: Any) -> str:
    return "(" + ", ".join([first, *(str(int(n)) for n in rest)]) + ")"
