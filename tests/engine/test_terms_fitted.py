"""Problems with terms, fitted: modes in closed form, the same members however they run, files, pools and costs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from stopping import Killed, Stop
from torch import Tensor, nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import leaves, ravel
from basinet.engine import Engine
from basinet.optim import SGD, Adam, Cosine
from basinet.pool import FileError

KEY = Noise.seed(1)
SIGMA, PRECISE, S, SCALE, RATE = 0.5, 0.1, 2.0, 0.2, 0.7


class Waves(nn.Module):
    """w' (1, sin x, cos 2x): linear in the parameters, with derivatives that are known."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(1, 3, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.ones_like(x), x.sin(), (2 * x).cos()], -1) @ self.weight.T


class Net(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(1, 16), nn.Tanh(), nn.Dropout(0.1), nn.Linear(16, 1))
        self.double()


def plain_net() -> nn.Module:
    return nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 1)).double()


@dataclass(frozen=True, eq=False)
class Decay(bn.terms.Equation):
    """u' = -rate u."""

    rate: float = RATE

    def residual(self, u, x):
        return torch.func.jacrev(u)(x)[:, 0] + self.rate * u(x)


def line(low: float, high: float, n: int) -> Tensor:
    return torch.linspace(low, high, n, dtype=torch.float64).unsqueeze(-1)


def noisy(x: Tensor, sd: float, name: str) -> Tensor:
    return torch.exp(-RATE * x[:, 0]) + sd * KEY.split(name).normal(x[:, 0])


X, POINTS = line(-1, 1, 40), line(-1.5, 1.5, 25)
FEW = line(-0.9, 0.9, 6)
DATA, FEW_Y = bn.Data(X, noisy(X, SIGMA, "data")), noisy(FEW, PRECISE, "few")
ENGINE = Engine(device="cpu", dtype=torch.float64, progress=False)
FULL = bn.MAP(epochs=70, batch_size=None, optimizer=SGD(lr=0.035))


def precise(**options) -> bn.terms.Observations:
    return bn.terms.Observations(FEW, FEW_Y, bn.likelihoods.Gaussian(noise=PRECISE), **options)


def problem(terms, network=Waves, temperature=1.0, temper="posterior") -> bn.Problem:
    likelihood = bn.likelihoods.Gaussian(noise=SIGMA)
    return bn.Problem(network, likelihood, bn.priors.Normal(scale=S), temperature, temper, terms=terms)


def exact(temperature=1.0, prior_temperature=1.0) -> Tensor:
    """The mode of data, few precise observations, the equation and the prior."""
    a, b, c = (torch.cat([torch.ones_like(x), x.sin(), (2 * x).cos()], -1) for x in (X, FEW, POINTS))
    slopes = torch.cat([torch.zeros_like(POINTS), POINTS.cos(), -2 * (2 * POINTS).sin()], -1)
    r = slopes + RATE * c
    precision = a.T @ a / SIGMA**2 + b.T @ b / PRECISE**2 + r.T @ r / SCALE**2
    pull = a.T @ DATA.targets / SIGMA**2 + b.T @ FEW_Y / PRECISE**2
    prior = torch.eye(3).double() / S**2 / prior_temperature
    return torch.linalg.solve(precision / temperature + prior, pull / temperature)


@pytest.mark.parametrize(("temperature", "temper", "heat"), [(1.0, "posterior", 1.0), (4.0, "likelihood", 1.0)])
def test_map_finds_the_mode_of_data_observations_and_an_equation(temperature, temper, heat):
    terms = [precise(), Decay(POINTS, SCALE)]
    posterior = bn.fit(FULL, problem(terms, temperature=temperature, temper=temper), DATA, engine=ENGINE)
    mean = posterior.points()[0].params["weight"][0]
    torch.testing.assert_close(mean, exact(temperature, heat), rtol=0, atol=1e-9)


def test_batches_of_data_and_points_go_to_the_same_mode():
    terms = [precise(batch_size=2), Decay(POINTS, SCALE, batch_size=5)]
    recipe = bn.MAP(epochs=60, batch_size=10, optimizer=Adam(lr=Cosine(peak=0.1)))
    posterior = bn.fit(recipe, problem(terms), DATA, engine=ENGINE)
    off = posterior.points()[0].params["weight"][0] - exact()
    plain = bn.fit(recipe, problem([]), DATA, engine=ENGINE).points()[0].params["weight"][0] - exact()
    assert float(off.norm()) < 0.02 < 0.1 < float(plain.norm())


def test_an_equation_carries_a_network_past_its_data():
    """A network that saw u only on [-1, 0] and knows u' = -rate u follows the solution to 2."""
    data = bn.Data(X[X[:, 0] < 0], noisy(X[X[:, 0] < 0], 0.02, "data"))
    beyond = line(0.5, 2, 30)
    truth = torch.exp(-RATE * beyond[:, 0])
    errors = []
    for terms in ([], [Decay(line(-1, 2, 40), 0.02)]):
        given = bn.Problem(plain_net, bn.likelihoods.Gaussian(noise=0.02), terms=terms)
        recipe = bn.MAP(epochs=300, batch_size=None, optimizer=Adam(lr=Cosine(peak=0.03)))
        posterior = bn.fit(recipe, given, data, members=2, engine=ENGINE)
        errors.append(float((posterior.predict(beyond).mean[:, 0] - truth).abs().max()))
    assert errors[1] < 0.05 < 0.15 < errors[0], errors


SHORT = bn.MAP(epochs=3, batch_size=10)
TERMS = [precise(batch_size=2), Decay(POINTS, SCALE, batch_size=5)]


def distance(a, b) -> float:
    return max(float((x - y).abs().max()) for x, y in zip(leaves(a.parts[0].family), leaves(b.parts[0].family)))


@pytest.mark.parametrize("recipe", [SHORT, bn.SWAG(iterates=3, rank=2, base=SHORT), bn.WGD(epochs=3, batch_size=10)])
def test_stack_and_loop_agree(recipe):
    given = problem(TERMS, Net)
    stacked, loop = (
        bn.fit(recipe, given, DATA, members=3, engine=replace(ENGINE, strategy=s)) for s in ("stacked", "loop")
    )
    assert distance(stacked, loop) < 1e-11
    assert distance(stacked, bn.fit(recipe, problem([], Net), DATA, members=3, engine=ENGINE)) > 1e-4


def test_a_sweep_is_its_plain_recipes():
    given = problem(TERMS, Net)
    swept = bn.fit(replace(SHORT, optimizer=Adam(lr=[1e-3, 1e-2])), given, DATA, engine=ENGINE)
    for k, lr in enumerate((1e-3, 1e-2)):
        plain = bn.fit(replace(SHORT, optimizer=Adam(lr=lr)), given, DATA, members=2, engine=ENGINE)
        assert distance(swept[k], plain[k]) < 1e-11


@pytest.mark.parametrize("space", [{"space": "function"}, {"space": "features", "layer": "1"}])
def test_members_that_repel_elsewhere_than_in_weights_follow_terms(space):
    """Half of each example's weight in a term is the same posterior."""
    half = torch.full_like(DATA.targets, 0.5)
    term = bn.terms.Observations(X, DATA.targets, bn.likelihoods.Gaussian(noise=SIGMA), half)
    recipe = bn.WGD(epochs=20, batch_size=None, **space)

    whole = bn.fit(recipe, problem([], plain_net), DATA, members=3, engine=ENGINE)
    split = bn.fit(recipe, problem([term], plain_net), bn.Data(X, DATA.targets, half), members=3, engine=ENGINE)
    assert distance(whole, split) < 1e-10


def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path):
    given, engine = problem(TERMS, Net), replace(ENGINE, checkpoint=0.0, deterministic=True)
    whole = bn.fit(SHORT, given, DATA, members=2, engine=engine)
    with pytest.raises(Killed):
        bn.fit(SHORT, given, DATA, members=2, pool=tmp_path, engine=engine, observe=Stop(2, Killed))
    again = bn.fit(SHORT, given, DATA, members=2, pool=tmp_path, engine=engine)
    assert distance(whole, again) == 0


def test_two_processes_train_the_same_members():
    given = problem(TERMS, Net)
    here, there = (
        bn.fit(SHORT, given, DATA, members=2, engine=replace(ENGINE, strategy="loop", processes=n)) for n in (1, 2)
    )
    assert distance(here, there) < 1e-11


def test_terms_are_saved_with_the_posterior_and_needed_to_load_it(tmp_path: Path):
    learned = bn.terms.Observations(FEW, FEW_Y, bn.likelihoods.Gaussian(noise=0.3, learned=True))
    given = problem([*TERMS, learned], Net)
    posterior = bn.fit(SHORT, given, DATA, members=2, engine=ENGINE)
    posterior.save(tmp_path)
    loaded = bn.load(tmp_path, Net)
    assert torch.equal(loaded.predict(X).mean, posterior.predict(X).mean)
    first, second, third = loaded.problem.terms
    assert isinstance(first, bn.terms.Observations) and torch.equal(first.targets, FEW_Y) and first.batch_size == 2
    assert isinstance(second, Decay) and (second.rate, second.scale, second.n) == (RATE, SCALE, 25)
    assert third.likelihood.learned
    point = posterior.points()[0]
    potentials = [p.term_potential(*point, mode="eval") for p in (loaded.problem, given)]
    assert torch.equal(*potentials)
    assert not [f for f in tmp_path.iterdir() if f.suffix not in (".json", ".safetensors", ".lock")]


def test_a_pool_knows_its_terms(tmp_path: Path):
    bn.fit(SHORT, problem(TERMS, Net), DATA, pool=tmp_path, engine=ENGINE)
    for other in ([], TERMS[:1], [TERMS[0], Decay(POINTS, SCALE, rate=0.6)], [precise(), Decay(POINTS, SCALE)]):
        with pytest.raises(FileError, match="another problem: terms"):
            bn.fit(SHORT, problem(other, Net), DATA, pool=tmp_path, engine=ENGINE)
    again = bn.fit(SHORT, problem([precise(batch_size=2), TERMS[1]], Net), DATA, pool=tmp_path, engine=ENGINE)
    assert again.parts[0].info["trained"] == 0


def test_a_pool_knows_what_an_equation_computes(tmp_path: Path):
    def growth(sign: float) -> type[bn.terms.Equation]:
        @dataclass(frozen=True, eq=False)
        class Growth(bn.terms.Equation):
            def residual(self, u, x):
                return torch.func.jacrev(u)(x)[:, 0] + sign * u(x)

        return Growth

    bn.fit(SHORT, problem([growth(1.0)(POINTS)], Net), DATA, pool=tmp_path, engine=ENGINE)
    bn.fit(SHORT, problem([growth(1.0)(POINTS)], Net), DATA, pool=tmp_path, engine=ENGINE)
    with pytest.raises(FileError, match="the energy of its terms"):
        bn.fit(SHORT, problem([growth(-1.0)(POINTS)], Net), DATA, pool=tmp_path, engine=ENGINE)


def test_costs_foresee_the_points_of_a_step():
    def wide(n, batch_size=None):
        term = Decay(line(-1, 1, n), SCALE, batch_size)
        return bn.cost(SHORT, problem([term], Net), DATA, engine=ENGINE, timed=False).fit_bytes

    plain = bn.cost(SHORT, problem([], Net), DATA, engine=ENGINE, timed=False).fit_bytes
    assert plain < wide(100) < wide(2000) and wide(2000) > 5 * wide(100)
    assert wide(2000, 100) < wide(2000) / 5
    assert bn.cost(SHORT, problem(TERMS, Net), DATA, engine=ENGINE).fit_seconds > 0


@pytest.mark.parametrize(
    ("recipe", "words"),
    [
        (bn.Laplace(base=SHORT), "Laplace .* only data and prior.*terms.*Observations, Decay.*such as SWAG"),
        (bn.MAP(prior_precision="marglik"), "MAP .* only data and prior.*terms"),
        (bn.Anchored(), "terms.* Use target_noise=False"),
    ],
)
def test_methods_that_know_only_the_data_refuse_terms_before_training(recipe, words):
    with pytest.raises(ValueError, match=words):
        bn.fit(recipe, problem(TERMS, Net), DATA, engine=ENGINE, observe=Stop(1, Killed))


def test_anchors_without_target_noise_go_with_terms():
    members = 200
    recipe = bn.Anchored(epochs=60, batch_size=None, target_noise=False, optimizer=SGD(lr=0.3, momentum=0.5))
    given = bn.Problem(
        lambda: nn.Linear(1, 1, bias=False, dtype=torch.float64),
        bn.likelihoods.Gaussian(noise=SIGMA),
        bn.priors.Normal(scale=S),
        terms=[bn.terms.Observations(FEW, FEW_Y, bn.likelihoods.Gaussian(noise=0.4))],
    )
    draws = ravel(bn.fit(recipe, given, DATA, members=members, engine=ENGINE).sample(1), 2)[:, 0, 0]
    precision = float(X.square().sum() / SIGMA**2 + FEW.square().sum() / 0.4**2 + S**-2)
    mean = float((X[:, 0] @ DATA.targets / SIGMA**2 + FEW[:, 0] @ FEW_Y / 0.4**2) / precision)
    sd = 1 / (S * precision)  # that of anchors alone, Lambda^-1 Lambda_prior Lambda^-1
    assert abs(float(draws.mean()) - mean) < 4.5 * sd / members**0.5
    assert abs(float(draws.var()) / sd**2 - 1) < 4.5 * (2 / members) ** 0.5
