"""Densities, probabilities and quantiles where single precision, or a plain formula, has no digits left."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch
from torch import Tensor

import basinet as bn
from basinet.predict import Outputs, assembled, make_predictive
from basinet.problem.likelihoods import Bernoulli, Categorical, Gaussian, Heteroscedastic, Poisson, StudentT


def one_of_each(closed: Tensor, plain: Tensor, likelihood):
    """The predictive of a member in closed form and a plain one, from logits (B, ...)."""
    parts = [Outputs(closed[None, None], {}, closed=True), Outputs(plain[None, None], {})]
    return assembled(parts, likelihood, None)


def test_a_confident_and_wrong_mixture_of_closed_and_plain_members_of_classes():
    """-200.7 before: the plain member's probability, exp(-110), is zero in single precision."""
    closed = torch.tensor([[0.0, -200.0]]).log_softmax(-1)
    log_prob = one_of_each(closed, torch.tensor([[0.0, -110.0]]), Categorical()).log_prob(torch.tensor([1]))
    assert log_prob.item() == pytest.approx(-110 - math.log(2), abs=1e-5)


@pytest.mark.parametrize("target", [0, 1])
def test_a_confident_and_wrong_mixture_of_closed_and_plain_members_of_labels(target):
    """-40.7 before: a probability within 1e-8 of one is one in single precision."""
    sign = 1 - 2 * target
    predictive = one_of_each(sign * torch.tensor([[40.0]]), sign * torch.tensor([[20.0]]), Bernoulli())
    assert predictive.log_prob(torch.tensor([[target]])).item() == pytest.approx(-20 - math.log(2), abs=1e-5)


def test_samples_of_a_plain_member_are_averaged_beside_a_closed_one():
    logits = torch.randn(1, 5, 3, 4, generator=torch.Generator().manual_seed(0))
    closed = Outputs(logits[:, :1].log_softmax(-1), {}, closed=True)
    predictive = assembled([closed, Outputs(logits, {})], Categorical(), None)
    expected = (logits[0, 0].softmax(-1) + logits[0].softmax(-1).mean(0)) / 2
    assert torch.allclose(predictive.probs, expected, atol=1e-6)
    labels = assembled([Outputs(logits[:, :1], {}, closed=True), Outputs(logits, {})], Bernoulli(), None)
    assert torch.allclose(labels.probs, (logits[0, 0].sigmoid() + logits[0].sigmoid().mean(0)) / 2, atol=1e-6)


@pytest.mark.parametrize("count", [10**6, 10**7, 2**24 + 2])
def test_counts_of_a_million_in_single_precision(count):
    """Errors of 1.5 to 23 nats before."""
    log_rate = torch.tensor([[math.log(count) + 1e-4]])
    predictive = make_predictive(log_rate[None, None], Poisson(), {})
    expected = scipy.stats.poisson(math.exp(log_rate.double().item())).logpmf(count)
    log_prob = predictive.log_prob(torch.tensor([[float(count)]]))
    assert log_prob.item() == pytest.approx(expected, abs=1e-4)
    assert Poisson().log_prob(log_rate, torch.tensor([[count]]), {}).item() == pytest.approx(expected, abs=1e-4)


def test_the_gradient_of_a_large_count_is_that_of_the_count():
    log_rate = torch.tensor([[math.log(10**6)]], requires_grad=True)
    (slope,) = torch.autograd.grad(Poisson().log_prob(log_rate, torch.tensor([[10**6]]), {}).sum(), log_rate)
    assert slope.dtype == torch.float32
    assert slope.item() == pytest.approx(10**6 - math.exp(log_rate.double().item()), rel=1e-5)


def correlated(size: float, n: int = 3) -> tuple[Tensor, Tensor]:
    """A covariance of rank one that is large beside noise of variance one, and what it is in double precision."""
    root = math.sqrt(size) * torch.linspace(1, 2, n, dtype=torch.float64)
    exact = root[:, None] * root
    return exact.float(), exact


@pytest.mark.parametrize("size", [1e3, 1e5, 1e6])
def test_a_joint_density_under_a_large_correlated_covariance(size):
    """The density is that of float64 to 1e-4, and draws are finite, where entries of the covariance are up to a million
    times the noise: in single precision its Cholesky factor loses the noise, or is not there."""
    covariance, _ = correlated(size)
    target = torch.tensor([[0.3, -0.2, 0.5]])
    predictive = make_predictive(torch.zeros(1, 1, 1, 3), Gaussian(noise=1.0), {}, None, covariance[None, None, None])
    total = covariance.double() + torch.eye(3)
    expected = torch.distributions.MultivariateNormal(torch.zeros(3).double(), total).log_prob(target.double())
    assert predictive.log_prob(target).item() == pytest.approx(expected.item(), abs=1e-4)
    assert torch.isfinite(predictive.sample(5)).all()


def test_a_covariance_that_rounding_made_indefinite_has_no_negative_variances():
    """At 1e9 the rounding of the entries, 64, is larger than the noise: negative variances are rounding."""
    covariance, exact = correlated(1e9)
    covariance[0, 1] += 1e3  # asymmetric, as products in single precision may be
    assert torch.linalg.eigvalsh(covariance.double() + torch.eye(3))[0] < 0
    predictive = make_predictive(torch.zeros(1, 1, 1, 3), Gaussian(noise=1.0), {}, None, covariance[None, None, None])
    along = exact[0] / exact[0].norm()  # where the covariance says that targets vary
    assert torch.isfinite(predictive.log_prob((1e4 * along).float()[None])).all()
    assert torch.isfinite(predictive.sample(5)).all()


LIKELIHOODS = {
    "normal": (Gaussian(noise=2.0), scipy.stats.norm(1, 2)),
    "t": (StudentT(df=5.0, scale=2.0), scipy.stats.t(5, 1, 2)),
    "heteroscedastic": (Heteroscedastic(floor=0.0), scipy.stats.norm(1, 2)),
}


def predictive_of(name: str):
    likelihood = LIKELIHOODS[name][0]
    outputs = [1.0, math.log(math.expm1(2))] if name == "heteroscedastic" else [1.0]
    return make_predictive(torch.tensor(outputs).reshape(1, 1, 1, -1), likelihood, {})


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("level", [1e-30, 1e-15, 1e-9, 1e-7, 0.5, 1 - 1e-7, 1 - 1e-9, 1 - 1e-12])
def test_quantiles_far_out(name, level):
    quantile = predictive_of(name).quantile(level)
    assert quantile.dtype == torch.float32
    assert quantile.item() == pytest.approx(LIKELIHOODS[name][1].ppf(level), rel=2e-5)


@pytest.mark.parametrize("name", LIKELIHOODS)
@pytest.mark.parametrize("z", [-30.0, -10.0, -6.0, 0.0, 5.0, 7.0])
def test_the_distribution_function_in_its_tails(name, z):
    probability = predictive_of(name).cdf(torch.tensor([[1 + 2 * z]])).item()
    exact = LIKELIHOODS[name][1]
    value = 1 + 2 * z
    assert probability == pytest.approx(exact.cdf(value), rel=1e-5)
    assert 1 - probability == pytest.approx(exact.sf(value), rel=1e-3, abs=1e-15)


def test_mixtures_far_out():
    """The lowest quantiles of a mixture are those of its widest component, at a level that its weight raises."""
    outputs = torch.tensor([[0.0, math.log(math.expm1(1))], [0.0, math.log(math.expm1(3))]]).reshape(2, 1, 1, 2)
    predictive = make_predictive(outputs, Heteroscedastic(floor=0.0), {})
    assert predictive.quantile(1e-12).item() == pytest.approx(3 * scipy.stats.norm.ppf(2e-12), rel=1e-5)
    assert predictive.quantile(1 - 1e-12).item() == pytest.approx(3 * scipy.stats.norm.isf(2e-12), rel=1e-4)


def test_normals_of_a_closed_form_far_out():
    predictive = make_predictive(
        torch.zeros(1, 1, 1, 1), Gaussian(noise=1.0), {}, None, torch.full((1, 1, 1, 1, 1), 3.0)
    )
    assert predictive.quantile(1e-12).item() == pytest.approx(2 * scipy.stats.norm.ppf(1e-12), rel=1e-5)
    assert predictive.cdf(torch.tensor([[-20.0]])).item() == pytest.approx(scipy.stats.norm.cdf(-10), rel=1e-5)


@pytest.mark.parametrize("level", [1e-12, 1e-9, 0.5, 1 - 1e-9])
@pytest.mark.parametrize("rate", [3.0, 1e6, 1e8])
def test_quantiles_of_counts_far_out(rate, level):
    log_rate = torch.tensor([[math.log(rate)]])
    quantile = make_predictive(log_rate[None, None], Poisson(), {}).quantile(level).item()
    exact = scipy.stats.poisson(math.exp(log_rate.double().item())).ppf(level)
    assert quantile == pytest.approx(exact, rel=2e-7, abs=1e-9)


def test_scores_of_a_posterior_far_out_are_finite():
    """A target a hundred standard deviations away has a finite log density and a PIT of zero or one."""
    problem = bn.Problem(lambda: torch.nn.Linear(1, 1), Gaussian(noise=0.01))
    module = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(module.weight)
    torch.nn.init.zeros_(module.bias)
    posterior = bn.Posterior.of(module, problem)
    scores = bn.score(posterior, bn.Data(torch.zeros(2, 1), torch.tensor([[1.0], [-1.0]])))
    assert scores["nll"] == pytest.approx(5000 + math.log(0.01 * math.sqrt(2 * math.pi)), rel=1e-4)
