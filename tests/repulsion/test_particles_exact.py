"""Particles against an exact predictive: a linear model of random features of one input, with gaps in the data."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.data.toys import gaps
from basinet.methods.map import MAP
from basinet.methods.svgd import SVGD
from basinet.methods.wgd import WGD
from basinet.optim import SGD, Adam, Cosine

FEATURES, SIGMA = 6, 0.3
KEY = Noise.seed(8)
FREQUENCIES = 2 * KEY.split("frequencies").normal(torch.empty(1, FEATURES, dtype=torch.float64))
PHASES = 2 * math.pi * KEY.split("phases").uniform(torch.empty(FEATURES, dtype=torch.float64))
GRID = torch.linspace(-1.5, 1.5, 31, dtype=torch.float64)[:, None]
DATA = gaps(30).to(dtype=torch.float64)


class Features(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return math.sqrt(2 / FEATURES) * torch.cos(x @ FREQUENCIES + PHASES)


def problem() -> bn.Problem:
    make = lambda: nn.Sequential(Features(), nn.Linear(FEATURES, 1, bias=False).double())  # noqa: E731
    return bn.Problem(make, bn.likelihoods.Gaussian(noise=SIGMA), bn.priors.Normal(scale=1.0))


def divergence(recipe: Any, members: int) -> float:
    """KL of the exact predictive at a point from the normal with the particles' moments, averaged over the line."""
    engine = bn.Engine(device="cpu", dtype=torch.float64, compile=False, progress=False)
    outputs = bn.fit(recipe, problem(), DATA, members=members, engine=engine).predict(GRID).outputs[:, 0, :, 0]
    mean, variance = outputs.mean(0), outputs.var(0, correction=0) + SIGMA**2
    phi, at = Features()(DATA.inputs), Features()(GRID)
    covariance = torch.linalg.inv(phi.T @ phi / SIGMA**2 + torch.eye(FEATURES))
    exact = (at @ covariance @ phi.T @ DATA.targets / SIGMA**2)[:, 0]
    known = torch.einsum("bi,ij,bj->b", at, covariance, at) + SIGMA**2
    ratio = known / variance
    return float(0.5 * (ratio - 1 - ratio.log() + (mean - exact).square() / variance).mean())


def test_more_members_than_features_are_exact_where_theory_says_so():
    stein = WGD(epochs=800, batch_size=None, estimate="sge", kernel="linear", ridge=1e-5, optimizer=SGD(lr=0.1))
    assert divergence(stein, FEATURES + 4) < 1e-3
    linear = SVGD(epochs=600, batch_size=None, kernel="linear", optimizer=SGD(lr=0.05, momentum=0.9))
    assert divergence(linear, FEATURES + 4) < 1e-3


@pytest.mark.parametrize(
    "options",
    [{}, {"estimate": "ssge"}, {"space": "function", "extra": 20}, None],
    ids=["kde", "ssge", "function", "SVGD"],
)
def test_repulsion_comes_closer_than_a_deep_ensemble(options):
    common: Any = {"epochs": 300, "batch_size": None, "optimizer": Adam(lr=Cosine(peak=0.05))}
    recipe = SVGD(**common) if options is None else WGD(**common, **options)
    assert divergence(recipe, 10) < 0.6 * divergence(MAP(**common), 10)


class Halves(nn.Module):
    """Linear in more weights than there are examples, with a prior of its own on each half of them."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = (nn.Linear(FEATURES, 1, bias=False).double() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.first(Features()(x)) + self.second(Features()(1.7 * x))


def test_the_prior_of_weights_is_that_of_functions_where_these_are_linear():
    """On outputs at the data, with the kernel z'z + 1: their mean and covariance under the exact posterior."""
    prior = bn.priors.Normal(scale={"first": 1.5, "second": 0.5})
    halves, data = bn.Problem(Halves, bn.likelihoods.Gaussian(noise=1.0), prior), DATA.take(slice(0, 30, 10))
    engine = bn.Engine(device="cpu", dtype=torch.float64, compile=False, progress=False)
    stein: Any = {"estimate": "sge", "kernel": "linear", "ridge": 1e-6, "optimizer": SGD(lr=0.3)}
    recipe = WGD(space="function", epochs=400, batch_size=None, **stein)
    posterior = bn.fit(recipe, halves, data, members=data.n + 3, engine=engine)
    functions = posterior.predict(data.inputs).outputs[:, 0, :, 0]
    near, far = Features()(data.inputs), Features()(1.7 * data.inputs)
    k = 1.5**2 * near @ near.T + 0.5**2 * far @ far.T
    gain = torch.linalg.solve(k + torch.eye(data.n), k).T  # K (K + I)^-1
    torch.testing.assert_close(functions.mean(0), (gain @ data.targets)[:, 0], rtol=0, atol=1e-3)
    torch.testing.assert_close(torch.cov(functions.T, correction=0), gain, rtol=0, atol=1e-3)
