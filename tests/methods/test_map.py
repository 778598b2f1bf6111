"""MAP: the mode of the posterior, as torch would find it with the weight decay that the prior stands for."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import basinet as bn
from basinet.engine import Step
from basinet.methods.map import MAP
from basinet.optim import SGD
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", strategy="loop", progress=False)
N, SCALE = 20, 0.3


@dataclass(frozen=True, kw_only=True)
class Watched(MAP):
    """MAP that tells which examples it sees."""

    def gradient(self, state: Any, step: Step) -> Any:
        SEEN.append(step.batch.index)
        return MAP.gradient(self, state, step)


SEEN: list[Tensor] = []


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def classes() -> bn.Data:
    key = bn.Noise.seed(3)
    inputs = key.split("x").normal(torch.empty(N, 4, dtype=torch.float64))
    return bn.Data(inputs, key.split("y").integers(N, 3))


@pytest.mark.slow
def test_map_conforms_and_finds_the_mode_of_a_known_posterior():
    checks = check_method(MAP(epochs=4, batch_size=16))
    assert any("mode of the conjugate posterior" in c.name for c in checks)


@pytest.mark.parametrize("temperature", [1.0, 0.2])
@pytest.mark.parametrize("batch_size", [None, 6])
def test_a_normal_prior_is_weight_decay_on_the_mean_loss(batch_size, temperature):
    module, data = net(), classes()
    prior = bn.priors.Normal(scale=SCALE)
    problem = bn.Problem(net, bn.likelihoods.Categorical(), prior, temperature)  # the mode is the same at any
    recipe = Watched(epochs=12, batch_size=batch_size, optimizer=SGD(lr=0.2, momentum=0.9))
    SEEN.clear()
    mean = bn.fit(recipe, problem, data, start=bn.Posterior.of(module, problem), engine=ENGINE).mean()
    steps = SEEN[-(12 if batch_size is None else math.ceil(12 * N / 6)) :]  # the engine tries one or two before

    theirs = copy.deepcopy(module)
    sgd = torch.optim.SGD(theirs.parameters(), lr=0.2, momentum=0.9, weight_decay=1 / (SCALE**2 * N))
    for index in steps:
        sgd.zero_grad()
        F.cross_entropy(theirs(data.inputs[index]), data.targets[index]).backward()
        sgd.step()
    for name, x in theirs.named_parameters():
        torch.testing.assert_close(mean[name], x.detach(), rtol=0, atol=1e-10)
        assert (x - module.get_parameter(name)).abs().max() > 0.01


def test_the_loss_is_the_potential_per_example():
    data, problem = classes(), bn.Problem(net, bn.likelihoods.Categorical(), bn.priors.Normal(scale=SCALE))
    start = bn.Posterior.of(module := net(), problem)
    posterior = bn.fit(MAP(epochs=1, batch_size=None), problem, data, start=start, engine=ENGINE)
    with torch.no_grad():
        nll = F.cross_entropy(module(data.inputs), data.targets)
        energy = sum(x.square().sum() for x in module.parameters()) / (2 * SCALE**2)
    assert posterior.info["curves"]["loss"] == [[pytest.approx(float(nll + energy / N), rel=1e-6)]]


def test_five_members_on_digits_beat_the_mean_of_them():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10), bn.likelihoods.Categorical())
    posterior = bn.fit(
        MAP(epochs=20), problem, splits.train, val=splits.val, members=5, engine=bn.Engine(progress=False)
    )
    predictive = posterior.predict(splits.test.inputs)
    each = [-float(predictive[k].log_prob(splits.test.targets).mean()) for k in range(5)]
    together = -float(predictive.log_prob(splits.test.targets).mean())
    assert together < 0.99 * sum(each) / 5 < math.log(10) / 10
    assert float((predictive.probs.argmax(-1) == splits.test.targets).double().mean()) > 0.93
    for curve in posterior.info["curves"]["val_nll"]:
        assert curve[-1] < curve[0] / 2
