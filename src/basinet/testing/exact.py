"""Linear regression whose posterior is known: the yardstick every method is held to.

y = X theta + noise, theta ~ N(0, s^2 I): the posterior is N(mu, Lambda^-1) with Lambda = X'X / sigma^2 + I / s^2 and
mu = Lambda^-1 X'y / sigma^2. At temperature T the covariance is T Lambda^-1; with only the likelihood tempered,
Lambda = X'X / (T sigma^2) + I / s^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from ..core.noise import Noise
from ..data import Data
from ..problem.likelihoods import Gaussian
from ..problem.priors import Normal
from ..problem.problem import Problem

PARAMETER = "weight"


@dataclass(frozen=True)
class Conjugate:
    """A problem, its data, and the exact answers, in float64."""

    problem: Problem
    data: Data
    mean: Tensor  # (d,), mu
    precision: Tensor  # (d, d), Lambda, tempered
    log_evidence: float  # log p(y) at temperature one

    @property
    def covariance(self) -> Tensor:
        """(d, d)."""
        return torch.linalg.inv(self.precision)

    def predictive(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Exact mean and variance of targets at inputs (B, d): x'mu and x' Lambda^-1 x + sigma^2."""
        likelihood = self.problem.likelihood
        assert isinstance(likelihood, Gaussian) and isinstance(likelihood.noise, float)
        spread = torch.einsum("bi,ij,bj->b", inputs, self.covariance, inputs)
        return inputs @ self.mean, spread + likelihood.noise**2


def conjugate(
    *,
    n: int = 40,
    d: int = 3,
    noise: float = 0.5,
    prior: float = 1.5,
    correlation: float = 0.8,
    lengths: tuple[float, float] = (2.0, 4.0),
    temperature: float = 1.0,
    temper: Literal["posterior", "likelihood"] = "posterior",
    seed: int = 0,
) -> Conjugate:
    """A random problem of `d` parameters and `n` examples. Inputs have equal correlations; with 0 the design is made
    orthogonal, with columns of `lengths` from the first to the last."""
    key = Noise.seed(seed).split("conjugate")
    like = torch.empty(n, d, dtype=torch.float64)
    x = key.split("inputs").normal(like)
    if correlation:
        x = math.sqrt(1 - correlation) * x + math.sqrt(correlation) * key.split("common").normal(like[:, :1])
    else:
        x = torch.linalg.qr(x)[0] * torch.linspace(*lengths, d, dtype=torch.float64)
    theta = key.split("truth").normal(like[0])
    y = x @ theta + noise * key.split("noise").normal(like[:, 0])
    data_precision, prior_precision = x.T @ x / noise**2, torch.eye(d, dtype=torch.float64) / prior**2
    untempered = data_precision + prior_precision
    bayes = torch.linalg.solve(untempered, x.T @ y / noise**2)
    if temper == "posterior":
        precision, mean = untempered / temperature, bayes
    else:
        precision = data_precision / temperature + prior_precision
        mean = torch.linalg.solve(precision, x.T @ y / (temperature * noise**2))
    # y ~ N(0, sigma^2 I + s^2 X X'), by the determinant lemma in d dimensions, not n
    quadratic = ((y - x @ bayes) / noise).square().sum() + (bayes / prior).square().sum()
    determinant = 2 * n * math.log(noise) + 2 * d * math.log(prior) + torch.linalg.slogdet(untempered)[1]
    evidence = -0.5 * (quadratic + determinant + n * math.log(2 * math.pi))
    problem = Problem(
        lambda: nn.Linear(d, 1, bias=False, dtype=torch.float64),
        Gaussian(noise=noise),
        Normal(scale=prior),
        temperature,
        temper,
    )
    return Conjugate(problem, Data(x, y), mean, precision, float(evidence))
