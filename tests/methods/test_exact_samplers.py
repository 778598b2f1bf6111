"""Samplers that reject: exact on targets that are known, on real data, and honest where they fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from known_targets import ENGINE, Blunt, at, draws_of, funnel, linear_diabetes, skewed
from torch import nn

import basinet as bn
from basinet.core.tree import leaves
from basinet.diagnostics import mcse_mean
from basinet.testing.exact import conjugate

SAMPLERS: dict[str, Any] = {
    "MetropolisHastings": bn.MetropolisHastings(steps=800, warmup=300, draws=25),
    "MALA": bn.MALA(steps=500, warmup=250, draws=25),
    "HMC": bn.HMC(steps=500, warmup=250, draws=25),
    "NUTS": bn.NUTS(steps=600, warmup=250, draws=25),
}
ALL = pytest.mark.parametrize("name", SAMPLERS)
EXACT = conjugate()


def fit(recipe: Any, problem: bn.Problem, data: bn.Data, members: int, **options: Any) -> bn.Posterior:
    return bn.fit(recipe, problem, data, members=members, **({"engine": ENGINE} | options))


@ALL
def test_moments_of_a_skewed_posterior_are_those_of_quadrature(name):
    problem, data, (mean, variance, third) = skewed()
    draws = draws_of(fit(SAMPLERS[name], problem, data, 64, start=at(problem, torch.zeros(1).double())))[..., 0]
    off = draws - mean
    for powers, expected in ((draws, mean), (off.square(), variance), (off**3, third)):
        z = (powers.mean() - expected) / mcse_mean(powers)
        assert abs(float(z)) < 4.5
    assert float(mcse_mean(off.square())) < 0.2 * float(variance)  # the check can fail


@pytest.mark.slow
@ALL
def test_linear_regression_on_real_data_is_the_closed_form(name):
    problem, data, mean, covariance = linear_diabetes()
    posterior = fit(SAMPLERS[name], problem, data, 24, start=at(problem, torch.zeros(len(mean)).double()))
    draws = draws_of(posterior)
    z = (draws.mean((0, 1)) - mean) / mcse_mean(draws)
    assert float(z.abs().max()) < 4.5
    off = (draws - mean).square()
    z = (off.mean((0, 1)) - covariance.diagonal()) / mcse_mean(off)
    assert float(z.abs().max()) < 4.5
    predicted = posterior.predict(data.inputs[:50])
    exact = data.inputs[:50] @ mean[:-1] + mean[-1]
    assert float((predicted.mean.reshape(-1) - exact).abs().max()) < 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "aimed", "slack"), [("MetropolisHastings", 0.234, 0.04), ("MALA", 0.574, 0.04), ("NUTS", 0.8, 0.08)]
)
def test_the_warm_up_finds_the_acceptance_that_is_aimed_for(name, aimed, slack):
    """Six seeds spread by .007, .008 and .018 around .227, .570 and .792: z of more than 4 on either side."""
    wide = conjugate(correlation=0.0, lengths=(1.0, 60.0), d=4)
    recipe = replace(SAMPLERS[name], steps=1500, warmup=900, draws=20)
    posterior = fit(recipe, wide.problem, wide.data, 16, start=at(wide.problem, wide.mean))
    accepted = [row[0] for row in posterior.info["curves"]["acceptance"]]
    assert abs(sum(accepted) / len(accepted) - aimed) < slack


@ALL
def test_a_chain_that_runs_off_is_moved_to_another_chain(name, caplog):
    exact, chains = EXACT, 8
    places = [exact.mean + 0.1 * k for k in range(chains)]
    places[3] = exact.mean + 1e6  # U is about 10^14 there
    with caplog.at_level("INFO", "basinet"):
        posterior = fit(SAMPLERS[name], exact.problem, exact.data, chains, start=at(exact.problem, *places))
    draws = draws_of(posterior)
    assert float((draws - exact.mean).abs().max()) < 10
    assert any("got lost" in line and "member 3" in line for line in caplog.messages)
    assert any("got lost" in line for line in posterior.parts[0].info["notes"][3])
    assert not any("got lost" in line for k in (0, 1, 2, 4) for line in posterior.parts[0].info["notes"][k])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MetropolisHastings", "MALA", "HMC", "NUTS", "MCLMC"])
def test_a_list_of_temperatures_is_a_sweep_in_one_run(name):
    """Chains learn steps and scales together with those of the same temperature: variances are T times as large."""
    exact, heats = conjugate(n=60, d=8, correlation=0.3), [1.0, 0.1]
    sampler = bn.MCLMC(steps=400, warmup=200, draws=25) if name == "MCLMC" else SAMPLERS[name]
    steps = 1600 if name == "MetropolisHastings" else 400  # a random walk is that much slower
    recipe = replace(sampler, steps=steps, warmup=steps // 2, temperature=heats)
    start = at(exact.problem, exact.mean)
    posterior = fit(recipe, exact.problem, exact.data, 24, start=start)
    sizes = []
    for k, heat in enumerate(heats):
        chains = posterior[k::2]
        assert {part.recipe.temperature for part in chains.parts} == {heat}
        draws = torch.cat([draws_of(chains[i]) for i in range(12)])
        off = (draws - exact.mean).square() / (heat * exact.covariance.diagonal())
        z = (off.mean((0, 1)) - 1) / mcse_mean(off)
        slack = 0.1 if name == "MCLMC" else 0.0  # its bias
        assert float(((off.mean((0, 1)) - 1).abs() - slack - 4.5 * mcse_mean(off)).max()) < 0, z
        reads = bn.diagnose(chains, exact.data).configurational
        assert reads is not None and abs(reads.value - 1) < 0.2
        sizes.append(chains.parts[0].info["curves"]["step_size"][0][-1])
    assert sizes[0] != sizes[1]  # found apart


def test_a_sweep_of_chains_needs_some_for_each_value():
    with pytest.raises(ValueError, match=r"lists have 3 values: give members=30, say, 10 for each"):
        fit(bn.HMC(temperature=[1.0, 0.1, 0.01]), EXACT.problem, EXACT.data, 3)


@ALL
def test_examples_in_chunks_give_the_same_chains(name):
    recipe = replace(SAMPLERS[name], steps=60, warmup=20, draws=5)
    start = at(EXACT.problem, EXACT.mean)
    whole, parts = (fit(r, EXACT.problem, EXACT.data, 3, start=start) for r in (recipe, replace(recipe, chunk=7)))
    torch.testing.assert_close(draws_of(whole), draws_of(parts), rtol=0, atol=1e-9)


class Killed(Exception):
    pass


@pytest.mark.slow
@ALL
def test_a_killed_chain_resumes_to_the_same_draws(name, tmp_path: Path):
    recipe = replace(SAMPLERS[name], steps=300, warmup=100, draws=10)
    start = at(EXACT.problem, EXACT.mean)
    unbroken = fit(recipe, EXACT.problem, EXACT.data, 3, start=start)

    def stop(event: Any) -> None:
        if event.step > 180:
            raise Killed

    often = bn.Engine(device="cpu", dtype=torch.float64, progress=False, compile=False, checkpoint=0.0)
    with pytest.raises(Killed):
        fit(recipe, EXACT.problem, EXACT.data, 3, start=start, pool=tmp_path, observe=stop, engine=often)
    again = fit(recipe, EXACT.problem, EXACT.data, 3, start=start, pool=tmp_path)
    pairs = zip(leaves(unbroken.parts[0].family), leaves(again.parts[0].family), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert again.info["curves"]["acceptance"] == unbroken.info["curves"]["acceptance"]


def test_divergences_of_a_funnel_are_reported(caplog):
    problem, data = funnel()
    recipe = bn.HMC(steps=1200, warmup=400, draws=20, acceptance=0.6)
    with caplog.at_level("INFO", "basinet"):
        posterior = fit(recipe, problem, data, 8, start=at(problem, torch.zeros(6).double()))
    counts = [row[0] for row in posterior.info["curves"]["divergences"]]
    assert sum(counts) > 0 and any("transitions diverged" in line for line in caplog.messages)
    diagnosis = bn.diagnose(posterior, data, parameters=True)
    assert diagnosis.transitions is not None and diagnosis.transitions.divergences == sum(counts)
    assert not diagnosis.passed


@ALL
def test_a_step_size_that_accepts_nothing_is_an_error(name):
    recipe = replace(SAMPLERS[name], steps=100, warmup=20, draws=5, step_size=1e4)
    with pytest.raises(FloatingPointError, match=r"no chain accepted any of its .* proposals at step size"):
        fit(recipe, EXACT.problem, EXACT.data, 2, start=at(EXACT.problem, EXACT.mean))


class Cliff(nn.Module):
    """Finite only at its start."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        walled = torch.where(self.weight.abs().sum() > 0, torch.nan, 0.0)
        return (x @ self.weight + walled).unsqueeze(1)


@pytest.mark.parametrize("recipe", [SAMPLERS["HMC"], SAMPLERS["NUTS"], bn.MCLMC(steps=200, warmup=150, draws=5)])
def test_an_energy_that_no_step_is_small_enough_for_is_an_error(recipe):
    problem = bn.Problem(Cliff(), bn.likelihoods.Gaussian(noise=1.0))
    with pytest.raises(FloatingPointError, match=r"after .* steps the step size has fallen to"):
        fit(recipe, problem, EXACT.data, 2, start=at(problem, torch.zeros(3).double()))


@pytest.mark.parametrize("name", ["HMC", "NUTS"])
def test_first_steps_that_diverge_become_as_small_as_the_posterior_is(name):
    """A spread of 1e-6, a thousandth of the step that is tried first."""
    exact = conjugate(noise=1e-6)
    recipe = replace(SAMPLERS[name], steps=300, warmup=200, draws=5)
    draws = draws_of(fit(recipe, exact.problem, exact.data, 8, start=at(exact.problem, exact.mean)))
    ratio = (draws - exact.mean).square().mean((0, 1)) / exact.covariance.diagonal()
    assert bool((ratio > 0.1).all()) and bool((ratio < 10).all())  # 5e5 at the first step size


def test_a_likelihood_without_a_gradient_is_refused_by_those_that_need_one():
    problem = bn.Problem(EXACT.problem.network.module, Blunt(noise=0.5), EXACT.problem.prior)
    start = at(problem, EXACT.mean)
    with pytest.raises(ValueError, match="log likelihood of Blunt has none: use MetropolisHastings, which needs none"):
        fit(SAMPLERS["HMC"], problem, EXACT.data, 2, start=start)
    recipe = replace(SAMPLERS["MetropolisHastings"], steps=60, warmup=20, draws=5)
    assert draws_of(fit(recipe, problem, EXACT.data, 2, start=start)).shape == (2, 5, 3)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"draws": 3}, "at least 4 draws"),
        ({"steps": 100, "warmup": 100}, "warm-up of fewer than the 100 steps"),
        ({"chunk": 0}, "chunk of at least 1"),
        ({"step_size": -1.0}, "finite step_size"),
        ({"length": 0.0}, "length of more than 0, 'chees' or 'prior'"),
        ({"length": "long"}, "length of more than 0, 'chees' or 'prior'"),
        ({"leapfrog": 0}, "at least 1 leapfrog step"),
        ({"acceptance": 1.0}, "acceptance between 0 and 1"),
        ({"temperature": 0.0}, "positive, finite temperature"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        bn.HMC(**options)


def test_streams_are_refused():
    stream = bn.Data.stream([(EXACT.data.inputs, EXACT.data.targets)], n=40)
    with pytest.raises(ValueError, match="takes all examples in each step"):
        fit(SAMPLERS["HMC"], EXACT.problem, stream, 2, start=at(EXACT.problem, EXACT.mean))
