"""What every likelihood is, and the four kinds of targets: classes, labels, real numbers, counts."""

from __future__ import annotations

from abc import abstractmethod
from typing import final

import torch
from torch import Tensor
from torch.distributions import Distribution

from ...core.lift import lift
from ...core.noise import Noise
from ...core.registry import Saved
from ...core.tree import Params
from .fitting import aligned, in_shape


class Likelihood(Saved, kind="likelihood"):
    """p(target | outputs). Final classes derive from one of the kinds below, which say what predicting means."""

    def init(self) -> Params:
        """The parameters it learns, at their starting values; none unless it says otherwise."""
        return {}

    @property
    def spread(self) -> str | None:
        """The learned parameter that is the logarithm of a factor on all of the noise; None where there is none. Data
        that training has not seen set it at the end."""
        return None

    @abstractmethod
    def log_density(self, outputs: Tensor, targets: Tensor, learned: Params) -> Tensor:
        """The log density of each element of the targets, (B, *event of the targets): what weights and masks multiply.
        A density that is not a product over elements has one number per example, (B,), and takes only example
        weights."""

    @abstractmethod
    def check(self, outputs: Tensor, targets: Tensor) -> None:
        """Raises where outputs of this shape and all these targets do not fit the likelihood (outputs may have fewer
        rows)."""

    @abstractmethod
    def sample(self, outputs: Tensor, learned: Params, noise: Noise) -> Tensor:
        """A target for each row of outputs. Leading axes that outputs and learned share are taken along."""

    @final
    def log_prob(self, outputs: Tensor, targets: Tensor, learned: Params) -> Tensor:
        """The log density of each example's target, (B,), summed over the event axes."""
        each = self.log_density(outputs, targets, learned)
        return each.reshape(each.shape[0], -1).sum(1)

    def hessian(self, outputs: Tensor, targets: Tensor | None, learned: Params) -> Tensor:
        """The Hessian of -log p in the outputs, (B, E, E) with the E outputs of an example in row-major order.

        With targets it is exact. With None it is its expectation under the likelihood itself, the Fisher information:
        positive semi-definite, and the same where the Hessian does not depend on the target. A likelihood without a
        formula of its own has the first by automatic differentiation, and not the second.
        """
        if targets is None:
            raise ValueError(
                f"{type(self).__name__} has no formula for its expected Hessian: pass targets, or write `hessian`"
            )

        def energy(row: Tensor, target: Tensor) -> Tensor:
            return -self.log_prob(row.reshape(1, *outputs.shape[1:]), target.unsqueeze(0), learned)[0]

        return lift(torch.func.jacrev(torch.func.grad(energy)))(outputs.reshape(outputs.shape[0], -1), targets)


class ClassLikelihood(Likelihood, kind="likelihood"):
    """A likelihood over classes on the last axis of the outputs."""

    @abstractmethod
    def log_probs(self, outputs: Tensor, learned: Params) -> Tensor:
        """Log-probabilities of all classes, in the shape of the outputs: how it predicts."""

    @final
    def sample(self, outputs: Tensor, learned: Params, noise: Noise) -> Tensor:
        edges = self.log_probs(outputs, learned).exp().cumsum(-1)
        u = noise.uniform(edges[..., :1]) * edges[..., -1:]  # below the last edge
        return (edges <= u).sum(-1).clamp(max=edges.shape[-1] - 1)


class LabelLikelihood(Likelihood, kind="likelihood"):
    """A likelihood over labels that are present or not, 1 or 0, elementwise: several may be present at once."""

    @abstractmethod
    def logits(self, outputs: Tensor, learned: Params) -> Tensor:
        """log p / (1 - p) of each label, in the shape of the outputs."""

    @final
    def log_density(self, outputs: Tensor, targets: Tensor, learned: Params) -> Tensor:
        logits = self.logits(outputs, learned)
        y = aligned(outputs, targets).to(logits.dtype)
        return torch.nn.functional.logsigmoid((2 * y - 1) * logits)  # y is 0 or 1

    @final
    def sample(self, outputs: Tensor, learned: Params, noise: Noise) -> Tensor:
        return (noise.uniform(outputs) < self.logits(outputs, learned).sigmoid()).long()


class NumberLikelihood(Likelihood, kind="likelihood"):
    """A likelihood over numbers, elementwise. Final classes derive from RealLikelihood or CountLikelihood."""

    @abstractmethod
    def distribution(self, outputs: Tensor, learned: Params) -> Distribution:
        """The distribution of each target element, with mean, variance, log_prob, cdf and icdf; after any leading axes
        that outputs and learned share."""

    @final
    def log_density(self, outputs: Tensor, targets: Tensor, learned: Params) -> Tensor:
        known = self.distribution(outputs, learned)
        return known.log_prob(in_shape(targets, known.batch_shape))

    @final
    def quantile(self, outputs: Tensor, learned: Params, level: Tensor) -> Tensor:
        """Quantiles of the targets, in doubles inside: floats reach infinity at levels near 0 and 1."""
        wide = self.distribution(outputs.double(), {k: v.double() for k, v in learned.items()})
        return wide.icdf(level.to(outputs.device)).to(outputs.dtype)

    @final
    def sample(self, outputs: Tensor, learned: Params, noise: Noise) -> Tensor:
        shape = self.distribution(outputs, learned).batch_shape
        level = noise.uniform(torch.empty(shape, dtype=torch.float64, device=outputs.device))
        return self.quantile(outputs, learned, level.clamp(min=2.0**-53))


class RealLikelihood(NumberLikelihood, kind="likelihood"):
    """A likelihood over real numbers: its distributions have densities."""


class CountLikelihood(NumberLikelihood, kind="likelihood"):
    """A likelihood over the counts 0, 1, 2, ...: its distributions have probabilities, and whole quantiles."""
