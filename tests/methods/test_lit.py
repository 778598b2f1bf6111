"""LIT: the penalty's derivative, one member, and what it refuses."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import leaves, stack
from basinet.engine import Descent, Lift, Step
from basinet.methods.lit import LIT, slope
from basinet.methods.map import MAP
from basinet.optim import Adam
from basinet.problem import Batch
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", dtype=torch.float64, progress=False)
NOISE = Noise.seed(5)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def classes(n: int = 12) -> bn.Data:
    """Of three classes, where the last has no examples."""
    return bn.Data(NOISE.split("x").normal(torch.empty(n, 4, dtype=torch.float64)), torch.arange(n) % 2)


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())


def start(members: int) -> tuple[Descent, Noise]:
    keys = NOISE.split("members").spread(members)
    points = stack([PROBLEM.init(Noise(key)) for key in keys.key])
    return Descent(points.params, points.buffers, ()), keys


def batch_of(data: bn.Data) -> Batch:
    return Batch(data.inputs, data.targets, torch.arange(data.n), torch.tensor(0), data.n, data.weights)


def whole_loss(params: dict[str, Tensor], batch: Batch, strength: float, members: int) -> float:
    """The loss of all members by its formula, with the gradient of the log probability written out."""
    total, units = 0.0, []
    for i in range(members):
        mine = {n: x[i] for n, x in params.items()}
        total += float(PROBLEM.potential(mine, {}, batch)[0]) / batch.total
        h = torch.tanh(batch.inputs @ mine["0.weight"].T + mine["0.bias"])
        p = (h @ mine["2.weight"].T + mine["2.bias"]).softmax(-1)
        error = torch.nn.functional.one_hot(batch.targets, 3) - p
        g = (error @ mine["2.weight"] * (1 - h**2)) @ mine["0.weight"]
        units.append(g / g.norm(dim=-1, keepdim=True))
    pairs = [(units[i] * units[j]).sum(-1).square() for i in range(members) for j in range(i)]
    return total + strength * float(torch.stack(pairs).mean(-1).sum())


def test_finite_differences_of_the_whole_gradient() -> None:
    batch, (state, keys) = batch_of(classes()), start(4)
    grads = LIT(strength=0.7).gradient(state, Step(batch, PROBLEM, keys, lift=Lift()))[0]
    step = {n: 1e-5 * NOISE.split(n).normal(x) for n, x in state.params.items()}
    ahead, behind = ({n: x + sign * step[n] for n, x in state.params.items()} for sign in (1, -1))
    expected = (whole_loss(ahead, batch, 0.7, 4) - whole_loss(behind, batch, 0.7, 4)) / 2
    derivative = sum(float((grads[n] * step[n]).sum()) for n in grads)
    assert derivative == pytest.approx(expected, rel=1e-6)


def test_examples_of_weight_zero_do_not_count() -> None:
    s = NOISE.normal(torch.empty(3, 1, 6, 5, dtype=torch.float64))
    weights = torch.tensor([[1.0, 1, 1, 1, 0, 0]]).double()
    slopes = slope(s, weights)
    torch.testing.assert_close(slopes[:, :, :4], slope(s[:, :, :4], weights[:, :4]), rtol=0, atol=1e-14)
    assert not slopes[:, :, 4:].any() and not slope(s, 0 * weights).any()
    assert not slope(s[:1], weights).any()  # nobody is compared with itself
    data = classes()
    masked = bn.Data(data.inputs, data.targets, weights=(torch.arange(12) < 9).double())
    state, keys = start(3)
    grads = LIT().gradient(state, Step(batch_of(masked), PROBLEM, keys, lift=Lift()))[0]
    assert all(bool(x.isfinite().all()) for x in leaves(grads))


def test_one_member_is_MAP() -> None:
    options: dict[str, Any] = {"epochs": 3, "batch_size": 5, "optimizer": Adam(lr=0.01)}
    mine = bn.fit(LIT(**options, strength=10.0), PROBLEM, classes(20), members=1, engine=ENGINE)
    plain = bn.fit(MAP(**options), PROBLEM, classes(20), engine=ENGINE)
    for a, b in zip(leaves(mine.parts[0].family), leaves(plain.parts[0].family)):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_gradients_of_members_come_to_stand_at_right_angles() -> None:
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(50,)), bn.likelihoods.Categorical())
    data, cosines = splits.train.take(slice(0, 300)), []
    for recipe in (MAP(epochs=40), LIT(epochs=40)):
        posterior = bn.fit(recipe, problem, data, members=4, engine=bn.Engine(device="cpu", progress=False))
        gradients = bn.input_gradients(posterior, splits.test)
        cosines.append(float(bn.metrics.mean_of_pairs(bn.metrics.gradient_cosine(gradients))))
        assert bn.score(posterior, splits.test)["accuracy"] > 0.8
    assert cosines[1] < 0.7 * cosines[0]


def test_what_it_refuses() -> None:
    for bad in (-1.0, math.inf):
        with pytest.raises(ValueError, match="strength"):
            LIT(strength=bad)
    words = bn.Data(torch.zeros(20, 3, dtype=torch.long), torch.arange(20) % 2)
    problem = bn.Problem(
        lambda: nn.Sequential(nn.Embedding(5, 2), nn.Flatten(), nn.Linear(6, 2)), bn.likelihoods.Categorical()
    )
    with pytest.raises(ValueError, match=r"got int64.*embedding\(ids\)"):
        bn.fit(LIT(), problem, words, members=2, engine=ENGINE)


@pytest.mark.slow
def test_the_conformance_suite() -> None:
    assert len(check_method(LIT(epochs=4, batch_size=16))) >= 11
