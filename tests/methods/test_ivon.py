"""IVON: its fixed point, its step as published, N from the data, priors, what is refused, real data."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import ravel, take
from basinet.families import Diagonal, Partial
from basinet.methods.ivon import IVON
from basinet.optim import Cosine
from basinet.testing import check_method
from basinet.testing.exact import conjugate

ENGINE = bn.Engine(device="cpu", dtype=torch.float64, strategy="loop", progress=False)


@pytest.mark.slow
def test_it_conforms_and_has_the_fixed_point_of_mean_field():
    checks = check_method(IVON(epochs=4, batch_size=16))
    assert sum("variances" in c.name for c in checks) == 2


def test_a_step_is_the_published_one():
    exact = conjugate()
    recipe = IVON(epochs=3, batch_size=None, lr=0.2, curvature=0.7, betas=(0.8, 0.9), clip=0.05)
    posterior = bn.fit(recipe, exact.problem, exact.data, engine=ENGINE)
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
    family = take(posterior.parts[0].family, 0)
    torch.testing.assert_close(ravel(family.centre), m, rtol=1e-12, atol=0)
    torch.testing.assert_close(ravel(family.scale), (n * (h + delta)).rsqrt(), rtol=1e-12, atol=0)


def test_variances_stay_positive_under_the_wildest_curvature():
    exact = conjugate()
    posterior = bn.fit(
        IVON(epochs=30, batch_size=2, betas=(0.9, 0.1), lr=0.0), exact.problem, exact.data, engine=ENGINE
    )
    scale = ravel(take(posterior.parts[0].family, 0).scale)
    assert bool((scale > 0).all()) and bool(scale.isfinite().all())


@pytest.mark.parametrize(("n", "curvature"), [(40, 5.0), (400, 1 / (400 * 0.03**2)), (4000, 0.5)])
def test_it_starts_no_wider_than_a_network_can_learn_with(n, curvature):
    exact = conjugate(n=n)
    start = IVON(epochs=1, batch_size=None, lr=0.0, betas=(0.9, 1 - 1e-9))
    scale = ravel(take(bn.fit(start, exact.problem, exact.data, engine=ENGINE).parts[0].family, 0).scale)
    expected = torch.full_like(scale, (n * curvature + 1.5**-2) ** -0.5)
    torch.testing.assert_close(scale, expected, rtol=1e-5, atol=0)


def test_a_weight_that_data_do_not_see_neither_runs_off_nor_outgrows_its_prior():
    """An input that is always zero has no curvature: divided by that, steps along its gradient had no bound."""
    exact = conjugate()
    inputs = torch.cat([exact.data.inputs, torch.zeros(exact.data.n, 1, dtype=torch.float64)], 1)
    noisy = bn.Data(inputs + 1e-3 * bn.Noise.seed(0).normal(inputs), exact.data.targets)
    problem = bn.Problem(
        lambda: nn.Linear(4, 1, bias=False).double(), exact.problem.likelihood, bn.priors.Normal(scale=30.0)
    )
    fitted = bn.fit(IVON(epochs=100, batch_size=10, lr=0.5, betas=(0.9, 0.9)), problem, noisy, engine=ENGINE)
    family = take(fitted.parts[0].family, 0)
    assert bool(ravel(family.scale).le(30.0 * (1 + 1e-9)).all())
    assert float(family.centre["weight"][0, 3].abs()) < 30.0 and bool(ravel(family.centre).isfinite().all())


def test_the_prior_may_be_centred_and_the_noise_learned():
    exact = conjugate(n=4)
    centre = {"weight": torch.full((1, 3), 5.0, dtype=torch.float64)}
    recipe = IVON(epochs=200, batch_size=None, lr=Cosine(peak=0.2), curvature=1.0, betas=(0.9, 0.95), draws=100)
    tight = bn.Problem(exact.problem.network, exact.problem.likelihood, bn.priors.Normal(scale=0.01, centre=centre))
    posterior = bn.fit(recipe, tight, exact.data, engine=ENGINE)
    torch.testing.assert_close(posterior.mean()["weight"], centre["weight"], rtol=0, atol=0.05)
    learned = bn.Problem(exact.problem.network, bn.likelihoods.Gaussian(noise=3.0, learned=True))
    posterior = bn.fit(IVON(epochs=100), learned, conjugate().data, engine=ENGINE)
    family = posterior.parts[0].family
    assert isinstance(family, Partial) and isinstance(family.part, Diagonal)
    assert float(posterior.mean()["likelihood.log_noise"].exp()) < 1.5


def test_it_trains_on_streams_and_in_stacks_alike():
    exact = conjugate()
    parts = [(exact.data.inputs[i : i + 10], exact.data.targets[i : i + 10]) for i in range(0, 40, 10)]
    stream = bn.Data.stream(parts, n=40)
    posterior = bn.fit(IVON(epochs=2), exact.problem, stream, members=2, engine=ENGINE)
    assert len(posterior) == 2 and bool(ravel(posterior.mean()).isfinite().all())


@pytest.mark.parametrize("accumulate", [2, 3, 100])
def test_a_batch_in_parts_gives_the_step_of_the_whole(accumulate):
    """Parts of unequal size too; more than there are examples is one example per pass."""
    exact = conjugate()
    whole, parts = (
        bn.fit(
            IVON(epochs=3, batch_size=10, draws=2, accumulate=k), exact.problem, exact.data, members=2, engine=ENGINE
        )
        for k in (1, accumulate)
    )
    for one, other in zip(whole.parts[0].family.scale.values(), parts.parts[0].family.scale.values()):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=0)
    torch.testing.assert_close(ravel(whole.mean()), ravel(parts.mean()), rtol=1e-10, atol=1e-12)
    losses = [p.info["curves"]["loss"] for p in (whole, parts)]
    assert losses[0][1] == pytest.approx(losses[1][1])


def test_parts_of_weighted_examples_and_of_streams_count_as_they_do_together():
    exact = conjugate()
    weights = torch.linspace(0.0, 2.0, exact.data.n, dtype=torch.float64)
    weighted = bn.Data(exact.data.inputs, exact.data.targets, weights)
    batches = [(exact.data.inputs[i : i + 10], exact.data.targets[i : i + 10]) for i in range(0, 40, 10)]
    for given in (weighted, bn.Data.stream(batches, n=40)):
        whole, parts = (
            bn.fit(IVON(epochs=2, batch_size=10, accumulate=k), exact.problem, given, engine=ENGINE) for k in (1, 3)
        )
        torch.testing.assert_close(ravel(whole.mean()), ravel(parts.mean()), rtol=1e-10, atol=1e-12)


def test_many_members_at_once_are_those_of_single_runs():
    exact = conjugate()
    recipe = IVON(epochs=5, batch_size=10, accumulate=2)
    stacked = bn.fit(recipe, exact.problem, exact.data, members=5, engine=replace(ENGINE, strategy="stacked"))
    alone = bn.fit(recipe, exact.problem, exact.data, members=5, engine=ENGINE)
    one, other = stacked.parts[0].family, alone.parts[0].family
    torch.testing.assert_close(ravel(one.scale), ravel(other.scale), rtol=1e-9, atol=0)
    torch.testing.assert_close(ravel(one.centre), ravel(other.centre), rtol=1e-9, atol=1e-12)
    assert len({*one.centre["weight"][:, 0, 0].tolist()}) == 5  # each its own


@pytest.mark.slow
def test_products_in_bfloat16_leave_the_posterior_in_float32_and_what_it_knows():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(40,)), bn.likelihoods.Categorical())
    cast = bn.Engine(device="cpu", strategy="stacked", progress=False, autocast=torch.bfloat16, processes=1)
    posterior = bn.fit(IVON(epochs=30), problem, splits.train, members=2, engine=cast)
    family = posterior.parts[0].family
    assert {x.dtype for x in (*family.centre.values(), *family.scale.values())} == {torch.float32}
    plain = bn.fit(IVON(epochs=30), problem, splits.train, members=2, engine=replace(cast, autocast=None))
    nlls = [bn.score(p, splits.test)["nll"] for p in (posterior, plain)]
    assert abs(nlls[0] - nlls[1]) < 0.02 and nlls[1] < 0.5
    assert not torch.equal(ravel(family.centre), ravel(plain.parts[0].family.centre))  # it was in bfloat16
    with pytest.raises(ValueError, match=r"each step keeps 0\.999 does not move in torch\.bfloat16"):
        bn.fit(IVON(epochs=1), problem, splits.train, engine=replace(cast, autocast=None, dtype=torch.bfloat16))


def test_one_network_knows_digits():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(40,)), bn.likelihoods.Categorical())
    engine = bn.Engine(device="cpu", strategy="loop", progress=False)
    posterior = bn.fit(IVON(epochs=60), problem, splits.train, engine=engine)
    assert bn.score(posterior, splits.test)["accuracy"] > 0.92


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"lr": -1.0}, "expected a finite learning rate of at least 0"),
        ({"curvature": 0.0}, "expected a positive, finite curvature"),
        ({"betas": (0.9, 1.0)}, "expected two betas of at least 0 and below 1"),
        ({"clip": 0.0}, "expected clip above 0"),
        ({"draws": 0}, "expected at least 1 draw"),
        ({"accumulate": 0}, "expected accumulate of at least 1 pass"),
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
