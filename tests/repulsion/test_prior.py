"""The prior beside the graph: what automatic gradients of its energy give, whether it needs a graph or not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import stack, take
from basinet.engine import Lift, Step
from basinet.problem import Batch
from basinet.repulsion.prior import with_prior

M, N = 3, 20
CENTRE = {"weight": torch.ones(2, 4, dtype=torch.float64)}
PRIORS = [bn.priors.Normal(scale="he"), bn.priors.Normal(scale=0.4, centre=CENTRE), bn.priors.Laplace(scale=0.7)]


@pytest.mark.parametrize("prior", PRIORS, ids=["normal", "centred", "laplace"])
@pytest.mark.parametrize("temper", ["posterior", "likelihood"])
@pytest.mark.parametrize("share", [1.0, torch.tensor(0.3).double(), torch.tensor([0.5, -1.0, 2.0]).double()])
def test_it_is_what_the_potential_has_more_than_that_of_the_data(prior, temper, share):
    likelihood = bn.likelihoods.Gaussian(noise=0.3, learned=True)
    problem = bn.Problem(lambda: nn.Linear(4, 2).double(), likelihood, prior, temperature=0.5, temper=temper)
    params = stack([problem.init(Noise.seed(i)).params for i in range(M)])
    grads, losses = {n: torch.ones_like(x) for n, x in params.items()}, torch.arange(M).double()
    nothing = torch.zeros(0)
    step = Step(Batch(nothing, nothing, nothing, torch.tensor(0), N), problem, Noise.seed(0), lift=Lift())
    total, loss = with_prior(grads, losses, params, step, share)
    for i in range(M):
        one, factor = take(params, i), float(share if isinstance(share, float) else share.expand(M)[i])

        def energy(p):
            return problem.prior.energy(problem.split(p)[0]) / problem.prior_temperature / problem.scale(N)

        slopes, value = torch.func.grad_and_value(energy)(one)
        assert float(loss[i]) == pytest.approx(float(i + value), abs=1e-12)
        for n, x in slopes.items():
            torch.testing.assert_close(total[n][i], 1 + factor * x, rtol=0, atol=1e-12)
