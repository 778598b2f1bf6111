"""The yardstick measured: exact answers of the conjugate problem against other ways to the same numbers."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from basinet.core.noise import Noise
from basinet.problem import Batch
from basinet.testing.exact import PARAMETER, conjugate

SIGMA, S = 0.5, 1.5  # the defaults


def potential(exact):
    data = exact.data
    batch = Batch(data.inputs, data.targets, torch.arange(data.n), torch.tensor(0), data.n)
    return lambda theta: exact.problem.potential({PARAMETER: theta.reshape(1, -1)}, {}, batch)[0]


def test_the_mean_solves_the_regularised_least_squares():
    exact = conjugate()
    x, y = exact.data.inputs, exact.data.targets
    d = x.shape[1]
    design = torch.cat([x / SIGMA, torch.eye(d, dtype=torch.float64) / S])
    response = torch.cat([y / SIGMA, torch.zeros(d, dtype=torch.float64)])
    torch.testing.assert_close(exact.mean, torch.linalg.lstsq(design, response[:, None]).solution[:, 0])


@pytest.mark.parametrize(("temperature", "temper"), [(1.0, "posterior"), (0.3, "posterior"), (0.3, "likelihood")])
@pytest.mark.parametrize("correlation", [0.8, 0.0])
def test_the_precision_is_the_curvature_of_the_potential_and_the_mean_its_minimum(temperature, temper, correlation):
    exact = conjugate(temperature=temperature, temper=temper, correlation=correlation)
    u = potential(exact)
    torch.testing.assert_close(torch.func.jacrev(torch.func.grad(u))(exact.mean), exact.precision)
    assert float(torch.func.grad(u)(exact.mean).abs().max()) < 1e-9
    torch.testing.assert_close(exact.covariance @ exact.precision, torch.eye(3, dtype=torch.float64))


def test_the_evidence_is_that_of_the_marginal_normal():
    exact = conjugate(n=17, d=4, noise=0.4, prior=0.9)
    x, y = exact.data.inputs, exact.data.targets
    marginal = MultivariateNormal(torch.zeros(17).double(), 0.4**2 * torch.eye(17).double() + 0.9**2 * x @ x.T)
    assert exact.log_evidence == pytest.approx(float(marginal.log_prob(y)), rel=1e-12)


def test_the_evidence_is_the_integral_of_the_joint():
    exact = conjugate(n=6, d=1, correlation=0.0)
    data = exact.data
    grid = torch.linspace(-8, 8, 20_001, dtype=torch.float64)
    residuals = data.targets[:, None] - data.inputs * grid
    log_joint = (
        (-0.5 * (residuals / SIGMA).square() - math.log(SIGMA * math.sqrt(2 * math.pi))).sum(0)
        - 0.5 * (grid / S).square()
        - math.log(S * math.sqrt(2 * math.pi))
    )
    assert exact.log_evidence == pytest.approx(math.log(torch.trapezoid(log_joint.exp(), grid)), rel=1e-10)


def test_the_predictive_is_that_of_conditioning_the_joint_of_old_and_new_targets():
    exact = conjugate()
    x, y = exact.data.inputs, exact.data.targets
    new = Noise.seed(5).normal(torch.empty(7, 3, dtype=torch.float64))
    prior = S**2 * torch.cat([x, new]) @ torch.cat([x, new]).T
    old = prior[:40, :40] + SIGMA**2 * torch.eye(40, dtype=torch.float64)
    cross = prior[40:, :40]
    mean, variance = exact.predictive(new)
    torch.testing.assert_close(mean, cross @ torch.linalg.solve(old, y))
    conditional = prior[40:, 40:] - cross @ torch.linalg.solve(old, cross.T)
    torch.testing.assert_close(variance, conditional.diagonal() + SIGMA**2)


def test_a_tempered_posterior_keeps_its_mean_and_scales_its_covariance():
    one, cold = conjugate(), conjugate(temperature=0.2)
    torch.testing.assert_close(cold.mean, one.mean)
    torch.testing.assert_close(cold.covariance, 0.2 * one.covariance)
    assert cold.log_evidence == one.log_evidence


def test_a_tempered_likelihood_is_the_likelihood_of_another_noise():
    exact, x, y = (lambda e: (e, e.data.inputs, e.data.targets))(conjugate(temperature=4.0, temper="likelihood"))
    precision = x.T @ x / (2 * SIGMA) ** 2 + torch.eye(3, dtype=torch.float64) / S**2
    torch.testing.assert_close(exact.precision, precision)
    torch.testing.assert_close(exact.mean, torch.linalg.solve(precision, x.T @ y / (2 * SIGMA) ** 2))


def test_inputs_are_correlated_as_asked_and_orthogonal_without():
    many = conjugate(n=20_000, correlation=0.8)
    correlations = torch.corrcoef(many.data.inputs.T)
    error = (1 - 0.8**2) / math.sqrt(20_000)
    off = correlations[~torch.eye(3, dtype=torch.bool)]
    assert float((off - 0.8).abs().max()) / error < 4.5
    gram = (lambda x: x.T @ x)(conjugate(correlation=0.0).data.inputs)
    torch.testing.assert_close(gram, torch.diag(torch.tensor([4.0, 9.0, 16.0], dtype=torch.float64)))


def test_the_seed_makes_the_problem():
    assert torch.equal(conjugate(seed=3).data.targets, conjugate(seed=3).data.targets)
    assert not torch.equal(conjugate(seed=3).data.inputs, conjugate(seed=4).data.inputs)
    residual = (lambda e: e.data.targets - e.data.inputs @ e.mean)(conjugate(n=5000, noise=0.5))
    assert float(residual.std()) == pytest.approx(0.5, rel=4.5 / math.sqrt(2 * 5000))
