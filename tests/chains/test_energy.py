"""The energy that chains move in is the potential of the problem, all of its terms included."""

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.chains.energy import energy_of
from basinet.core.noise import Noise
from basinet.engine import Step
from basinet.problem import Batch

KEY = Noise.seed(0)


def normal(name, *shape):
    return KEY.split(name).normal(torch.empty(*shape, dtype=torch.float64))


@pytest.mark.parametrize("temperature", [1.0, 0.3])
@pytest.mark.parametrize("weighted", [False, True])
def test_energy_is_the_potential(temperature, weighted):
    precise = bn.terms.Observations(normal("z", 4, 3), normal("v", 4, 1), bn.likelihoods.Gaussian(noise=0.1))
    problem = bn.Problem(
        lambda: nn.Linear(3, 1, dtype=torch.float64),
        bn.likelihoods.Gaussian(),
        bn.priors.Normal(scale=1.3),
        temperature=temperature,
        terms=[precise],
    )
    weights = torch.linspace(0, 1, 8, dtype=torch.float64) if weighted else None
    batch = Batch(normal("x", 8, 3), normal("y", 8, 1), torch.arange(8), torch.tensor(0), 8, weights)
    point = problem.init(KEY)
    step = Step(batch, problem, KEY)
    expected = problem.potential(point.params, point.buffers, batch, None, "eval")[0]
    torch.testing.assert_close(energy_of(point.params, point.buffers, step, batch, True), expected)
    without = energy_of(point.params, point.buffers, step, batch, False)
    others = problem.prior_energy(point.params) + problem.term_potential(point.params, point.buffers)
    torch.testing.assert_close(without + others, expected)
