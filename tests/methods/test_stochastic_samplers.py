"""Samplers with mini-batches: modes covered by cycles, heat of batches, sweeps of temperature, real data, bad input."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from known_targets import ENGINE, Constant, at, draws_of
from torch import Tensor

import basinet as bn
from basinet.diagnostics import kinetic_temperature
from basinet.optim import Cosine, Cyclic
from basinet.problem.exact import conjugate

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


@pytest.mark.parametrize(("name", "peak"), [("SGLD", 0.45), ("SGHMC", 0.7)])
def test_cycles_cover_the_25_modes_that_a_constant_rate_does_not(name, peak):
    problem, data = grid()
    cycles, chains = 10, 16
    kwargs: dict[str, Any] = {"epochs": 600, "batch_size": None, "draws": 20}
    kwargs |= {"friction": 0.5} if name == "SGHMC" else {}
    start = at(problem, torch.zeros(2, dtype=torch.float64))
    cyclical = SAMPLERS[name](lr=Cyclic(peak=peak, cycles=cycles), explore=0.5, quiet=False, **kwargs)
    still = SAMPLERS[name](lr=0.05 if name == "SGLD" else 0.01, **kwargs)
    found = [
        covered(draws_of(bn.fit(r, problem, data, members=chains, engine=ENGINE, start=start)).flatten(0, 1))
        for r in (cyclical, still)
    ]
    assert found[0] >= 20 and found[1] <= 5, found


def test_a_list_of_temperatures_is_a_sweep_in_one_run():
    recipe = bn.SGHMC(epochs=400, batch_size=None, lr=0.01, draws=10, temperature=[1.0, 0.1, 0.01])
    posterior = bn.fit(recipe, EXACT.problem, EXACT.data, members=60, engine=ENGINE)
    spreads = []
    for temperature, part in zip((1.0, 0.1, 0.01), range(3)):
        draws = torch.cat([draws_of(posterior[k]) for k in range(part, 60, 3)])
        assert posterior[part].parts[0].recipe.temperature == temperature
        spreads.append(float((draws - EXACT.mean).square().mean()) / temperature)
    exact = float(EXACT.covariance.diagonal().mean())
    for spread in spreads:
        assert 0.75 * exact < spread < 1.35 * exact


def test_a_thermostat_takes_away_the_heat_of_batches():
    kwargs: dict[str, Any] = {"epochs": 60, "batch_size": 4, "lr": 0.005, "friction": 0.03, "draws": 10}
    start = at(EXACT.problem, EXACT.mean)
    reads = {}
    for name in ("SGHMC", "SGNHT"):
        more = {"response": 0.02} if name == "SGNHT" else {}
        posterior = bn.fit(
            SAMPLERS[name](**kwargs, **more), EXACT.problem, EXACT.data, members=40, engine=ENGINE, start=start
        )
        reads[name] = kinetic_temperature(torch.tensor(posterior.info["curves"]["kinetic"]), 3)
    assert not reads["SGHMC"].right and reads["SGHMC"].value > 1.3, reads
    assert abs(reads["SGNHT"].value - 1) < 0.15, reads


@ALL
def test_wine_is_learned(name):
    splits = bn.datasets.load("wine")
    train, test = (d.to(dtype=torch.float64) for d in (splits.train, splits.test))
    inputs, classes = train.inputs.shape[1], int(train.targets.max()) + 1
    problem = bn.Problem(lambda: bn.networks.MLP(inputs, classes, hidden=(8,)).double(), bn.likelihoods.Categorical())
    fast: dict[str, Any] = {"lr": 0.01} if name == "PSGLD" else {}  # its default is for longer runs
    recipe = SAMPLERS[name](epochs=150, batch_size=32, **fast)
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


@pytest.mark.parametrize("cls", [bn.SGHMC, bn.SGNHT])
def test_a_friction_that_makes_no_sense_is_refused(cls):
    with pytest.raises(ValueError, match="friction of more than 0"):
        cls(friction=0.0)


def test_a_rate_that_falls_is_followed():
    recipe = bn.SGLD(lr=Cosine(peak=0.1), epochs=10, batch_size=None, draws=2)
    assert float(recipe.rate(torch.tensor(0), 40)) == 0.1
    assert float(recipe.rate(torch.tensor(9), 40)) < 0.01


def test_a_rate_that_diverges_is_an_error():
    with pytest.raises(FloatingPointError, match="lower the learning rate"):
        bn.fit(bn.SGLD(lr=1e6, epochs=50), EXACT.problem, EXACT.data, members=2, engine=ENGINE)
