"""The noisy quadratic is what it says: its gradient, and the distribution of its noise, within 4.5 standard errors."""

import torch

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.problem import Batch
from basinet.testing.noisy import noisy

KNOWN = noisy()


def gradients(weight: torch.Tensor, count: int) -> torch.Tensor:
    data = KNOWN.data
    batch = Batch(data.inputs, data.targets, torch.arange(data.n), torch.tensor(0), data.n)
    buffers = KNOWN.problem.init(Noise.seed(0)).buffers

    def loss(params, key):
        return KNOWN.problem.potential(params, buffers, batch, Noise(key), "train")[0] / KNOWN.problem.scale(data.n)

    one = torch.func.grad(loss)
    return lift(lambda key: one({"weight": weight}, key)["weight"])(Noise.seed(2).spread(count).key)


def test_the_gradient_is_linear_with_noise_of_the_stated_covariance():
    count = 20_000
    away = torch.tensor([0.5, -1.0, 2.0], dtype=torch.float64)
    drawn = gradients(KNOWN.mean + away, count)
    variances = KNOWN.covariance.diagonal()
    z = (drawn.mean(0) - KNOWN.curvature * away) / (variances / count).sqrt()
    assert float(z.abs().max()) < 4.5
    error = ((KNOWN.covariance.square() + variances[:, None] * variances) / count).sqrt()
    assert float(((torch.cov(drawn.T) - KNOWN.covariance) / error).abs().max()) < 4.5
    assert float(KNOWN.covariance[0, 2].abs()) > 0.1  # covariances are there to be seen


def test_the_stationary_covariance_reproduces_itself():
    rate = 0.4
    shrink = KNOWN.correlation(rate, 1)
    stationary = KNOWN.stationary(rate)
    torch.testing.assert_close(shrink**2 * stationary + rate**2 * KNOWN.covariance, stationary)
