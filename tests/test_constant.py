"""Members that predict worse than a constant are named; those that do not are not."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.constant import constant_line, nll_of_constant, worse_than_constant
from basinet.optim import Adam

KEY = bn.Noise.seed(0)
X = KEY.split("x").normal(torch.empty(80, 3))
Y = X[:, :1] + 0.1 * KEY.split("y").normal(torch.empty(80, 1))
TRAIN, VAL = bn.Data(X[:60], Y[:60]), bn.Data(X[60:], Y[60:])
ENGINE = bn.Engine(device="cpu", progress=False)


def test_the_constant_of_numbers_is_their_own_normal():
    normal = torch.distributions.Normal(Y[:60].mean(), Y[:60].std(correction=0))
    for likelihood in (bn.likelihoods.Gaussian(noise=0.1), bn.likelihoods.Heteroscedastic()):
        assert nll_of_constant(likelihood, TRAIN, VAL) == pytest.approx(
            float(-normal.log_prob(Y[60:]).mean()), rel=1e-5
        )
    both = (bn.Data(x.inputs, torch.cat([x.targets, x.targets], 1)) for x in (TRAIN, VAL))  # two outputs: their sum
    single = nll_of_constant(bn.likelihoods.Gaussian(), TRAIN, VAL)
    assert nll_of_constant(bn.likelihoods.Gaussian(), *both) == pytest.approx(2 * single)


def test_the_constant_of_classes_is_their_frequencies():
    known, new = torch.tensor([0, 0, 0, 1]), torch.tensor([0, 1, 2])
    chances = torch.tensor([4, 2, 1]) / 7  # one more of each, so that a new class has some
    value = nll_of_constant(bn.likelihoods.Categorical(), bn.Data(X[:4], known), bn.Data(X[:3], new))
    assert value == pytest.approx(float(-chances.log().mean()))


def test_nothing_is_reported_where_it_is_not_known():
    counts = bn.Data(X[:60], torch.ones(60, 1))
    assert nll_of_constant(bn.likelihoods.Poisson(), counts, counts) is None
    assert nll_of_constant(bn.likelihoods.Gaussian(), TRAIN, None) is None
    masked = bn.Data(X[:3], torch.tensor([0, -100, 1]))
    assert nll_of_constant(bn.likelihoods.Categorical(), masked, masked) is None
    assert worse_than_constant([{"loss": [1.0]}, {"val_nll": [3.0, 2.5]}], 2.0) == [0.0, 0.5]
    assert worse_than_constant([{"val_nll": [3.0]}], None) == [0.0]


@pytest.mark.parametrize(("rate", "worse"), [(0.05, False), (1e-9, True)])
def test_a_fit_that_is_worse_says_so(rate, worse, caplog):
    caplog.set_level(logging.INFO, "basinet")
    problem = bn.Problem(lambda: nn.Linear(3, 1), bn.likelihoods.Gaussian(noise=0.1))  # far from the truth at the start
    recipe = bn.MAP(optimizer=Adam(lr=rate), patience=5)
    posterior = bn.fit(recipe, problem, TRAIN, val=VAL, members=2, engine=ENGINE)
    assert ("worse_than_constant" in posterior.info) is worse
    assert ("2 of 2 members predict worse than a constant would" in caplog.text) is worse


def test_the_line_counts_the_members_that_are_worse():
    assert constant_line([0.0, 0.5, 0.0]).startswith("1 of 3 members predicts worse than a constant would")
    assert constant_line([0.5]).startswith("the network predicts worse") and "up to 0.5 nats" in constant_line([0.5])
