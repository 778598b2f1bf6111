"""A quadratic with independent gradient noise: descent at a constant step has a stationary law that is known.

Each pass in training shifts the outputs by fresh noise, so that the gradient of the loss per example is

    g = h (theta - mu) + xi,   xi ~ N(0, S),   and   theta' - mu = (1 - eta h) (theta - mu) - eta xi

is stationary with covariance eta S / (h (2 - eta h)) and autocorrelation (1 - eta h)^k after k steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..data import Data
from ..problem.likelihoods import Gaussian
from ..problem.priors import Normal
from ..problem.problem import Problem

SIGMA, SCALE = 0.8, 2.0  # of the likelihood and of the prior
ROOT = ((0.5, 0.0, 0.0), (0.4, 0.3, 0.0), (-0.6, 0.2, 0.8))  # of the covariance of the noise in the outputs
TARGETS = ((1.0, -2.0, 0.5), (0.0, 1.0, 1.5))


@dataclass(frozen=True)
class Noisy:
    """A problem, its data, and what descent on it does, in float64."""

    problem: Problem
    data: Data
    mean: Tensor  # (d,), mu
    curvature: float  # h
    covariance: Tensor  # (d, d), S, of the noise in the gradient

    def stationary(self, rate: float) -> Tensor:
        """(d, d): the covariance of iterates of plain descent with that step size."""
        return rate * self.covariance / (self.curvature * (2 - rate * self.curvature))

    def correlation(self, rate: float, steps: int) -> float:
        """Of iterates that are `steps` steps apart."""
        return (1 - rate * self.curvature) ** steps


def noisy() -> Noisy:
    """Three parameters, two examples, correlated noise."""
    targets, root = torch.tensor(TARGETS, dtype=torch.float64), torch.tensor(ROOT, dtype=torch.float64)
    problem = Problem(lambda: _Shaken(root), Gaussian(noise=SIGMA), Normal(scale=SCALE))
    data = Data(torch.zeros(len(targets), 1, dtype=torch.float64), targets)
    curvature = 1 / SIGMA**2 + 1 / (SCALE**2 * data.n)
    return Noisy(problem, data, targets.mean(0) / SIGMA**2 / curvature, curvature, root @ root.T / SIGMA**4)


class _Shaken(nn.Module):
    """The parameters as outputs; in training, plus noise that all examples of a batch share."""

    root: Tensor

    def __init__(self, root: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(len(root), dtype=root.dtype))
        self.register_buffer("root", root.clone())

    def forward(self, x: Tensor) -> Tensor:
        shift = self.root @ torch.randn_like(self.weight) if self.training else torch.zeros_like(self.weight)
        return (self.weight + shift).expand(len(x), -1)
