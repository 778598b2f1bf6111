"""MCLMC: its integrator, that it agrees with HMC on a skewed posterior, and what it says of failed steps."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from known_targets import ENGINE, at, draws_of, linear_diabetes, states, step_of

import basinet as bn
from basinet.chains.stride import ORDER
from basinet.diagnostics import mcse_mean
from basinet.methods.mclmc import turned, unit
from basinet.testing.exact import conjugate

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


def test_the_energy_error_of_a_step_is_of_third_order():
    """A symmetric integrator of second order: 8 times less at half the step, its variance 64 times, the power that the
    search for a step size counts on."""
    wide = conjugate(n=60, d=20, correlation=0.3)
    z = bn.Noise.seed(3).normal(torch.empty(64, 20, dtype=torch.float64))
    places = wide.mean + z @ torch.linalg.cholesky(wide.covariance).T
    errors = [_error(bn.MCLMC(step_size=0.008 / 2**halving, length=1e12), wide, places) for halving in range(3)]
    for coarse, fine in pairwise(errors):
        assert abs(coarse / fine - 8) < 0.15
    assert 2**ORDER == 8**2


def _error(recipe: bn.MCLMC, wide, places) -> float:
    """The error of one step's energy, by hand: the root of its mean square over chains."""
    chains = len(places)
    state = states(recipe, wide.problem, places)
    first, _ = recipe.moved(state, step_of(wide.problem, wide.data, chains, 0))
    second, _ = recipe.moved(first, step_of(wide.problem, wide.data, chains, 1))
    e = torch.full((chains, 1), recipe.step_size, dtype=torch.float64)
    u, a = turned(first.direction, first.slopes, e / 2)
    _, b = turned(u, second.slopes, e / 2)
    return float((second.energy - first.energy + a + b).square().mean().sqrt())


@pytest.mark.slow
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


@pytest.mark.parametrize("bent", [False, True])
def test_the_length_is_the_posteriors_size_unless_longer_ones_go_farther(bent):
    """Scales that belong to directions between the parameters are not found by a diagonal: chains go on for longer."""
    d = 20
    exact = conjugate(n=60, d=d, correlation=0.995) if bent else conjugate(correlation=0.0, lengths=(1.0, 30.0), d=d)
    recipe = bn.MCLMC(steps=620, warmup=600, draws=4)
    start = at(exact.problem, exact.mean)
    posterior = bn.fit(recipe, exact.problem, exact.data, members=8, engine=ENGINE, start=start)
    lengths = {row[0] for row in posterior.info["curves"]["length"]}
    assert len(lengths) == 1  # found together
    assert (lengths.pop() > 2 * math.sqrt(d)) == bent


def test_a_length_that_is_given_stays():
    recipe = bn.MCLMC(steps=60, warmup=40, draws=4, length=7.0)
    posterior = bn.fit(recipe, EXACT.problem, EXACT.data, members=2, engine=ENGINE, start=at(EXACT.problem, EXACT.mean))
    assert posterior.info["curves"]["length"] == [[7.0], [7.0]]


def test_a_chain_that_runs_off_is_moved_to_another_chain(caplog):
    places = [EXACT.mean + 0.1 * k for k in range(6)]
    places[2] = EXACT.mean + 1e9
    recipe = bn.MCLMC(steps=400, warmup=200, draws=10)
    with caplog.at_level("INFO", "basinet"):
        posterior = bn.fit(
            recipe, EXACT.problem, EXACT.data, members=6, engine=ENGINE, start=at(EXACT.problem, *places)
        )
    assert float((draws_of(posterior) - EXACT.mean).abs().max()) < 10
    assert any("got lost" in line and "member 2" in line for line in caplog.messages)


def test_steps_that_all_fail_are_an_error():
    recipe = bn.MCLMC(steps=60, warmup=20, draws=5, step_size=1e5)
    with pytest.raises(FloatingPointError, match="no chain accepted any of its 40 proposals at step size 1e"):
        bn.fit(recipe, EXACT.problem, EXACT.data, members=2, engine=ENGINE, start=at(EXACT.problem, EXACT.mean))


@pytest.mark.parametrize(
    ("options", "words"), [({"length": 0.0}, "finite length"), ({"tolerance": 2.0}, "tolerance between 0 and 1")]
)
def test_recipes_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        bn.MCLMC(**options)
