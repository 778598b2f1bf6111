"""Samplers with mini-batches: modes covered by cycles, heat of batches, sweeps of temperature, real data, bad input."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from known_targets import ENGINE, Blunt, Constant, at, draws_of
from torch import Tensor

import basinet as bn
from basinet.chains.tempo import Tempo
from basinet.diagnostics import kinetic_temperature, mcse_mean
from basinet.optim import Cosine, Cyclic
from basinet.testing.exact import conjugate

SAMPLERS: dict[str, Any] = {"SGLD": bn.SGLD, "PSGLD": bn.PSGLD, "SGHMC": bn.SGHMC, "SGNHT": bn.SGNHT}
ALL = pytest.mark.parametrize("name", SAMPLERS)
EXACT = conjugate()


class Grid(bn.likelihoods.Gaussian):
    """25 equal modes, at whole multiples of 4 from -8 to 8 in two dimensions, each with standard deviation 0.5."""

    def log_density(self, outputs: Tensor, targets: Tensor, learned: Any) -> Tensor:
        line = 4.0 * torch.arange(-2, 3, dtype=outputs.dtype)
        off = (outputs.unsqueeze(-1) - line) / 0.5  # (B, 2, 5)
        return torch.logsumexp(-0.5 * off.square(), -1).sum(-1) / outputs.shape[0]


def grid() -> tuple[bn.Problem, bn.Data]:
    problem = bn.Problem(lambda: Constant(2), Grid(noise=1.0), bn.priors.Normal(scale=20.0))
    return problem, bn.Data(torch.zeros(1, 1, dtype=torch.float64), torch.zeros(1, 2, dtype=torch.float64))


def covered(draws: Tensor) -> int:
    """How many of the modes have a draw within two standard deviations."""
    nearest = (draws / 4).round().clamp(-2, 2)
    close = (draws - 4 * nearest).norm(dim=-1) < 1.0
    return len({tuple(row) for row in nearest[close].long().tolist()})


@pytest.mark.slow
@pytest.mark.parametrize(("name", "peak"), [("SGLD", 0.45), ("SGHMC", 0.7), ("SGNHT", 0.7)])
def test_cycles_cover_the_25_modes_that_a_constant_rate_does_not(name, peak):
    problem, data = grid()
    cycles, chains = 10, 16
    kwargs: dict[str, Any] = {"epochs": 600, "batch_size": None, "draws": 20}
    kwargs |= {} if name == "SGLD" else {"friction": 0.5}
    start = at(problem, torch.zeros(2, dtype=torch.float64))
    cyclical = SAMPLERS[name](lr=Cyclic(peak=peak, cycles=cycles), explore=0.5, quiet=False, **kwargs)
    still = SAMPLERS[name](lr=0.05 if name == "SGLD" else 0.01, **kwargs)
    counts = [
        covered(draws_of(bn.fit(r, problem, data, members=chains, engine=ENGINE, start=start)).flatten(0, 1))
        for r in (cyclical, still)
    ]
    assert counts[0] >= 20 and counts[1] <= 5, counts


@pytest.mark.slow
def test_cycles_of_scaled_steps_cover_them_too():
    problem, data = grid()
    recipe = bn.PSGLD(lr=Cyclic(peak=0.6, cycles=10), explore=0.5, quiet=False, epochs=600, batch_size=None, draws=20)
    start = at(problem, torch.zeros(2, dtype=torch.float64))
    posterior = bn.fit(recipe, problem, data, members=16, engine=ENGINE, start=start)
    assert covered(draws_of(posterior).flatten(0, 1)) >= 20


@pytest.mark.parametrize(
    ("name", "options", "slack"),
    [
        ("SGHMC", {"epochs": 400, "batch_size": None}, 0.05),
        ("SGNHT", {"epochs": 80, "batch_size": 8, "quiet": False}, 0.15),  # heated 7-fold without its thermostat
    ],
)
def test_a_rate_that_falls_leaves_the_temperature_right(name, options, slack):
    """<theta - mu, dU> / d is 1 at the end of each cycle, though momentum and friction come from larger rates."""
    recipe = SAMPLERS[name](lr=Cyclic(peak=0.1, cycles=4), friction=0.1, draws=8, **options)
    start = at(EXACT.problem, EXACT.mean)
    off = draws_of(bn.fit(recipe, EXACT.problem, EXACT.data, members=60, engine=ENGINE, start=start)) - EXACT.mean
    heat = (((off @ EXACT.precision) * off).sum(-1) / 3)[:, 1::2]  # (C, cycles), of the last draw of each cycle
    error = math.sqrt(2 / 3 / heat.numel())  # of a mean of 3 squares in each draw; cycles are far apart
    assert abs(float(heat.mean()) - 1) < slack + 4 * error, heat.mean(0)  # z = 4 beside the error of the steps


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("SGHMC", 0.01),
        *(pytest.param(n, 0.01, marks=pytest.mark.slow) for n in ("SGNHT", "PSGLD")),
        pytest.param("SGLD", 0.05, marks=pytest.mark.slow),
    ],
)
def test_a_list_of_temperatures_is_a_sweep_in_one_run(name, rate):
    recipe = SAMPLERS[name](epochs=400, batch_size=None, lr=rate, draws=10, temperature=[1.0, 0.1, 0.01])
    start = at(EXACT.problem, EXACT.mean)
    posterior = bn.fit(recipe, EXACT.problem, EXACT.data, members=60, engine=ENGINE, start=start)
    spreads = []
    for temperature, part in zip((1.0, 0.1, 0.01), range(3)):
        draws = torch.cat([draws_of(posterior[k]) for k in range(part, 60, 3)])
        assert posterior[part].parts[0].recipe.temperature == temperature
        spreads.append(float((draws - EXACT.mean).square().mean()) / temperature)
    exact = float(EXACT.covariance.diagonal().mean())
    for spread in spreads:
        assert 0.75 * exact < spread < 1.35 * exact


@pytest.mark.slow
def test_a_thermostat_takes_away_the_heat_of_batches():
    """E <theta, dU> / d = T at any step size and for batches of any size; SGHMC is heated by them."""
    kwargs: dict[str, Any] = {"epochs": 80, "batch_size": 4, "lr": 0.02, "friction": 0.1, "draws": 20}
    start = at(EXACT.problem, EXACT.mean)
    reads, heat = {}, {}
    for name in ("SGHMC", "SGNHT"):
        posterior = bn.fit(SAMPLERS[name](**kwargs), EXACT.problem, EXACT.data, members=60, engine=ENGINE, start=start)
        reads[name] = kinetic_temperature(torch.tensor(posterior.info["curves"]["kinetic"]), 3).value
        off = draws_of(posterior) - EXACT.mean
        heat[name] = ((off @ EXACT.precision) * off).sum(-1) / 3  # (C, K), <theta - mu, dU> / d
    assert reads["SGHMC"] > 2 and float(heat["SGHMC"].mean()) > 2, reads
    error = float(mcse_mean(heat["SGNHT"]))
    assert error < 0.05
    assert abs(float(heat["SGNHT"].mean()) - 1) < 0.03 + 4.5 * error  # the thermostat swings, and z = 4.5
    assert abs(reads["SGNHT"] - 1) < 0.1, reads


@pytest.mark.slow
@ALL
def test_wine_is_learned(name):
    splits = bn.datasets.load("wine")
    train, test = (d.to(dtype=torch.float64) for d in (splits.train, splits.test))
    inputs, classes = train.inputs.shape[1], int(train.targets.max()) + 1
    problem = bn.Problem(lambda: bn.networks.MLP(inputs, classes, hidden=(8,)).double(), bn.likelihoods.Categorical())
    recipe = SAMPLERS[name](epochs=150, batch_size=32)
    posterior = bn.fit(recipe, problem, train, members=2, engine=ENGINE)
    scores = bn.score(posterior, test)
    assert scores["nll"] < 0.5 and scores["accuracy"] > 0.85


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"lr": 0.0}, "finite lr of more than 0"),
        ({"explore": 1.0}, "explore of at least 0 and below 1"),
        ({"temperature": 0.0}, "positive, finite temperature"),
        ({"lr": Cyclic(peak=0.1, cycles=3), "draws": 20}, "multiple of the 3 cycles"),
        ({"draws": 0}, "multiple of the 1 cycles"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        bn.SGLD(**options)


def test_a_rate_is_found_while_the_chain_explores():
    with pytest.raises(ValueError, match="lr is found while the chain explores: give explore above 0"):
        bn.SGHMC(explore=0.0)


@pytest.mark.slow
def test_batches_that_heat_leave_a_rate_that_is_small():
    """Batches of 10 heat to twice the temperature at a rate of .01; at the rate that is chosen, by a few per cent."""
    exact, reads = conjugate(n=60, d=20, correlation=0.3), []
    start = at(exact.problem, exact.mean)
    for options in ({"lr": 0.01}, {}):
        recipe: Any = bn.SGHMC(epochs=200, batch_size=10, draws=20, **options)
        posterior = bn.fit(recipe, exact.problem, exact.data, members=8, engine=ENGINE, start=start)
        reads.append(kinetic_temperature(torch.tensor(posterior.info["curves"]["kinetic"]), 20).value)
    error = math.sqrt(2 / (20 * 8 * 20))  # of 20 momenta in 160 draws, which are 30 steps apart
    assert reads[0] > 1.8
    assert 1.0 - 4.5 * error < reads[1] < 1.1 + 4.5 * error, reads  # between none and twice what is aimed at, z = 4.5
    assert all(rate < 0.01 for [rate] in posterior.info["curves"]["rate"])


@pytest.mark.parametrize("name", ["SGLD", "SGHMC", "SGNHT"])
def test_a_rate_that_is_found_is_stable_for_the_stiffest_parameter(name):
    """One of 20 is a hundred times as stiff as the others, and a chain begins far from where it belongs."""
    x = torch.eye(20, dtype=torch.float64)[torch.arange(400) % 20]
    x[:, 0] *= 10.0
    problem = bn.Problem(lambda: bn.networks.MLP(20, 1, hidden=()).double(), bn.likelihoods.Gaussian(noise=1.0))
    data = bn.Data(x, torch.zeros(400, 1, dtype=torch.float64))
    start = bn.Posterior.of(bn.networks.MLP(20, 1, hidden=()).double(), problem)
    stiffness = float(x[:, 0].square().mean())  # of the loss per example
    posterior = bn.fit(SAMPLERS[name](epochs=800), problem, data, members=8, engine=ENGINE, start=start)
    limit = 2.0 if name == "SGLD" else 4.0 * (1 - SAMPLERS[name]().friction / 2)
    assert all(rate * stiffness < limit for [rate] in posterior.info["curves"]["rate"])


@pytest.mark.parametrize("cls", [bn.SGHMC, bn.SGNHT])
def test_a_friction_that_makes_no_sense_is_refused(cls):
    with pytest.raises(ValueError, match="friction of more than 0"):
        cls(friction=0.0)


def test_a_rate_that_falls_is_followed():
    recipe = bn.SGLD(lr=Cosine(peak=0.1), epochs=10, batch_size=None, draws=2)
    tempo = Tempo.first({"x": torch.zeros(1)}, given=True)

    def rate(clock: int) -> float:
        batch: Any = SimpleNamespace(step=torch.tensor(clock), total=40)
        return float(recipe.rate(SimpleNamespace(batch=batch), tempo))

    assert rate(0) == 0.1
    assert rate(9) < 0.01


def test_a_rate_that_diverges_is_an_error():
    start = at(EXACT.problem, EXACT.mean)
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        bn.fit(bn.SGLD(lr=1e6, epochs=50), EXACT.problem, EXACT.data, members=2, engine=ENGINE, start=start)


@ALL
def test_a_likelihood_without_a_gradient_is_refused(name):
    problem = bn.Problem(EXACT.problem.network.module, Blunt(noise=0.5), EXACT.problem.prior)
    start = at(problem, EXACT.mean)
    with pytest.raises(ValueError, match=f"{name} follows gradients, and the log likelihood of Blunt has none"):
        bn.fit(SAMPLERS[name](epochs=5), problem, EXACT.data, members=2, engine=ENGINE, start=start)
