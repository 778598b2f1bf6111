"""VariationalDropout: its divergence and fixed point, what has an alpha, pruning, what is refused, real data."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import take
from basinet.methods.variational_dropout import VariationalDropout, kingma, molchanov
from basinet.optim import SGD, Adam, Cosine
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", dtype=torch.float64, strategy="loop", progress=False)
KEY = bn.Noise.seed(6)


def data(n: int = 24) -> bn.Data:
    x = KEY.split("x").normal(torch.empty(n, 4, dtype=torch.float64))
    return bn.Data(x, KEY.split("y").integers(n, 3))


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())


@pytest.mark.slow
def test_it_conforms_and_has_the_fixed_point_that_theory_says():
    checks = check_method(VariationalDropout(epochs=4, batch_size=16))
    assert sum("quadrature" in c.says for c in checks) == 2 and any("best pruned" in c.name for c in checks)


def test_both_divergences_have_one_slope_where_both_hold():
    log_alpha = torch.linspace(-6, -1, 11, dtype=torch.float64, requires_grad=True)
    slopes = [torch.autograd.grad(f(log_alpha).sum(), log_alpha)[0] for f in (molchanov, kingma)]
    torch.testing.assert_close(*slopes, rtol=0, atol=0.06)


@pytest.mark.parametrize(("per", "distinct"), [("weight", 32), ("unit", 4), ("layer", 1)])
def test_noise_belongs_to_weights_units_or_layers(per, distinct):
    recipe = VariationalDropout(epochs=30, per=per, prune=None, warm_up=0.0, optimizer=SGD(lr=1.0))
    posterior = bn.fit(recipe, PROBLEM, data(), members=2, engine=ENGINE)
    family = take(posterior.parts[0].family, 0).part
    log_alpha = 2 * (family.scale["0.weight"].log() - family.centre["0.weight"].abs().log())
    assert len(log_alpha.reshape(-1).round(decimals=8).unique()) == distinct
    if per == "unit":
        torch.testing.assert_close(log_alpha, log_alpha[:1].expand_as(log_alpha))


def test_kingma_keeps_alpha_at_most_one():
    recipe = VariationalDropout(epochs=300, divergence="kingma", optimizer=Adam(lr=0.1), warm_up=0.0)
    family = take(bn.fit(recipe, PROBLEM, data(), engine=ENGINE).parts[0].family, 0).part
    ratio = torch.cat([(family.scale[n] / family.centre[n].abs()).reshape(-1) for n in family.centre])
    assert float(ratio.max()) <= 1 + 1e-9


def test_weights_that_are_all_noise_are_zero_and_the_share_kept_is_reported():
    recipe = VariationalDropout(epochs=200, optimizer=Adam(lr=Cosine(peak=0.1)))
    posterior = bn.fit(recipe, PROBLEM, data(), engine=ENGINE)
    family = take(posterior.parts[0].family, 0).part
    zero = sum(int((x == 0).sum()) for x in family.centre.values())
    total = sum(x.numel() for x in family.centre.values())
    share = posterior.info["curves"]["kept_share"][0][0]
    assert share == pytest.approx(1 - zero / total) and 0 <= share < 1
    assert posterior.info["notes"][0][0].startswith(f"{share:.2%} of {total} weights kept: 0.weight")
    assert math.isfinite(float(family.log_prob(family.centre)))
    draws = posterior.sample(3)["0.weight"][0]
    assert float(draws[:, family.centre["0.weight"] == 0].abs().max()) < 1e-12
    everything = bn.fit(VariationalDropout(epochs=1, prune=None), PROBLEM, data(), engine=ENGINE)
    assert everything.info["curves"]["kept_share"] == [[1.0]]


def test_biases_have_the_prior_of_the_problem_and_weights_have_not():
    still = {"epochs": 1, "batch_size": None, "warm_up": 0.0, "optimizer": SGD(lr=1.0), "prune": None}
    start = bn.Posterior.of(net(), PROBLEM)
    means = {}
    for scale in (1.0, 0.1):
        problem = bn.Problem(net, bn.likelihoods.Categorical(), bn.priors.Normal(scale=scale))
        means[scale] = bn.fit(VariationalDropout(**still), problem, data(), start=start, engine=ENGINE).mean()
    bias = start.mean()["0.bias"]
    torch.testing.assert_close(means[1.0]["0.weight"], means[0.1]["0.weight"])
    torch.testing.assert_close(means[1.0]["0.bias"] - means[0.1]["0.bias"], (1 / 0.1**2 - 1) * bias / 24)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per": "channel"}, "expected per 'weight', 'unit' or 'layer'"),
        ({"divergence": "exact"}, "expected divergence 'molchanov' or 'kingma'"),
        ({"warm_up": 1.0}, "expected warm_up as a part of the steps"),
        ({"prune": 9.0}, "expected prune of at most 8"),
        ({"where": "*.bias", "per": "unit"}, "per='unit' is for matrices and kernels, got 0.bias, 2.bias"),
        ({"where": "head.*"}, "no parameter matches"),
    ],
)
def test_impossible_recipes_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        bn.fit(VariationalDropout(**options), PROBLEM, data(), engine=ENGINE)


def test_a_network_without_matrices_is_refused():
    problem = bn.Problem(lambda: nn.PReLU(3).double(), bn.likelihoods.Categorical())
    with pytest.raises(ValueError, match="has no matrix or kernel"):
        bn.fit(VariationalDropout(), problem, bn.Data(data().inputs[:, :3], data().targets), engine=ENGINE)


def test_digits_need_few_of_the_weights():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(60,)), bn.likelihoods.Categorical())
    recipe = VariationalDropout(epochs=60, optimizer=Adam(lr=Cosine(peak=0.02)))
    posterior = bn.fit(recipe, problem, splits.train, engine=bn.Engine(device="cpu", strategy="loop", progress=False))
    assert bn.score(posterior, splits.test)["accuracy"] > 0.9
    assert posterior.info["curves"]["kept_share"][0][0] < 0.5
