"""Fits find what made the data: MAP under each likelihood, within 4.5 standard errors of the truth (Fisher)."""

import math
from dataclasses import dataclass

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.optim import Adam, Cosine
from basinet.problem import Batch
from basinet.problem.likelihoods import RealLikelihood, check_real
from basinet.problem.priors.prior import Prior, constant, total

KEY = Noise.seed(0)
N, D = 3000, 3
X = KEY.split("x").normal(torch.empty(N, D, dtype=torch.float64))
RECIPE = bn.MAP(epochs=400, batch_size=None, optimizer=Adam(lr=Cosine(peak=0.05)))
ENGINE = bn.Engine(device="cpu", progress=False)
LEARNED = bn.likelihoods.Gaussian(noise=(1.0, 1.0), learned=True)


def linear(outputs: int) -> nn.Module:
    return nn.Linear(D, outputs, bias=False, dtype=torch.float64)


def fitted(likelihood, outputs: int, targets: torch.Tensor, prior=None) -> bn.Posterior:
    problem = bn.Problem(lambda: linear(outputs), likelihood, prior or bn.priors.Normal(scale=100.0))
    return bn.fit(RECIPE, problem, bn.Data(X, targets), engine=ENGINE)


@pytest.mark.parametrize(
    ("likelihood", "outputs"),
    [
        (bn.likelihoods.Bernoulli(), 1),
        (bn.likelihoods.Bernoulli(), 2),
        (bn.likelihoods.Gaussian(noise=0.3), 1),
        (bn.likelihoods.Gaussian(noise=(0.3, 2.0)), 2),
        (bn.likelihoods.Heteroscedastic(), 2),
        (bn.likelihoods.StudentT(df=3.0, scale=0.5), 1),
        (bn.likelihoods.Poisson(), 2),
    ],
)
def test_weights_are_found(likelihood, outputs):
    truth = 0.5 * KEY.split("truth").normal(torch.empty(outputs, D, dtype=torch.float64))
    at_truth = X @ truth.T
    weights = fitted(likelihood, outputs, likelihood.sample(at_truth, {}, KEY.split("y"))).mean()["weight"]
    fisher = torch.einsum("nij,na,nb->iajb", likelihood.hessian(at_truth, None, {}), X, X)
    covariance = torch.linalg.inv(fisher.reshape(outputs * D, -1))
    z = (weights - truth).reshape(-1) / covariance.diagonal().sqrt()
    assert float(z.abs().max()) < 4.5
    assert float((weights - truth).abs().max()) < 0.2  # and the errors are small


@pytest.mark.parametrize("likelihood", [LEARNED, bn.likelihoods.Gaussian(noise=1.0, learned=True)])
def test_learned_noise_is_the_spread_of_the_residuals(likelihood):
    noise = KEY.split("noise").normal(torch.empty(N, 2, dtype=torch.float64)) * torch.tensor([0.2, 3.0])
    y = X[:, :2] + noise
    params = fitted(likelihood, 2, y).mean()
    residual = y - X @ params["weight"].T
    each = residual.square().mean(0 if isinstance(likelihood.noise, tuple) else (0, 1)).sqrt()
    torch.testing.assert_close(params["likelihood.log_noise"].exp(), each, rtol=1e-3, atol=0)


def test_a_learned_scale_of_student_t_is_found():
    likelihood = bn.likelihoods.StudentT(df=4.0, scale=1.0, learned=True)
    generator = bn.likelihoods.StudentT(df=4.0, scale=0.25)
    y = generator.sample(X[:, :1], {}, KEY.split("t"))
    log_scale = fitted(likelihood, 1, y).mean()["likelihood.log_scale"]
    error = math.sqrt((4.0 + 3) / (2 * 4.0 * N))  # of log scale: the Fisher information is 2 nu / (nu + 3) per example
    assert abs(float(log_scale) - math.log(0.25)) < 4.5 * error


def test_heavy_tails_are_not_pulled_by_outliers():
    y = X[:, :1] + 0.1 * KEY.split("small").normal(X[:, :1])
    y[:60] += 50.0
    robust = fitted(bn.likelihoods.StudentT(df=3.0, scale=0.1), 1, y).mean()["weight"]
    pulled = fitted(bn.likelihoods.Gaussian(noise=0.1), 1, y).mean()["weight"]
    truth = torch.tensor([[1.0, 0.0, 0.0]], dtype=torch.float64)
    assert float((robust - truth).abs().max()) < 0.02 < 0.1 < float((pulled - truth).abs().max())


def test_noisy_dirichlet_is_weighted_least_squares_and_predicts_the_classes():
    labels = (X[:, 0] > 0).long()
    likelihood = bn.likelihoods.NoisyDirichlet()
    posterior = fitted(likelihood, 2, labels)
    weights = posterior.mean()["weight"]
    mean, variance = likelihood._moments(torch.zeros(N, 2, dtype=torch.float64), labels)
    for k in range(2):
        w = 1 / variance[:, k]
        exact = torch.linalg.solve(X.T @ (w[:, None] * X) + 1e-4 * torch.eye(D), X.T @ (w * mean[:, k]))
        torch.testing.assert_close(weights[k], exact, rtol=1e-4, atol=1e-5)
    assert bn.score(posterior, bn.Data(X, labels))["accuracy"] > 0.97


@pytest.mark.parametrize(
    "prior", [bn.priors.Laplace(scale=0.05), bn.priors.StudentT(df=1.0, scale=0.01), bn.priors.ScaleMixture()]
)
def test_priors_shrink_what_the_data_do_not_ask_for(prior):
    y = 2 * X[:40, :1] + 0.5 * KEY.split("few").normal(X[:40, :1])
    problem = bn.Problem(lambda: linear(1), bn.likelihoods.Gaussian(noise=0.5), prior)
    flat = bn.Problem(lambda: linear(1), bn.likelihoods.Gaussian(noise=0.5), bn.priors.Normal(scale=100.0))
    shrunk, plain = (bn.fit(RECIPE, p, bn.Data(X[:40], y), engine=ENGINE).mean()["weight"][0] for p in (problem, flat))
    assert bool((shrunk[1:].abs() < plain[1:].abs() + 1e-3).all()) and 1.5 < float(shrunk[0]) < 2.5


def test_a_posterior_as_prior_gives_the_posterior_of_all_data():
    noise, first = 0.5, slice(0, 30)
    y = X[:60] @ torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64) + noise * KEY.split("s").normal(X[:60, 0])
    precision = X[first].square().sum(0) / noise**2 + 1.0  # of independent parameters, as the family has them
    centre = (X[first] * y[first, None]).sum(0) / noise**2 / precision
    family = bn.families.Diagonal({"weight": centre[None]}, {"weight": precision[None] ** -0.5}, {})
    problem = bn.Problem(lambda: linear(1), bn.likelihoods.Gaussian(noise=noise), bn.priors.FromFamily(family=family))
    weight = bn.fit(RECIPE, problem, bn.Data(X[30:60], y[30:60]), engine=ENGINE).mean()["weight"][0]
    x = X[30:60]
    exact = torch.linalg.solve(x.T @ x / noise**2 + precision.diag(), x.T @ y[30:60] / noise**2 + precision * centre)
    torch.testing.assert_close(weight, exact, rtol=1e-4, atol=1e-5)


def batch(targets: torch.Tensor, weights: torch.Tensor | None, n: int) -> Batch:
    return Batch(X[:n], targets, torch.arange(n), torch.tensor(0), n, weights)


@pytest.mark.parametrize(
    ("likelihood", "outputs", "integer"),
    [
        (bn.likelihoods.Gaussian(), 2, False),
        (bn.likelihoods.Heteroscedastic(), 4, False),
        (bn.likelihoods.Bernoulli(), 2, True),
        (bn.likelihoods.Poisson(), 2, True),
    ],
)
def test_elements_of_weight_zero_do_not_exist(likelihood, outputs, integer):
    problem = bn.Problem(lambda: linear(outputs), likelihood)
    params = problem.init(KEY).params
    targets = KEY.split("z").integers(12, 2).reshape(6, 2)
    targets = targets if integer else targets.double()
    mask = torch.tensor([[1, 0], [1, 1], [0, 0], [0, 1], [1, 1], [1, 1]], dtype=torch.float64)
    log_likelihood = problem.log_likelihood(params, {}, batch(targets, mask, 6))[0]
    other = torch.where(mask > 0, targets, 1 - targets)
    torch.testing.assert_close(problem.log_likelihood(params, {}, batch(other, mask, 6))[0], log_likelihood)
    each = likelihood.log_density(X[:6] @ params["weight"].T, targets, {})
    torch.testing.assert_close(log_likelihood, each[mask > 0].sum())
    rows = torch.tensor([1.0, 2.0, 0.0, 1.0, 1.0, 0.5], dtype=torch.float64)  # one per example
    torch.testing.assert_close(
        problem.log_likelihood(params, {}, batch(targets, rows, 6))[0], (rows * each.sum(1)).sum()
    )


@dataclass(frozen=True, kw_only=True)
class Gumbel(RealLikelihood):
    """Skewed noise, as a user would write it."""

    scale: float = 2.0

    def distribution(self, outputs, learned):
        return torch.distributions.Gumbel(outputs, torch.full_like(outputs, self.scale), validate_args=False)

    def check(self, outputs, targets):
        check_real(self, outputs, targets)


@dataclass(frozen=True, kw_only=True)
class Quartic(Prior):
    """energy = sum (theta / scale)^4, as a user would write it."""

    scale: float = 2.0

    def energy(self, params):
        return total((x / self.scale) ** 4 for x in params.values())

    def log_normaliser(self, params):
        each = math.log(2 * self.scale * math.gamma(1.25))
        return constant(each * sum(x.numel() for x in params.values()), params)

    def sample(self, like, noise):
        raise ValueError("Quartic is not sampled")


def test_a_users_own_likelihood_and_prior_fit_save_and_load(tmp_path):
    truth = torch.tensor([[0.5, -1.0, 1.5]], dtype=torch.float64)
    y = Gumbel().sample(X @ truth.T, {}, KEY.split("gumbel"))
    posterior = fitted(Gumbel(), 1, y, Quartic())
    error = 2 / math.sqrt(N)  # the Fisher information of the location is 1 / scale^2, and inputs have variance one
    assert float((posterior.mean()["weight"] - truth).abs().max()) < 4.5 * error
    posterior.save(tmp_path / "own")
    again = bn.load(tmp_path / "own", lambda: linear(1))
    assert again.problem.likelihood == Gumbel() and again.problem.prior == Quartic()
    before, after = posterior.predict(X[:50]), again.predict(X[:50])
    assert torch.equal(before.mean, after.mean) and torch.equal(before.quantile(0.9), after.quantile(0.9))
    scores = bn.score(again, bn.Data(X, y))
    assert scores["nll"] == pytest.approx(-float(before.likelihood.log_prob(X @ truth.T, y, {}).mean()), abs=0.01)
    assert scores["coverage_90"] == pytest.approx(0.9, abs=4.5 * math.sqrt(0.09 / N))
    hessian = Gumbel().hessian(X[:5] @ truth.T, y[:5], {})
    torch.testing.assert_close(hessian[:, 0, 0], 0.25 * (-(y[:5, 0] - (X[:5] @ truth.T)[:, 0]) / 2).exp())
    density = math.exp(-float(Quartic().log_normaliser({"a": torch.zeros(1, dtype=torch.float64)})))
    grid = torch.linspace(-10, 10, 20_001, dtype=torch.float64)
    assert float(torch.trapezoid(torch.exp(-((grid / 2) ** 4)), grid)) * density == pytest.approx(1)
