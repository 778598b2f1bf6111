"""Weights of validation data multiply their log likelihood, in everything that is tuned on them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.calibrate.weigh import stacked
from basinet.data import weighed
from basinet.trial import member_nll

ENGINE = bn.Engine(device="cpu", progress=False)
KEY = bn.Noise.seed(2)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())
X = KEY.split("x").normal(torch.empty(90, 4, dtype=torch.float64))
Y = (X[:, :3] + 0.7 * KEY.split("e").normal(X[:, :3])).argmax(1)
TRAIN = bn.Data(X[:50], Y[:50])
COUNTS = torch.tensor([0, 1, 2, 5]).repeat(10)
WEIGHED = bn.Data(X[50:], Y[50:], COUNTS.double())
OFTEN = WEIGHED.take(torch.arange(40).repeat_interleave(COUNTS))
OFTEN = bn.Data(OFTEN.inputs, OFTEN.targets)  # the same examples, each as often as it counts
RATIO = OFTEN.n / int((COUNTS > 0).sum())  # means are over examples and not over weights, which chooses no other
PLAIN = bn.Data(X[50:], Y[50:])
MAPS = bn.fit(bn.MAP(epochs=150, batch_size=None), PROBLEM, TRAIN, members=3, engine=ENGINE)


def tempered(of: str):
    return lambda val: bn.temper(MAPS, val, of=of).temperature.values


TUNED = {
    "temper members": (tempered("members"), 1e-5),
    "temper average": (tempered("average"), 1e-5),
    "temper classes": (tempered("classes"), 1e-6),
}


@pytest.mark.parametrize("name", TUNED)
def test_an_example_of_weight_two_is_two_examples(name):
    tune, tolerance = TUNED[name]
    weighted, often, plain = tune(WEIGHED), tune(OFTEN), tune(PLAIN)
    torch.testing.assert_close(weighted, often, rtol=tolerance, atol=tolerance)
    assert float((weighted - plain).abs().max()) > 3 * tolerance


@pytest.mark.parametrize(
    ("recipe", "along", "nll"),
    [(bn.PEP(draws=4), "sigma", "ensemble"), (bn.Laplace(via="probit"), "tried_factor", "tried_nll")],
    ids=["PEP", "Laplace"],
)
def test_scores_of_candidates_count_weights(recipe, along, nll):
    tried = []
    for val in (WEIGHED, OFTEN, PLAIN):
        curves = bn.fit(recipe, PROBLEM, TRAIN, val=val, start=MAPS[0], engine=ENGINE).info["curves"]
        tried.append(dict(zip(curves[along][0], curves[nll][0])))
    common = [x for x in tried[0] if all(x in others for others in tried)]
    assert len(common) >= 5
    for x in common:
        assert tried[0][x] == pytest.approx(RATIO * tried[1][x], rel=1e-9)
        assert tried[0][x] != pytest.approx(tried[2][x], rel=1e-3)


def test_stacking_counts_examples_as_often_as_their_weight_says():
    logs = 2 * KEY.split("logs").normal(torch.empty(3, 40, dtype=torch.float64))
    often = stacked(logs.repeat_interleave(COUNTS, 1))
    torch.testing.assert_close(stacked(logs[:, COUNTS > 0], COUNTS[COUNTS > 0].double()), often, rtol=0, atol=1e-12)
    assert float((stacked(logs) - often).abs().max()) > 0.01
    torch.testing.assert_close(bn.weigh(MAPS, WEIGHED).weights, bn.weigh(MAPS, OFTEN).weights, rtol=0, atol=1e-9)


def test_early_stopping_and_trials_count_alike():
    [curve], [often] = (
        bn.fit(bn.MAP(epochs=3), PROBLEM, TRAIN, val=val, engine=ENGINE).info["curves"]["val_nll"]
        for val in (WEIGHED, OFTEN)
    )
    assert curve == pytest.approx([RATIO * x for x in often], rel=1e-6)
    assert member_nll(MAPS, WEIGHED) == pytest.approx([RATIO * x for x in member_nll(MAPS, OFTEN)], rel=1e-9)


def test_weights_of_elements_are_exponents_within_an_example_and_its_largest_counts_it():
    data = bn.Data(torch.zeros(3, 2), torch.zeros(3, 2), torch.tensor([[0.0, 0.0], [2.0, 1.0], [3.0, 0.0]]))
    exponents, weights = weighed(data)
    assert exponents.tolist() == [[0.0, 0.0], [1.0, 0.5], [1.0, 0.0]] and weights.tolist() == [0.0, 2.0, 3.0]
    assert weighed(bn.Data(torch.zeros(3, 2), torch.zeros(3, 2), torch.ones(3))) == (None, None)
    likelihood = bn.likelihoods.Bernoulli()
    problem = bn.Problem(lambda: nn.Linear(4, 2).double(), likelihood)
    x, y = X[:20], (X[:20, :2] > 0).double()
    maps = bn.fit(bn.MAP(epochs=5), problem, bn.Data(x, y), members=2, engine=ENGINE)
    w = KEY.split("w").uniform(y)
    outputs = maps.predict(x).outputs[:, 0]  # (M, B, 2)
    expected = [-float((w * likelihood.log_density(one, y, {})).sum()) / 20 for one in outputs]
    assert member_nll(maps, bn.Data(x, y, w)) == pytest.approx(expected, rel=1e-9)
