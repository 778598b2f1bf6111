"""Noise by data that training has not seen: the factor under which they are most probable."""

import math

import pytest
import torch

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import Point
from basinet.problem import Batch
from basinet.problem.spread import SHIFTS, energies, least, set_noise

X = torch.linspace(-1, 1, 400, dtype=torch.float64).unsqueeze(1)
Y = 2 * X + 0.3 * Noise.seed(0).normal(X)


def problem(likelihood, outputs=1):
    return bn.Problem(lambda: torch.nn.Linear(1, outputs), likelihood)


def point_of(regression):
    point = regression.init(Noise.seed(1))
    weight = torch.zeros_like(point.params["weight"], dtype=torch.float64)
    weight[0] = 2.0
    params = {n: torch.zeros_like(x, dtype=torch.float64) for n, x in point.params.items()}
    return Point(params | {"weight": weight}, point.buffers)


LIKELIHOODS = {
    "gaussian": (bn.likelihoods.Gaussian(noise=1.0, learned=True), 1, 1.0),
    "heteroscedastic": (bn.likelihoods.Heteroscedastic(floor=0.0, learned=True), 2, math.log(2)),  # softplus(0)
}


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_the_factor_is_that_of_the_residuals(name):
    likelihood, outputs, before = LIKELIHOODS[name]
    regression = problem(likelihood, outputs)
    point, data = point_of(regression), bn.Data(X, Y)
    adjusted = set_noise(regression, point, data)
    exact = float((Y - 2 * X).square().mean().sqrt()) / before  # the maximum of a normal likelihood in its scale
    assert adjusted.factor == pytest.approx(exact, rel=1e-3)
    key = f"likelihood.{likelihood.spread}"
    assert float(adjusted.point.params[key]) == pytest.approx(float(point.params[key]) + math.log(exact), abs=1e-3)
    batch = Batch(X, Y, Y, torch.zeros(()), 400)
    lowest = least(energies(regression, [point], batch))
    after = -regression.log_likelihood(*adjusted.point, batch)[0]
    assert float(lowest) == pytest.approx(float(after), abs=400 * 5e-3)  # a parabola between points .25 apart
    assert energies(regression, [point], batch).shape == (len(SHIFTS),)


def test_without_a_spread_that_is_learned_nothing_changes():
    regression = problem(bn.likelihoods.Gaussian(noise=1.0))
    point = point_of(regression)
    assert set_noise(regression, point, bn.Data(X, Y)).point is point
    batch = Batch(X, Y, Y, torch.zeros(()), 400)
    energy = energies(regression, [point], batch)
    assert energy.shape == (1,) and least(energy) == -regression.log_likelihood(*point, batch)[0]


def test_points_together_have_the_mean_of_their_densities():
    regression = problem(bn.likelihoods.Gaussian(noise=0.5))
    points = [Point({n: x + shift for n, x in point_of(regression).params.items()}, {}) for shift in (0.0, 0.3)]
    each = [torch.distributions.Normal(X * p.params["weight"] + p.params["bias"], 0.5).log_prob(Y) for p in points]
    exact = (torch.logaddexp(*each) - math.log(2)).sum()
    energy = energies(regression, points, Batch(X, Y, Y, torch.zeros(()), 400))
    torch.testing.assert_close(energy, -exact.unsqueeze(0))


def test_rows_of_weight_zero_do_not_count():
    regression = problem(LIKELIHOODS["gaussian"][0])
    spoiled, weights = Y.clone(), torch.ones(400, dtype=torch.float64)
    spoiled[:50], weights[:50] = 100.0, 0.0
    point = point_of(regression)
    factor = set_noise(regression, point, bn.Data(X, spoiled, weights)).factor
    assert factor == pytest.approx(set_noise(regression, point, bn.Data(X[50:], Y[50:])).factor, rel=1e-6)


def test_a_fit_ends_with_the_noise_of_validation_and_says_so():
    regression = problem(bn.likelihoods.Gaussian(noise=0.05, learned=True))
    train, val = bn.Data(X[::2], Y[::2]), bn.Data(X[1::2], Y[1::2])
    recipe = bn.MAP(epochs=1, batch_size=None)  # one step moves no noise
    engine = bn.Engine(device="cpu", dtype=torch.double)
    alone, judged = (bn.fit(recipe, regression, train, val=v, engine=engine) for v in (None, val))
    [factor] = judged.info["curves"]["noise_factor"][0]
    a, b = (float(p.points()[0].params["likelihood.log_noise"]) for p in (alone, judged))
    assert b == pytest.approx(a + math.log(factor), abs=1e-6) and factor > 3
    assert bn.score(judged, val)["nll"] == pytest.approx(judged.info["curves"]["val_nll"][0][-1], abs=1e-2)
