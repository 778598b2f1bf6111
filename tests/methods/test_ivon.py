"""IVON: its fixed point, its step as published, N from the data, priors, what is refused, real data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import ravel, take
from basinet.families import Diagonal, Partial
from basinet.methods.ivon import IVON
from basinet.optim import Cosine
from basinet.problem.exact import conjugate
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", dtype=torch.float64, strategy="loop", progress=False)


def test_it_conforms_and_has_the_fixed_point_of_mean_field():
    checks = check_method(IVON(epochs=4, batch_size=16))
    assert sum("variances" in c.name for c in checks) == 2


def test_a_step_is_the_published_one():
    exact = conjugate()
    recipe = IVON(epochs=3, batch_size=None, lr=0.2, curvature=0.7, betas=(0.8, 0.9), clip=0.05)
    made = bn.fit(recipe, exact.problem, exact.data, engine=ENGINE)
    x, y, n, prior = exact.data.inputs, exact.data.targets.reshape(-1), exact.data.n, 1.5
    delta = 1 / (prior**2 * n)
    start = bn.fit(IVON(epochs=0, batch_size=None), exact.problem, exact.data, engine=ENGINE)
    m, h, v = start.mean()["weight"].reshape(-1), torch.full((3,), 0.7, dtype=torch.float64), torch.zeros(3).double()
    key = bn.Noise.seed(0).split("fit").split(0).split(0).split("step")
    for t in range(1, 4):
        z = key.split(t - 1).split("weights").normal(m)
        s = (n * (h + delta)).rsqrt()
        g = x.T @ (x @ (m + s * z) - y) / (n * 0.5**2)
        v = 0.8 * v + 0.2 * g
        new = 0.9 * h + 0.1 * g * z / s + 0.5 * 0.1**2 * (h - g * z / s).square() / (h + delta)
        h = new
        m = m - 0.2 * (0.7 + delta) * ((v / (1 - 0.8**t) + delta * m) / (h + delta)).clamp(-0.05, 0.05)
    family = take(made.parts[0].family, 0)
    torch.testing.assert_close(ravel(family.centre), m, rtol=1e-12, atol=0)
    torch.testing.assert_close(ravel(family.scale), (n * (h + delta)).rsqrt(), rtol=1e-12, atol=0)


def test_variances_stay_positive_under_the_wildest_curvature():
    exact = conjugate()
    made = bn.fit(IVON(epochs=30, batch_size=2, betas=(0.9, 0.1), lr=0.0), exact.problem, exact.data, engine=ENGINE)
    scale = ravel(take(made.parts[0].family, 0).scale)
    assert bool((scale > 0).all()) and bool(scale.isfinite().all())


def test_the_prior_may_be_centred_and_the_noise_learned():
    exact = conjugate(n=4)
    centre = {"weight": torch.full((1, 3), 5.0, dtype=torch.float64)}
    recipe = IVON(epochs=200, batch_size=None, lr=Cosine(peak=0.2), curvature=1.0, betas=(0.9, 0.95), draws=100)
    tight = bn.Problem(exact.problem.network, exact.problem.likelihood, bn.priors.Normal(scale=0.01, centre=centre))
    made = bn.fit(recipe, tight, exact.data, engine=ENGINE)
    torch.testing.assert_close(made.mean()["weight"], centre["weight"], rtol=0, atol=0.05)
    learned = bn.Problem(exact.problem.network, bn.likelihoods.Gaussian(noise=3.0, learned=True))
    made = bn.fit(IVON(epochs=100), learned, conjugate().data, engine=ENGINE)
    family = made.parts[0].family
    assert isinstance(family, Partial) and isinstance(family.part, Diagonal)
    assert float(made.mean()["likelihood.log_noise"].exp()) < 1.5


def test_it_trains_on_streams_and_in_stacks_alike():
    exact = conjugate()
    parts = [(exact.data.inputs[i : i + 10], exact.data.targets[i : i + 10]) for i in range(0, 40, 10)]
    stream = bn.Data.stream(parts, n=40)
    made = bn.fit(IVON(epochs=2), exact.problem, stream, members=2, engine=ENGINE)
    assert len(made) == 2 and bool(ravel(made.mean()).isfinite().all())


def test_one_network_knows_digits():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(40,)), bn.likelihoods.Categorical())
    engine = bn.Engine(device="cpu", strategy="loop", progress=False)
    made = bn.fit(IVON(epochs=60), problem, splits.train, engine=engine)
    assert bn.score(made, splits.test)["accuracy"] > 0.92


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "expected a finite learning rate of at least 0"),
        ({"curvature": 0.0}, "expected a positive, finite curvature"),
        ({"betas": (0.9, 1.0)}, "expected two betas of at least 0 and below 1"),
        ({"clip": 0.0}, "expected clip above 0"),
        ({"draws": 0}, "expected at least 1 draw"),
        ({"lr": math.inf}, "expected a finite learning rate"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        IVON(**options)


def test_a_prior_that_is_not_normal_is_refused():
    problem = bn.Problem(lambda: nn.Linear(3, 2), bn.likelihoods.Gaussian(), bn.priors.Laplace())
    with pytest.raises(ValueError, match="IVON adds the precision of a normal prior"):
        bn.fit(IVON(), problem, bn.Data(torch.randn(8, 3), torch.randn(8, 2)), engine=ENGINE)
