"""A batch of one example, on which a norm layer has no statistics: passed over in a stream, refused elsewhere."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import ravel

ENGINE = bn.Engine(device="cpu", progress=False)
KEY = bn.Noise.seed(4)
X = KEY.normal(torch.empty(21, 3, dtype=torch.float64))
Y = X.argmax(1)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)).double()


PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())
BATCHES = [(X[i : i + 10], Y[i : i + 10]) for i in range(0, 21, 10)]  # 10, 10 and 1
STREAM = bn.Data.stream(BATCHES, n=21, name="three")


@pytest.mark.parametrize("strategy", ["loop", "stacked"])
def test_a_last_batch_of_one_is_passed_over_where_norm_layers_need_more(strategy):
    engine = bn.Engine(device="cpu", strategy=strategy, progress=False)
    recipe = bn.MAP(epochs=4)
    posterior = bn.fit(recipe, PROBLEM, STREAM, members=2, engine=engine)
    same = bn.fit(recipe, PROBLEM, bn.Data.stream(lambda: iter(BATCHES[:2]), n=21), members=2, engine=engine)
    torch.testing.assert_close(ravel(posterior.mean()), ravel(same.mean()), rtol=0, atol=0)


def test_a_stopped_run_resumes_with_the_batch_it_was_at(tmp_path):
    recipe = bn.MAP(epochs=12)
    whole = bn.fit(recipe, PROBLEM, STREAM, engine=ENGINE)

    def stop(event: bn.Event) -> None:
        if event.step >= 11:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bn.fit(recipe, PROBLEM, STREAM, engine=ENGINE, pool=tmp_path, observe=stop)
    again = bn.fit(recipe, PROBLEM, STREAM, engine=ENGINE, pool=tmp_path)
    assert torch.equal(ravel(whole.mean()), ravel(again.mean()))


def test_a_network_that_trains_on_one_example_sees_it():
    def make() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 5), nn.LayerNorm(5), nn.Linear(5, 3)).double()

    plain = bn.Problem(make, PROBLEM.likelihood)
    with_single, other = (
        bn.fit(bn.MAP(epochs=4), plain, bn.Data.stream(lambda b=b: iter(b), n=21), engine=ENGINE)
        for b in (BATCHES, BATCHES[:2])
    )
    assert not torch.equal(ravel(with_single.mean()), ravel(other.mean()))


def test_batches_of_one_are_refused_where_norm_layers_need_more():
    with pytest.raises(ValueError, match="batches of at least 2 examples, which norm layers need, got 1"):
        bn.fit(bn.MAP(epochs=1, batch_size=1), PROBLEM, bn.Data(X, Y), engine=ENGINE)
    ones = bn.Data.stream([(X[i : i + 1], Y[i : i + 1]) for i in range(21)], n=21)
    with pytest.raises(ValueError, match="batches of at least 2 examples, which norm layers need, got 1"):
        bn.fit(bn.MAP(epochs=1), PROBLEM, ones, engine=ENGINE)
