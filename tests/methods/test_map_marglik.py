"""MAP that learns prior and noise by marginal likelihood: on linear models, the maximum of the exact evidence."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.methods.map import MAP
from basinet.optim import SGD, Adam
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", progress=False)
KEY = bn.Noise.seed(11)
N = 40
LEARNED = bn.likelihoods.Gaussian(noise=1.0, learned=True)
DESCENT: dict[str, Any] = {"epochs": 1500, "batch_size": None, "optimizer": SGD(lr=0.02, momentum=0.9), "every": 1}


class Sum(nn.Module):
    """Two linear layers on inputs of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(2, 1, bias=False, dtype=torch.float64)
        self.b = nn.Linear(3, 1, bias=False, dtype=torch.float64)

    def forward(self, x):
        return self.a(x[:, :2]) + self.b(x[:, 2:])


def linear() -> nn.Module:
    return nn.Linear(5, 1, bias=False, dtype=torch.float64)


def regression() -> tuple[bn.Data, Tensor]:
    """Two inputs that matter much and three that matter little, orthogonal between the two kinds."""
    x = KEY.split("x").normal(torch.empty(N, 5, dtype=torch.float64))
    x[:, 2:] -= x[:, :2] @ torch.linalg.lstsq(x[:, :2], x[:, 2:]).solution
    weights = torch.tensor([3.0, -4.0, 0.4, 0.3, -0.2], dtype=torch.float64)
    y = x @ weights + 0.3 * KEY.split("y").normal(x[:, 0])
    return bn.Data(x, y.unsqueeze(1)), x


def log_evidence(x: Tensor, y: Tensor, precision: Tensor, noise: Tensor) -> Tensor:
    """log N(y; 0, noise^2 + x diag(1 / precision) x')."""
    covariance = noise.square() * torch.eye(len(x), dtype=x.dtype) + (x / precision) @ x.mT
    return torch.distributions.MultivariateNormal(torch.zeros(len(x), dtype=x.dtype), covariance).log_prob(y)


def maximum(x: Tensor, y: Tensor, kinds: list[int]) -> tuple[Tensor, Tensor]:
    """The precision of each kind of input and the noise at which the exact evidence is largest."""
    logs = torch.zeros(max(kinds) + 2, dtype=torch.float64, requires_grad=True)
    lbfgs = torch.optim.LBFGS(
        [logs], max_iter=500, tolerance_grad=1e-10, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        lbfgs.zero_grad()
        value = -log_evidence(x, y, logs[:-1].exp()[kinds], logs[-1].exp())
        value.backward()
        return value

    lbfgs.step(loss)
    return logs.detach()[:-1].exp(), logs.detach()[-1].exp()


@pytest.mark.parametrize(
    ("make", "tuned", "structure", "kinds"),
    [
        (linear, "marglik", "full", [0, 0, 0, 0, 0]),
        (linear, "marglik", "kronecker", [0, 0, 0, 0, 0]),
        (Sum, "layers", "kronecker", [0, 0, 1, 1, 1]),
    ],
)
def test_it_ends_at_the_maximum_of_the_exact_evidence_and_its_ridge_solution(make, tuned, structure, kinds):
    data, x = regression()
    problem = bn.Problem(make, LEARNED, bn.priors.Normal(scale=0.7))
    recipe = MAP(prior_precision=tuned, noise="marglik", structure=structure, **DESCENT)
    posterior = bn.fit(recipe, problem, data, engine=ENGINE)
    curves, y = posterior.info["curves"], data.targets[:, 0]
    precision, noise = maximum(x, y, kinds)
    assert curves["prior_precision"][0] == pytest.approx(precision.tolist(), rel=1e-5)
    assert curves["noise"][0] == pytest.approx([float(noise)], rel=1e-5)
    best = float(log_evidence(x, y, precision[kinds], noise))
    assert curves["log_evidence"][0][-1] == pytest.approx(best, abs=1e-7)
    assert best > float(log_evidence(x, y, torch.full((5,), 0.7**-2).double(), torch.ones(()).double())) + 10
    ridge = torch.linalg.solve(x.mT @ x + noise**2 * torch.diag(precision[kinds]), x.mT @ y)
    weights = torch.cat([v.flatten() for n, v in posterior.mean().items() if n != "likelihood.log_noise"])
    torch.testing.assert_close(weights, ridge, rtol=0, atol=1e-6)


def test_laplace_starts_from_what_was_learned():
    data, x = regression()
    problem = bn.Problem(linear, LEARNED)
    maps = bn.fit(MAP(prior_precision="marglik", noise="marglik", **DESCENT), problem, data, engine=ENGINE)
    learned, noise = maps.info["curves"]["prior_precision"][0][0], maps.info["curves"]["noise"][0][0]
    same = bn.fit(bn.Laplace(prior_precision=learned), problem, data, start=maps, engine=ENGINE)
    exact = log_evidence(x, data.targets[:, 0], torch.full((5,), learned).double(), torch.tensor(noise).double())
    assert same.info["curves"]["log_evidence"][0][0] == pytest.approx(float(exact), abs=1e-6)
    again = bn.Laplace(prior_precision="marglik", noise="marglik")
    tuned = bn.fit(again, problem, data, start=maps, engine=ENGINE).info["curves"]
    assert tuned["prior_factor"][0] == pytest.approx([1.0], rel=1e-4)  # of the precision that MAP learned


def test_a_noise_that_is_known_stays_and_one_that_is_learned_is_left_to_descent():
    data, x = regression()
    for likelihood in (bn.likelihoods.Gaussian(noise=0.3), LEARNED):
        posterior = bn.fit(
            MAP(prior_precision="marglik", **DESCENT), bn.Problem(linear, likelihood), data, engine=ENGINE
        )
        noise = float(posterior.mean().get("likelihood.log_noise", torch.tensor(math.log(0.3))).exp())
        precision = posterior.info["curves"]["prior_precision"][0][0]
        ridge = torch.linalg.solve(
            x.mT @ x + noise**2 * precision * torch.eye(5, dtype=torch.float64), x.mT @ data.targets[:, 0]
        )
        torch.testing.assert_close(posterior.mean()["weight"][0], ridge, rtol=0, atol=1e-6)
        residual = float((data.targets[:, 0] - x @ ridge).square().mean().sqrt())
        assert noise == pytest.approx(0.3 if not likelihood.learned else residual, rel=1e-6)
        assert "noise" not in posterior.info["curves"]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def classes(n: int = 60) -> bn.Data:
    x = KEY.split("cx").normal(torch.empty(n, 4))
    return bn.Data(x, (x @ KEY.split("cw").normal(torch.empty(4, 3))).argmax(-1))


SHORT: dict[str, Any] = {"epochs": 20, "batch_size": 20, "prior_precision": "layers", "every": 2}


@pytest.mark.parametrize("structure", ["kronecker", "diagonal"])
def test_members_have_their_own_and_are_the_same_when_fitted_alone(structure):
    problem, recipe = bn.Problem(net, bn.likelihoods.Categorical()), MAP(structure=structure, **SHORT)
    three = bn.fit(recipe, problem, classes(), members=3, engine=ENGINE)
    precisions = three.info["curves"]["prior_precision"]
    assert len({tuple(each) for each in precisions}) == 3
    for each in precisions:  # of a weight and of its bias, one
        assert each[0] == each[1] != each[2] == each[3]
    assert [len(steps) for steps in three.info["curves"]["evidence_step"]] == [9] * 3  # reports 2, 4, ... 18 of 20
    loop = bn.Engine(device="cpu", progress=False, strategy="loop")
    one_by_one = bn.fit(recipe, problem, classes(), members=3, engine=loop)
    for name, x in three.mean().items():
        torch.testing.assert_close(x, one_by_one.mean()[name], rtol=0, atol=1e-4)
    torch.testing.assert_close(
        torch.tensor(precisions), torch.tensor(one_by_one.info["curves"]["prior_precision"]), rtol=1e-3, atol=0
    )


def test_lists_of_values_are_the_plain_recipes():
    problem = bn.Problem(net, bn.likelihoods.Categorical())
    rates = [0.01, 0.03]
    swept = bn.fit(MAP(optimizer=Adam(lr=rates), **SHORT), problem, classes(), engine=ENGINE)
    for k, lr in enumerate(rates):
        plain = bn.fit(MAP(optimizer=Adam(lr=lr), **SHORT), problem, classes(), members=2, engine=ENGINE)
        precision, expected = (p[k].info["curves"]["prior_precision"][0] for p in (swept, plain))
        assert precision == pytest.approx(expected, rel=1e-3)


@pytest.mark.slow
def test_it_conforms():
    check_method(MAP(epochs=4, batch_size=16, prior_precision="layers", every=1))


@pytest.mark.slow
def test_intervals_on_a_table_with_little_noise():
    """Noise of a twentieth of the targets' sd, in 1,000 steps: learned with the parameters it comes down by 1.5 in its
    logarithm at most. With Kronecker factors the evidence counts somewhat too many parameters as determined, so that
    the noise is a little large (0.94 for 0.9; the standard error of a share here is 0.006)."""
    x = KEY.split("tx").uniform(torch.empty(3000, 2)) * 4 - 2
    f = torch.sin(2 * x[:, :1]) + 0.5 * x[:, 1:]
    y = f / f.std() + 0.05 * KEY.split("ty").normal(f)
    train, test = bn.Data(x[:1000], y[:1000]), bn.Data(x[1000:], y[1000:])
    likelihood = bn.likelihoods.Gaussian(noise=0.5, learned=True)
    problem = bn.Problem(lambda: bn.networks.MLP(2, 1, hidden=(30, 30)), likelihood)
    inside, noise = {}, {}
    for learned in (None, "marglik"):
        posterior = bn.fit(MAP(epochs=125, prior_precision=learned, noise=learned), problem, train, engine=ENGINE)
        low, high = posterior.predict(test.inputs).interval(0.9)
        inside[learned] = float(((test.targets >= low) & (test.targets <= high)).float().mean())
        noise[learned] = float(posterior.mean()["likelihood.log_noise"].exp())
    assert inside["marglik"] == pytest.approx(0.92, abs=0.04) and inside[None] > 0.99
    assert noise["marglik"] == pytest.approx(0.055, abs=0.015) and noise[None] > 0.15


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prior_precision": "evidence"}, "expected prior_precision 'marglik', 'layers' or None, got 'evidence'"),
        ({"noise": "learned"}, "expected noise 'marglik' or None, got 'learned'"),
        ({"structure": "eigen"}, "expected a structure among full, kronecker, diagonal, got 'eigen'"),
        ({"structure": "full", "prior_precision": "layers"}, "needs layers apart: use structure='kronecker'"),
        ({"every": 0}, "expected every of at least 1, got 0"),
        ({"subset": 0}, "expected subset of at least 1, got 0"),
    ],
)
def test_what_makes_no_recipe(options, message):
    with pytest.raises(ValueError, match=message):
        MAP(**options)


@pytest.mark.parametrize(
    ("options", "likelihood", "prior", "message"),
    [
        ({"noise": "marglik"}, bn.likelihoods.Gaussian(noise=0.3), bn.priors.Normal(), "learned=True"),
        ({"noise": "marglik"}, bn.likelihoods.Categorical(), bn.priors.Normal(), "learned=True.*got Categorical"),
        ({"prior_precision": "marglik"}, LEARNED, bn.priors.Laplace(), "of a Normal prior, got Laplace"),
        ({"prior_precision": "marglik", "subset": 41}, LEARNED, bn.priors.Normal(), "at most the 40 examples"),
    ],
)
def test_what_does_not_fit_a_problem(options, likelihood, prior, message):
    data, _ = regression()
    with pytest.raises(ValueError, match=message):
        bn.fit(
            MAP(epochs=10, every=1, **options),
            bn.Problem(linear, likelihood, prior),
            data,
            engine=ENGINE,
            observe=lambda event: pytest.fail("it trained"),
        )
