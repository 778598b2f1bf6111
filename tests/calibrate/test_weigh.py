"""Stacking: the weights of a known mixture are recovered, within the stated tolerance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.calibrate.weigh import stacked
from basinet.core.noise import Noise

KEY = Noise.seed(31)
PROBLEM = bn.Problem(lambda: nn.Linear(1, 1).double(), bn.likelihoods.Gaussian(noise=1.0))


def line(shift: float) -> nn.Module:
    """A network that returns x + shift."""
    module = nn.Linear(1, 1).double()
    with torch.no_grad():
        module.weight.fill_(1.0)
        module.bias.fill_(shift)
    return module


def mixture(shifts=(0.0, 2.0, -3.0)) -> bn.Posterior:
    return bn.mix([bn.Posterior.of(line(s), PROBLEM) for s in shifts])


def drawn(n: int, weights=(0.6, 0.3, 0.1), shifts=(0.0, 2.0, -3.0)) -> bn.Data:
    """Targets from the mixture of the members with these weights."""
    x = KEY.split("x").normal(torch.empty(n, 1, dtype=torch.float64))
    u = KEY.split("which").uniform(torch.empty(n, dtype=torch.float64))
    which = torch.searchsorted(torch.tensor(weights).double().cumsum(0), u).clamp(max=len(weights) - 1)
    noise = KEY.split("noise").normal(x)
    return bn.Data(x, x + torch.tensor(shifts).double()[which, None] + noise)


def test_known_weights_are_recovered():
    data = drawn(4000)
    weighed = bn.weigh(mixture(), data)
    logs = mixture().predict(data.inputs).log_joint(data.targets)[:, 0]
    p = logs.exp()
    truth = torch.tensor([0.6, 0.3, 0.1]).double()
    ratio = (p / (truth @ p))[:2] - (p / (truth @ p))[2]  # the score of the first two weights, the third being the rest
    error = torch.linalg.inv(ratio @ ratio.T).diagonal().sqrt()
    z = (weighed.weights[:2] - truth[:2]) / error
    assert float(weighed.weights.sum()) == pytest.approx(1, abs=1e-12) and float(z.abs().max()) < 4
    assert float(error.max()) < 0.03
    assert bn.score(weighed, data)["nll"] < bn.score(mixture(), data)["nll"]


def test_no_weights_are_better_by_more_than_the_gap():
    data = drawn(300)
    logs = mixture((0.0, 1.0, 2.0, -3.0)).predict(data.inputs).log_joint(data.targets)[:, 0]
    w = stacked(logs)
    best = torch.logsumexp(logs + w.log()[:, None], 0).mean()
    for k in range(300):
        other = KEY.split("other").split(k).uniform(torch.empty(4, dtype=torch.float64)) ** 4
        for share in (1.0, 0.05):
            tried = (1 - share) * w + share * other / other.sum()
            assert torch.logsumexp(logs + tried.log()[:, None], 0).mean() <= best + 1e-6
    gradient = (logs - torch.logsumexp(logs + w.log()[:, None], 0)).exp().mean(1)
    assert float(gradient.max()) <= 1 + 1e-6  # the certificate, from the optimality of a concave problem


def test_the_log_likelihood_of_all_samples_of_a_member_counts():
    val = drawn(200)
    noisy = bn.fit(
        bn.PEP(low=0.3, high=3.0), PROBLEM, val=val, start=mixture(), engine=bn.Engine(device="cpu", progress=False)
    )
    predictive = noisy.predict(val.inputs)
    assert predictive.samples > 1
    logs = torch.stack([predictive[k].log_prob(val.targets) for k in range(3)])
    assert torch.allclose(bn.weigh(noisy, val).weights, stacked(logs))


def test_one_member_and_equal_members():
    data = drawn(50)
    assert bn.weigh(mixture((1.0,)), data).weights.tolist() == [1.0]
    assert torch.allclose(bn.weigh(mixture((1.0, 1.0)), data).weights, torch.tensor([0.5, 0.5]).double())


def test_weights_are_saved_and_replaced_and_examples_without_weight_left_out(tmp_path):
    data = drawn(200)
    weighed = bn.weigh(mixture(), data)
    weighed.save(tmp_path / "weighed")
    loaded = bn.load(tmp_path / "weighed", lambda: nn.Linear(1, 1).double())
    assert torch.equal(loaded.weights, weighed.weights)
    assert torch.equal(loaded.predict(data.inputs).mean, weighed.predict(data.inputs).mean)
    assert torch.equal(bn.weigh(bn.mix([mixture()], weights=[2.0]), data).weights, weighed.weights)
    masked = bn.Data(data.inputs, data.targets, torch.cat([torch.ones(120), torch.zeros(80)]).double())
    assert torch.allclose(bn.weigh(mixture(), masked).weights, bn.weigh(mixture(), data.take(slice(0, 120))).weights)
    batches = [(data.inputs[i : i + 70], data.targets[i : i + 70]) for i in (0, 70, 140)]
    assert torch.allclose(bn.weigh(mixture(), bn.Data.stream(batches, n=200)).weights, weighed.weights)


def test_temperatures_of_members_stay_and_that_of_an_average_is_refused():
    problem = bn.Problem(lambda: nn.Linear(1, 2).double(), bn.likelihoods.Categorical())
    members = bn.mix([bn.Posterior.of(nn.Linear(1, 2).double(), problem) for _ in range(2)])
    x = KEY.split("x").normal(torch.empty(200, 1, dtype=torch.float64))
    data = bn.Data(x, (x[:, 0] + KEY.split("y").normal(x[:, 0]) > 0).long())
    for k, slope in enumerate((2.0, 1.0)):
        members.parts[0 if len(members.parts) == 1 else k].family.params["weight"].copy_(torch.tensor([[0.0], [slope]]))
    tempered = bn.temper(members, data)
    weighed = bn.weigh(tempered, data)
    assert weighed.temperature is tempered.temperature and weighed.weights is not None
    for of in ("average", "classes"):
        with pytest.raises(ValueError, match=r"weigh first, then bn.temper"):
            bn.weigh(bn.temper(members, data, of), data)


def test_bad_input_is_refused():
    with pytest.raises(TypeError, match="expected a posterior, got Linear"):
        bn.weigh(line(0.0), drawn(10))
    with pytest.raises(TypeError, match="expected val as bn"):
        bn.weigh(mixture(), None)
    with pytest.raises(ValueError, match="1 validation examples have no density under any member"):
        stacked(torch.tensor([[0.0, -math.inf], [0.0, -math.inf]]))
