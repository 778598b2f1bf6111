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
