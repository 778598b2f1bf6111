"""Probit and Laplace bridge against numerical integrals, and against the Dirichlet that the bridge inverts."""

import math

import pytest
import torch
from torch import Tensor

from basinet.core.noise import Noise
from basinet.predict.closed import ClosedClassPredictive, ClosedLabelPredictive, bridge, probit
from basinet.problem.likelihoods import Bernoulli, Categorical

KEY = Noise.seed(0)


def average_sigmoid(mean: float, variance: float) -> float:
    """E[sigmoid(f)] for f ~ N(mean, variance), by the trapezoidal rule within 12 standard deviations."""
    z = torch.linspace(-12, 12, 20_001, dtype=torch.float64)
    weight = (-0.5 * z.square()).exp() / math.sqrt(2 * math.pi)
    return float(torch.trapezoid(weight * (mean + math.sqrt(variance) * z).sigmoid(), z))


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize("mean", [-3.0, -0.5, 0.0, 1.5, 6.0])
@pytest.mark.parametrize("variance", [0.0, 0.1, 1.0, 4.0, 25.0])
def test_probit_is_close_to_the_average_sigmoid(mean, variance):
    probability = float(probit(tensor(mean), tensor(variance)).sigmoid())
    assert abs(probability - average_sigmoid(mean, variance)) < 0.02


def test_probit_has_the_published_value():
    assert float(probit(tensor(1.5), tensor(4.0)).sigmoid()) == pytest.approx(0.7182, abs=5e-5)
    assert average_sigmoid(1.5, 4.0) == pytest.approx(0.7150, abs=5e-5)


def laplace_of_dirichlet(alpha: Tensor) -> tuple[Tensor, Tensor]:
    """Mode and inverse Hessian of a Dirichlet's density over logits that sum to zero: log p = sum_k alpha_k log
    softmax_k, so the gradient is alpha - A pi and the Hessian -A (diag(pi) - pi pi')."""
    pi, total = alpha / alpha.sum(), alpha.sum()
    return alpha.log() - alpha.log().mean(), torch.linalg.pinv(total * (torch.diag(pi) - pi[:, None] * pi))


@pytest.mark.parametrize("alpha", [(2.0, 5.0), (0.3, 1.0, 7.0), (1.0, 1.0, 1.0, 1.0), (20.0, 3.0, 0.5, 1.0, 9.0)])
def test_the_bridge_gives_back_the_dirichlet(alpha):
    mean, covariance = laplace_of_dirichlet(tensor(*alpha))
    expected = tensor(*alpha) / sum(alpha)
    torch.testing.assert_close(bridge(mean, covariance).exp(), expected)
    common = torch.full_like(covariance, 3.0)  # what is added to all logits at once does not matter
    torch.testing.assert_close(bridge(mean + 2.0, covariance + common).exp(), expected)


def test_the_bridge_conditions_on_the_sum_of_the_logits():
    root = KEY.split("root").normal(torch.empty(4, 4, dtype=torch.float64))
    mean, covariance = KEY.split("mean").normal(tensor(0, 0, 0, 0)), root @ root.T
    ones = torch.ones(4, 1, dtype=torch.float64)
    gain = covariance @ ones @ torch.linalg.inv(ones.T @ covariance @ ones)
    m = mean - (gain @ ones.T @ mean.reshape(-1, 1)).reshape(-1)
    v = (covariance - gain @ ones.T @ covariance).diagonal()
    alpha = (1 - 2 / 4 + m.exp() / 16 * (-m).exp().sum()) / v
    torch.testing.assert_close(bridge(mean, covariance).exp(), alpha / alpha.sum())


@pytest.mark.parametrize("mean", [0.0, 0.7, -2.0])
@pytest.mark.parametrize("variance", [0.1, 0.5, 1.0])
def test_the_bridge_is_near_the_average_of_two_classes(mean, variance):
    """The logit difference has this mean and variance; the bridge's mean leaves the variance out for two classes."""
    log_probs = bridge(tensor(mean, 0.0), torch.eye(2, dtype=torch.float64) * variance / 2)
    assert abs(float(log_probs[0].exp()) - average_sigmoid(mean, variance)) < 0.06


def test_large_logits_and_no_variance_stay_finite():
    mean = tensor(200.0, -300.0, 0.0)
    for covariance in (torch.eye(3, dtype=torch.float64), torch.zeros(3, 3, dtype=torch.float64)):
        log_probs = bridge(mean, covariance)
        assert bool(log_probs.isfinite().all()) and float(log_probs.exp().sum()) == pytest.approx(1.0)
    torch.testing.assert_close(
        bridge(tensor(1.0, 2.0, 0.5), torch.zeros(3, 3).double()), tensor(1.0, 2.0, 0.5).log_softmax(0)
    )


@pytest.mark.parametrize(
    ("kind", "likelihood", "shape"),
    [(ClosedClassPredictive, Categorical(), (3, 1, 4, 5)), (ClosedLabelPredictive, Bernoulli(), (3, 1, 4, 2))],
)
def test_what_needs_samples_is_refused_and_the_rest_works(kind, likelihood, shape):
    outputs = KEY.split("outputs").normal(torch.empty(shape, dtype=torch.float64))
    outputs = outputs.log_softmax(-1) if kind is ClosedClassPredictive else outputs
    predictive = kind(outputs, likelihood)
    for name in ("aleatoric", "within", "epistemic"):
        with pytest.raises(ValueError, match=f"no samples, so there is no {name} part: use via='linear'"):
            getattr(predictive, name)
    member = outputs.exp()[:, 0] if kind is ClosedClassPredictive else outputs.sigmoid()[:, 0]
    torch.testing.assert_close(predictive.probs, member.mean(0))
    disagreement = predictive.entropy_of(member.mean(0)) - predictive.entropy_of(member).mean(0)
    torch.testing.assert_close(predictive.between, disagreement)
    assert float(predictive[0].between.abs().max()) < 1e-12 and len(predictive[1:]) == 2
    assert predictive.sample(7).shape[:2] == (7, 4)
