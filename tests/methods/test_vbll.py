"""VBLL: exact in a linear model, its bound for classes, where the last layer is, what is refused, real data."""

from __future__ import annotations

import pytest
import torch
from three_classes import ENGINE, KEY, PROBLEM, data, net
from torch import nn

import basinet as bn
from basinet.core.tree import take
from basinet.families import Rows
from basinet.methods.vbll import VBLL, expected_potential
from basinet.problem import Batch
from basinet.testing import check_method
from basinet.testing.exact import conjugate


@pytest.mark.slow
def test_it_conforms_and_is_exact_in_a_linear_model():
    checks = check_method(VBLL(epochs=4, batch_size=16))
    assert any("one pass" in c.name for c in checks) and sum("covariance" in c.name for c in checks) == 2


def test_a_diagonal_row_has_the_variances_of_mean_field():
    exact = conjugate()
    recipe = VBLL(
        epochs=600, batch_size=None, structure="diagonal", optimizer=bn.optim.Adam(lr=bn.optim.Cosine(peak=0.1))
    )
    part = take(bn.fit(recipe, exact.problem, exact.data, engine=ENGINE).parts[0].family, 0).part
    variances = part.factor[0].diagonal().square()
    torch.testing.assert_close(variances, 1 / exact.precision.diagonal(), rtol=1e-4, atol=0)


@pytest.mark.parametrize("weights", [None, torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0, 3.0], dtype=torch.float64)])
@pytest.mark.parametrize("real", [True, False])
def test_the_expected_likelihood_is_that_of_draws_or_a_bound_near_it(real, weights):
    likelihood = bn.likelihoods.Gaussian(noise=0.7) if real else bn.likelihoods.Categorical()
    problem = bn.Problem(net, likelihood, temperature=0.5)
    mean = KEY.split("mean").normal(torch.empty(6, 3, dtype=torch.float64))
    targets = KEY.split("t").normal(mean) if real else torch.arange(6) % 3
    batch = Batch(torch.zeros(6, 4), targets, torch.arange(6), torch.tensor(0), 60, weights)
    point = problem.init(bn.Noise.seed(0))
    for size, slack in ((0.01, 1e-3), (0.3, 0.5)):
        variance = size * KEY.split("v").uniform(mean)
        z = KEY.split("z").normal(mean.new_empty(20_000, 6, 3))
        outputs = mean + variance.sqrt() * z
        drawn = torch.func.vmap(lambda f: problem.likelihood_potential(f, point.params, batch))(outputs)
        potential, error = expected_potential(problem, mean, variance, point.params, batch), drawn.std() / 20_000**0.5
        low = float((potential - drawn.mean()) / error)
        assert low > -4.5  # z: the potential of the bound is never below
        assert float(potential - drawn.mean()) < 4.5 * float(error) + (0.0 if real else slack * float(potential.abs()))


def test_only_the_last_layer_is_random_and_it_predicts_in_closed_form():
    posterior = bn.fit(VBLL(epochs=3), PROBLEM, data(), members=2, engine=ENGINE)
    family = posterior.parts[0].family
    assert isinstance(family.part, Rows) and set(family.part.centre) == {"2.weight", "2.bias"}
    real = bn.Problem(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1)).double(),
                      bn.likelihoods.Gaussian(noise=0.5, learned=True))  # fmt: skip
    numbers = bn.Data(data().inputs, data().targets.double())
    fitted = bn.fit(VBLL(epochs=20), real, numbers, engine=ENGINE)
    closed, drawn = fitted.predict(data().inputs), fitted.predict(data().inputs, samples=4000, via="sample")
    torch.testing.assert_close(closed.mean, drawn.mean, rtol=0, atol=0.02)
    torch.testing.assert_close(closed.variance, drawn.variance, rtol=0.1, atol=0.01)


class Ended(nn.Module):
    """A network that goes on after its last linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.head = nn.Linear(4, 5), nn.Linear(5, 3)
        self.double()

    def forward(self, x):
        return torch.tanh(self.head(torch.relu(self.a(x))))


@pytest.mark.parametrize(
    ("options", "problem", "message"),
    [
        ({}, bn.Problem(Ended, bn.likelihoods.Categorical()), "that goes on after it"),
        ({"layer": "first"}, PROBLEM, "expected layer= as the name of a linear layer, 0, 2, got 'first'"),
        ({"layer": "0"}, PROBLEM, "that goes on after it"),
        ({}, bn.Problem(net, bn.likelihoods.Poisson()), "closed form for Gaussian and Categorical"),
        ({}, bn.Problem(net, bn.likelihoods.Categorical(), bn.priors.Laplace()), "closed form for a normal prior"),
        ({"structure": "kronecker"}, PROBLEM, "expected structure 'full' or 'diagonal'"),
        ({"scale": 0.0}, PROBLEM, "expected a positive, finite scale"),
        ({"patience": 0}, PROBLEM, "expected patience of at least 1"),
    ],
)
def test_impossible_recipes_are_refused(options, problem, message):
    with pytest.raises(ValueError, match=message):
        bn.fit(VBLL(epochs=1, **options), problem, data(), engine=ENGINE)


@pytest.mark.slow
def test_digits_are_known_and_diabetes_is_predicted():
    engine = bn.Engine(device="cpu", strategy="loop", progress=False)
    digits, diabetes = bn.datasets.load("digits"), bn.datasets.load("diabetes")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(40,)), bn.likelihoods.Categorical())
    posterior = bn.fit(VBLL(epochs=30), problem, digits.train, engine=engine)
    assert bn.score(posterior, digits.test)["accuracy"] > 0.93
    real = bn.Problem(lambda: bn.networks.MLP(10, 1, hidden=(20,)), bn.likelihoods.Gaussian(noise=0.7, learned=True))
    posterior = bn.fit(VBLL(), real, diabetes.train, val=diabetes.val, engine=engine)
    assert bn.score(posterior, diabetes.test)["rmse"] < 0.85
