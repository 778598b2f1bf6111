"""WGD: its theory, its fixed points through `gradient`, and what it does to real networks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import ravel
from basinet.engine import Descent, Lift
from basinet.methods.map import MAP
from basinet.methods.wgd import WGD
from basinet.optim import SGD, Adam, Cosine
from basinet.problem import Batch
from basinet.problem.exact import Conjugate, conjugate
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", compile=False, progress=False)
FAST = Adam(lr=Cosine(peak=0.03))


def settled(recipe: Any, exact: Conjugate, members: int, rate: float, steps: int) -> Tensor:
    """(members, d), where plain descent along the method's directions ends; `rate` is for the potential."""
    data, d = exact.data, len(exact.mean)
    spread = Noise.seed(3).normal(torch.empty(members, 1, d, dtype=torch.float64))
    weights = exact.mean + spread @ torch.linalg.cholesky(exact.covariance).T
    batch = Batch(data.inputs, data.targets, torch.arange(data.n), torch.tensor(0), data.n)
    rate = rate * exact.problem.scale(data.n)
    for t in range(steps):
        keys = Noise.seed(t).spread(members)
        grads, _ = recipe.gradient(Descent({"weight": weights}, {}, ()), batch, exact.problem, keys, Lift())
        weights = weights - rate * grads["weight"]
    return weights[:, 0]


def test_wgd_conforms_and_settles_as_its_theory_says():
    checks = check_method(WGD(epochs=4, batch_size=16))
    assert sum("variance of 100 particles" in c.name for c in checks) == 2


@pytest.mark.parametrize("strength", [0.5, 2.0])
def test_repulsion_scales_the_variance(strength):
    exact = conjugate(d=1, n=10)
    s2 = float(exact.covariance)
    recipe = WGD(bandwidth=math.sqrt(0.2 * s2), repulsion=strength)
    found = settled(recipe, exact, 100, 0.2 * s2 / strength, 150)
    assert float(found.var(correction=0)) / s2 == pytest.approx(strength - 0.2, rel=0.05)  # C + h^2 = repulsion s^2


def test_in_function_space_the_kernel_is_seen_through_the_inputs():
    """A linear model with outputs X w: a kernel of covariance h^2 in outputs is one of h^2 (X'X)^-1 in weights."""
    exact = conjugate(d=1, n=10)
    s2, square = float(exact.covariance), float(exact.data.inputs.square().sum())
    recipe = WGD(space="function", bandwidth=math.sqrt(0.3 * s2 * square))
    found = settled(recipe, exact, 100, 0.3 * s2, 150)
    assert float(found.var(correction=0)) / s2 == pytest.approx(0.7, abs=0.02)
    assert abs(float(found.mean() - exact.mean)) < 0.02 * math.sqrt(s2)


def test_in_function_space_a_rotation_of_the_weights_changes_nothing():
    """Orthonormal inputs and a wide prior, known by its draws."""
    key, d = Noise.seed(0), 3
    x = torch.linalg.qr(key.split("x").normal(torch.empty(d, d, dtype=torch.float64)))[0]
    y = key.split("y").normal(torch.empty(d, 1, dtype=torch.float64))
    make = lambda: nn.Linear(d, 1, bias=False).double()  # noqa: E731
    problem = bn.Problem(make, bn.likelihoods.Gaussian(noise=1.0), bn.priors.Normal(scale=1e3))
    exact = Conjugate(problem, bn.Data(x, y), (x.T @ y)[:, 0], torch.eye(d, dtype=torch.float64), 0.0)
    spaces = ({"space": "weights"}, {"space": "function", "prior_draws": None})
    ends = [settled(WGD(**s, bandwidth=0.8), exact, 20, 0.3, 60) for s in spaces]
    assert float((ends[0] - ends[1]).abs().max()) < 0.02


def test_members_on_digits_in_each_space(tmp_path):
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(20,)), bn.likelihoods.Categorical())
    train = splits.train.take(slice(0, 500))
    plain = bn.fit(MAP(epochs=15, optimizer=FAST), problem, train, members=4, engine=ENGINE)
    accuracy = bn.score(plain, splits.test)["accuracy"]
    for options in ({}, {"space": "function"}, {"space": "features", "layer": "layers.1"}):
        recipe = WGD(epochs=15, optimizer=FAST, **options)
        made = bn.fit(recipe, problem, train, members=4, engine=ENGINE)
        assert bn.score(made, splits.test)["accuracy"] > accuracy - 0.03
        made.save(tmp_path / str(len(options)))
        again = bn.load(tmp_path / str(len(options)), lambda: bn.networks.MLP(64, 10, hidden=(20,)))
        assert again.recipe == recipe
        inputs = splits.test.inputs[:20]
        assert torch.equal(again.predict(inputs).outputs, made.predict(inputs).outputs)


def test_strong_repulsion_of_functions_makes_members_differ():
    train, away = bn.data.toys.gaps(40), bn.data.toys.in_gaps(100).inputs
    problem = bn.Problem(lambda: bn.networks.MLP(1, 1, hidden=(20,)), bn.likelihoods.Gaussian(noise=0.1))
    spread = {}
    for strength in (0.0, 50.0):
        recipe = WGD(epochs=60, space="function", extra=20, repulsion=strength, optimizer=Adam(lr=0.01))
        made = bn.fit(recipe, problem, train, members=5, engine=ENGINE)
        spread[strength] = float(made.predict(away).epistemic.mean().sqrt())
    assert spread[50.0] > 1.5 * spread[0.0]


def test_functions_of_few_data_do_not_fit_the_noise():
    """The prior holds functions as it holds weights. (Known by five draws it does not: NLL .28 above MAP's.)"""
    splits = bn.datasets.load("diabetes")
    likelihood = bn.likelihoods.Gaussian(noise=0.5, learned=True)
    problem = bn.Problem(lambda: bn.networks.MLP(10, 1, hidden=(50,)), likelihood, bn.priors.Normal(scale="lecun"))

    def nll(recipe: Any) -> float:
        return bn.score(bn.fit(recipe, problem, splits.train, members=5, engine=ENGINE), splits.test)["nll"]

    common: Any = {"epochs": 100, "optimizer": FAST}
    assert abs(nll(WGD(**common, space="function")) - nll(MAP(**common))) < 0.05


def test_compare_has_two_rows_of_it_and_the_papers_settings_have_a_name():
    assert [(e.label, e.recipe, e.members) for e in WGD.lineup()] == [
        ("WGD (weights)", WGD(), 10),
        ("WGD (function)", WGD(space="function"), 10),
    ]
    paper = WGD.paper(space="features", layer="0")
    assert (paper.repulsion, paper.optimizer, paper.layer, paper.prior_draws) == (1.0, Adam(lr=0.01), "0", 0)
    assert WGD.paper(space="function").prior_draws is None


def test_members_are_asked_for():
    exact = conjugate()
    with pytest.raises(ValueError, match="give members=10"):
        bn.fit(WGD(), exact.problem, exact.data)
    one = bn.fit(WGD(epochs=5, optimizer=SGD(lr=0.1)), exact.problem, exact.data, members=1, engine=ENGINE)
    plain = bn.fit(MAP(epochs=5, optimizer=SGD(lr=0.1)), exact.problem, exact.data, members=1, engine=ENGINE)
    assert torch.allclose(ravel(one.sample(1), 2), ravel(plain.sample(1), 2), rtol=0, atol=1e-12)
