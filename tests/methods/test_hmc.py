"""HMC: its integrator, trajectory lengths, adaptation, and calibration by simulation."""

from __future__ import annotations

import math
import sys
from itertools import pairwise
from types import SimpleNamespace

import pytest
import torch
from known_targets import ENGINE, at, draws_of, skewed, states, step_of
from torch import Tensor

import basinet as bn
from basinet.core.noise import Noise
from basinet.testing.exact import conjugate

EXACT = conjugate()


def moved(recipe: bn.HMC, steps: int, size: float):
    """A chain after `steps` leapfrog steps of one long trajectory, and a function that continues it."""
    problem, data, _ = skewed()
    state = states(recipe, problem, torch.tensor([[0.5]], dtype=torch.float64))

    def on(state, count, begin):
        for t in range(begin, begin + count):
            state, _ = recipe.moved(state, step_of(problem, data, 1, t))
        return state

    return on(state, steps + 1, 0), on


def test_trajectories_are_reversible():
    recipe = bn.HMC(steps=10_000_000, step_size=0.1, length=1000.0, leapfrog=10_000, jitter=False, scaled=False)
    there, on = moved(recipe, 40, 0.1)
    assert abs(float(there.place) - 0.5) > 0.3
    back = on(there._replace(momentum=-there.momentum), 40, 41)
    assert abs(float(back.place) - 0.5) < 1e-10


def test_the_energy_error_is_of_second_order():
    errors = []
    for halving in range(3):
        size, steps = 0.4 / 2**halving, 3 * 2**halving
        recipe = bn.HMC(steps=10_000_000, step_size=size, length=1000.0, leapfrog=10_000, jitter=False, scaled=False)
        state, _ = moved(recipe, steps, size)
        problem, data, _ = skewed()
        batch = step_of(problem, data, 1, 0).batch
        energy = problem.potential({"weight": state.place[0]}, {}, batch, None, "eval")[0]
        errors.append(abs(float(energy + state.momentum.square().sum() / 2 - state.start)))
    assert errors[0] > 1e-4
    for coarse, fine in pairwise(errors):
        assert 3.3 < coarse / fine < 4.7


def test_a_quarter_of_the_period_gives_independent_draws():
    problem, data = EXACT.problem, EXACT.data
    spherical = conjugate(correlation=0.0, lengths=(1.0, 1.0), noise=1.0, prior=1.0)
    sd = float(spherical.covariance.diagonal()[0].sqrt())
    length = math.pi / 2 * sd
    recipe = bn.HMC(steps=2200, warmup=20, draws=100, step_size=length / 20, length=length, jitter=False, scaled=False)
    draws = draws_of(
        bn.fit(recipe, spherical.problem, spherical.data, members=16, engine=ENGINE, start=at(problem, EXACT.mean))
    )
    off = draws - spherical.mean
    lagged = (off[:, 1:] * off[:, :-1]).mean() / off.square().mean()
    assert abs(float(lagged)) < 4.5 / math.sqrt(16 * 99 * 3)  # z = 4.5
    assert data.n == spherical.data.n


def test_the_length_from_the_prior_is_a_quarter_of_its_period():
    problem = conjugate(prior=0.5).problem
    point = problem.init(Noise.seed(0))
    recipe = bn.HMC(length="prior")
    assert recipe.first_length(problem, point.params) == pytest.approx(math.pi * 0.5 / 2)
    cold = conjugate(prior=0.5, temperature=0.3).problem
    assert recipe.first_length(cold, point.params) == pytest.approx(math.pi * 0.5 * math.sqrt(0.3) / 2)
    heavy = bn.Problem(problem.network, problem.likelihood, bn.priors.StudentT(df=3.0))
    with pytest.raises(ValueError, match="for a normal prior, got StudentT"):
        recipe.first_length(heavy, point.params)


def test_the_warm_up_finds_acceptance_scales_and_a_useful_length():
    wide = conjugate(correlation=0.0, lengths=(1.0, 60.0), d=4)
    recipe = bn.HMC(steps=1500, warmup=900, draws=20)
    posterior = bn.fit(recipe, wide.problem, wide.data, members=16, engine=ENGINE, start=at(wide.problem, wide.mean))
    accepted = sum(row[0] for row in posterior.info["curves"]["acceptance"]) / 16
    assert 0.72 < accepted < 0.88  # aimed at .8
    draws = draws_of(posterior)
    assert float(wide.covariance.diagonal().max() / wide.covariance.diagonal().min()) > 200
    ratio = draws.var((0, 1)) / wide.covariance.diagonal()
    assert bool((ratio > 0.6).all() and (ratio < 1.6).all())
    sizes = posterior.info["curves"]["step_size"][0]
    assert sizes == posterior.info["curves"]["step_size"][7]  # found together
    assert bn.diagnose(posterior, wide.data).kinetic is not None


def test_the_diagnosis_of_a_good_run_passes_and_prints(monkeypatch):
    recipe = bn.HMC(steps=1600, warmup=400, draws=120)
    posterior = bn.fit(
        recipe, EXACT.problem, EXACT.data, members=12, engine=ENGINE, start=at(EXACT.problem, EXACT.mean)
    )
    diagnosis = bn.diagnose(posterior, EXACT.data, parameters=True)
    assert diagnosis.passed, str(diagnosis)
    assert "All" in str(diagnosis) and "R-hat" in str(diagnosis) and "loss" in str(diagnosis)
    assert {row.name for row in diagnosis.rows} >= {"loss", "prediction 0", "weight 2"}
    given = {}
    monkeypatch.setitem(
        sys.modules, "arviz", SimpleNamespace(__version__="0.23.4", from_dict=lambda posterior: given.update(posterior))
    )
    diagnosis.to_arviz()
    predictions = [name for name in diagnosis.draws if name.startswith("prediction")]
    assert given["loss"].shape == (12, 120) and given["prediction"].shape == (12, 120, len(predictions))
    assert set(given) == set(diagnosis.draws) - set(predictions) | {"prediction"}
    with pytest.raises(ValueError, match="expected chains of one sampler"):
        bn.diagnose(bn.fit(bn.MAP(epochs=1), EXACT.problem, EXACT.data, engine=ENGINE), EXACT.data)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"steps": 120, "warmup": 40, "draws": 20},
            "cut at 3 leapfrog steps, the most that steps= lasts for",
        ),
        ({"steps": 400, "warmup": 40, "draws": 4, "leapfrog": 8}, "cut at 8 leapfrog steps, the most that leapfrog=8"),
    ],
)
def test_trajectories_that_are_cut_short_are_reported(options, words, caplog):
    recipe = bn.HMC(step_size=0.01, length=1.0, scaled=False, jitter=False, **options)
    with caplog.at_level("WARNING", "basinet"):
        bn.fit(recipe, EXACT.problem, EXACT.data, members=2, engine=ENGINE, start=at(EXACT.problem, EXACT.mean))
    assert any(words in line for line in caplog.messages), caplog.messages


def ranks(recipe, simulations: int, kept: int) -> Tensor:
    """Of the true parameters among draws from their posteriors given simulated data, (simulations, d)."""
    below = []
    exact = EXACT
    for s in range(simulations):
        key = Noise.seed(1000 + s)
        truth = 1.5 * key.split("truth").normal(exact.mean)
        targets = exact.data.inputs @ truth + 0.5 * key.split("noise").normal(exact.data.targets)
        data = bn.Data(exact.data.inputs, targets)
        draws = draws_of(
            bn.fit(recipe, exact.problem, data, members=kept, seed=s, engine=ENGINE, start=at(exact.problem, truth))
        )
        below.append((draws[:, -1] < truth).sum(0))  # the last draw of each chain: independent
    return torch.stack(below)


@pytest.mark.slow
def test_ranks_of_the_truth_are_uniform():
    simulations, kept, bins = 120, 31, 8
    counts = ranks(bn.HMC(steps=200, warmup=140, draws=4), simulations, kept)
    expected = simulations / bins
    for column in counts.T:
        histogram = torch.bincount(column // ((kept + 1) // bins), minlength=bins).double()
        chi = float(((histogram - expected) ** 2 / expected).sum())
        assert chi < 29.9  # chi-square with 7 degrees of freedom, probability 1e-4
