"""Input gradients of posteriors: of each member, against a closed form and across kinds of families."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.noise import Noise

ENGINE = bn.Engine(device="cpu", progress=False)


def test_of_linear_networks_they_are_the_weights() -> None:
    problem = bn.Problem(lambda: nn.Linear(4, 3), bn.likelihoods.Categorical())
    x = Noise.seed(0).normal(torch.empty(20, 4))
    data = bn.Data(x, x[:, :3].argmax(1))
    posterior = bn.fit(bn.MAP(epochs=3), problem, data, members=3, engine=ENGINE)
    gradients = bn.input_gradients(posterior, data, batch_size=7)
    weight = posterior.sample(1)["weight"][:, 0]  # (3, classes, 4)
    torch.testing.assert_close(gradients, weight[:, data.targets].unsqueeze(2))
    stream = bn.Data.stream([(x[:9], data.targets[:9]), (x[9:], data.targets[9:])], n=20)
    torch.testing.assert_close(bn.input_gradients(posterior, stream), gradients)
    with pytest.raises(ValueError, match="batch_size"):
        bn.input_gradients(posterior, data, batch_size=0)


def test_several_outputs_have_an_axis_of_their_own_and_networks_may_differ() -> None:
    x = Noise.seed(0).normal(torch.empty(20, 4))
    data = bn.Data(x, x[:, :2])
    likelihood = bn.likelihoods.Gaussian(noise=0.5)
    narrow, wide = (bn.Problem(lambda h=h: bn.networks.MLP(4, 2, hidden=(h,)), likelihood) for h in (5, 9))
    recipe = bn.MAP(epochs=3)
    posterior = bn.mix([bn.fit(recipe, p, data, members=2, engine=ENGINE) for p in (narrow, wide)])
    gradients = bn.input_gradients(posterior, data)
    assert gradients.shape == (4, 20, 2, 4) and not gradients.requires_grad
    assert bn.metrics.gradient_cosine(gradients).shape == (4, 4)


def test_norm_statistics_are_those_with_which_members_predict() -> None:
    def net() -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))

    x = Noise.seed(0).normal(torch.empty(40, 4))
    data = bn.Data(x, x[:, :3].argmax(1))
    posterior = bn.fit(bn.EMA(epochs=3), bn.Problem(net, bn.likelihoods.Categorical()), data, engine=ENGINE)
    step = 1e-2 * torch.ones(4)  # the network is linear in its inputs, so any step is small enough
    ahead, here = (posterior.predict(inputs).outputs[0, 0] for inputs in (x + step, x))
    rise = (ahead - here)[torch.arange(40), data.targets]
    torch.testing.assert_close(bn.input_gradients(posterior, data)[0, :, 0] @ step, rise, rtol=1e-3, atol=1e-5)
