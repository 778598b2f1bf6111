"""SVGD: its theory, its fixed points through `gradient`, and what it does to real networks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import basinet as bn
from basinet.core.noise import Noise
from basinet.engine import Descent, Lift
from basinet.methods.map import MAP
from basinet.methods.svgd import SVGD
from basinet.optim import Adam, Cosine
from basinet.problem import Batch
from basinet.problem.exact import Conjugate, conjugate
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", compile=False, progress=False)
FAST = Adam(lr=Cosine(peak=0.03))


def settled(recipe: Any, exact: Conjugate, members: int, rate: float, steps: int) -> Tensor:
    """(members, d), where descent along the method's directions, with momentum, ends; `rate` is for the potential."""
    data, d = exact.data, len(exact.mean)
    spread = Noise.seed(3).normal(torch.empty(members, 1, d, dtype=torch.float64))
    weights = exact.mean + spread @ torch.linalg.cholesky(exact.covariance).T
    batch = Batch(data.inputs, data.targets, torch.arange(data.n), torch.tensor(0), data.n)
    keys, velocity = Noise.seed(0).spread(members), torch.zeros_like(weights)
    for _ in range(steps):
        grads, _ = recipe.gradient(Descent({"weight": weights}, {}, ()), batch, exact.problem, keys, Lift())
        velocity = 0.8 * velocity + rate * exact.problem.scale(data.n) * grads["weight"]
        weights = weights - velocity
    return weights[:, 0]


def test_svgd_conforms_and_settles_as_its_theory_says():
    checks = check_method(SVGD(epochs=4, batch_size=16))
    assert sum("kernel x'y + 1" in c.name for c in checks) == 4


@pytest.mark.parametrize(
    ("members", "expected"), [(10, 0.772), (50, 0.936), pytest.param(200, 0.979, marks=pytest.mark.slow)]
)
def test_with_the_median_bandwidth_the_variance_is_the_known_one(members, expected):
    exact = conjugate(d=1, n=10)
    s2 = float(exact.covariance)
    found = settled(SVGD(), exact, members, s2, 250)
    assert float(found.var(correction=0)) / s2 == pytest.approx(expected, abs=0.004)
    assert abs(float(found.mean() - exact.mean)) < 0.01 * s2**0.5


def test_one_member_more_than_parameters_is_exact_with_the_linear_kernel():
    exact = conjugate(d=2, n=6, noise=1.0, correlation=0.5)
    found = settled(SVGD(kernel="linear"), exact, 3, 0.03, 400)
    torch.testing.assert_close(found.mean(0), exact.mean, rtol=0, atol=1e-6)
    torch.testing.assert_close(torch.cov(found.T, correction=0), exact.covariance, rtol=0, atol=1e-6)


def test_members_on_digits_in_each_space():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(20,)), bn.likelihoods.Categorical())
    train = splits.train.take(slice(0, 500))
    plain = bn.score(bn.fit(MAP(epochs=15, optimizer=FAST), problem, train, members=4, engine=ENGINE), splits.test)[
        "accuracy"
    ]
    for options in ({}, {"space": "function"}, {"space": "features", "layer": "layers.1"}):
        made = bn.fit(SVGD(epochs=15, optimizer=FAST, **options), problem, train, members=4, engine=ENGINE)
        assert bn.score(made, splits.test)["accuracy"] > plain - 0.03


def test_compare_has_one_row_of_it_and_the_papers_settings_have_a_name():
    assert [(e.label, e.recipe, e.members) for e in SVGD.lineup()] == [("SVGD", SVGD(), 10)]
    paper = SVGD.paper()
    assert (paper.batch_size, paper.repulsion, paper.bandwidth) == (100, 1.0, None)
    assert isinstance(paper.optimizer, Adam) and paper.optimizer.lr == 1e-3
