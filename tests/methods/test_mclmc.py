"""MCLMC: its integrator, that it agrees with HMC on a skewed posterior, and what it says of failed steps."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from known_targets import ENGINE, at, draws_of, linear_diabetes, states, step_of

import basinet as bn
from basinet.diagnostics import mcse_mean
from basinet.methods.mclmc import turned, unit
from basinet.problem.exact import conjugate

EXACT = conjugate()


def test_a_turn_keeps_the_length_and_follows_its_differential_equation():
    key = bn.Noise.seed(0)
    u = unit(key.split("u").normal(torch.empty(4, 6, dtype=torch.float64)))
    slopes = key.split("g").normal(torch.empty(4, 6, dtype=torch.float64))
    for scale in (1e-8, 1.0, 1e6):  # cosh of the last is beyond all numbers
        new, change = turned(u, scale * slopes, torch.ones(4, 1, dtype=torch.float64))
        torch.testing.assert_close(new.norm(dim=1), torch.ones(4, dtype=torch.float64))
        assert bool(change.isfinite().all())
    e = torch.full((4, 1), 1e-5, dtype=torch.float64)
    new, change = turned(u, slopes, e)
    along = (u * slopes).sum(1, keepdim=True)
    rate = -(slopes - along * u) / 5
    torch.testing.assert_close((new - u) / e, rate, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(change / 1e-5, -along[:, 0], rtol=1e-4, atol=1e-4)  # d (d - 1) log |p| = -u'g
    half, first = turned(u, slopes, e * 3e4)
    both, second = turned(half, slopes, e * 3e4)
    whole, total = turned(u, slopes, e * 6e4)
    torch.testing.assert_close(both, whole)
    torch.testing.assert_close(first + second, total)


def test_the_energy_error_of_a_step_is_of_third_order_at_least():
    wide = conjugate(n=60, d=20, correlation=0.3)
    errors = []
    for halving in range(3):
        errors.append(_error(bn.MCLMC(step_size=0.004 / 2**halving, length=1e12), wide))
    for coarse, fine in pairwise(errors):
        assert coarse / fine > 6.5  # 8 or more


def _error(recipe: bn.MCLMC, wide) -> float:
    """Of the second step's energy, by hand."""
    state = states(recipe, wide.problem, (wide.mean + 0.3).unsqueeze(0))
    first, _ = recipe.moved(state, step_of(wide.problem, wide.data, 1, 0))
    second, _ = recipe.moved(first, step_of(wide.problem, wide.data, 1, 1))
    e = torch.full((1, 1), recipe.step_size, dtype=torch.float64)
    u, a = turned(first.direction, first.slopes, e / 2)
    _, b = turned(u, second.slopes, e / 2)
    return abs(float(second.energy - first.energy + a + b))


def test_moments_agree_with_those_of_hmc():
    problem, data, _, covariance = linear_diabetes()
    start = at(problem, torch.zeros(len(covariance), dtype=torch.float64))
    recipes = (bn.MCLMC(steps=800, warmup=400, draws=20), bn.HMC(steps=500, warmup=250, draws=20))
    ours, other = (
        draws_of(bn.fit(recipe, problem, data, members=24, engine=ENGINE, start=start)) for recipe in recipes
    )
    z = (ours.mean((0, 1)) - other.mean((0, 1))) / (mcse_mean(ours) ** 2 + mcse_mean(other) ** 2).sqrt()
    assert float(z.abs().max()) < 4.5
    ratio = ours.var((0, 1)) / covariance.diagonal()
    assert bool(((ratio - 1).abs() < 0.1 + 4.5 * math.sqrt(2 / 300)).all())  # bias, and 300 effective draws at z = 4.5


def test_a_chain_that_runs_off_is_put_where_another_is(caplog):
    places = [EXACT.mean + 0.1 * k for k in range(6)]
    places[2] = EXACT.mean + 1e9
    recipe = bn.MCLMC(steps=400, warmup=200, draws=10)
    with caplog.at_level("INFO", "basinet"):
        posterior = bn.fit(
            recipe, EXACT.problem, EXACT.data, members=6, engine=ENGINE, start=at(EXACT.problem, *places)
        )
    assert float((draws_of(posterior) - EXACT.mean).abs().max()) < 10
    assert any("went astray" in line and "member 2" in line for line in caplog.messages)


@pytest.mark.parametrize(
    ("options", "words"), [({"length": 0.0}, "finite length"), ({"tolerance": 2.0}, "tolerance between 0 and 1")]
)
def test_recipes_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        bn.MCLMC(**options)
