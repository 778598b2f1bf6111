"""Members that are validated on rows of their own: curves, noise, ends, and what is refused."""

from __future__ import annotations

import pytest
import torch

import basinet as bn
from basinet.core.noise import Noise

ENGINE = bn.Engine(device="cpu", progress=False, compile=False)


def table(n: int = 120) -> bn.Data:
    x = Noise.seed(3).normal(torch.empty(n, 2))
    return bn.Data(x, x[:, :1].sin() + 0.3 * Noise.seed(4).normal(x[:, :1]))


def problem(learned: bool = False) -> bn.Problem:
    likelihood = bn.likelihoods.Gaussian(noise=0.5, learned=learned)
    return bn.Problem(lambda: bn.networks.MLP(2, 1, hidden=(8,)), likelihood, bn.priors.Normal(scale=1.0))


@pytest.mark.parametrize("strategy", ["stacked", "loop"])
def test_each_member_is_judged_on_its_rows(strategy):
    train, val = table().held_out(4, 0.25)
    engine = bn.Engine(device="cpu", progress=False, compile=False, strategy=strategy)
    posterior = bn.fit(bn.MAP(epochs=3), problem(), train, val=val, members=4, engine=engine)
    last = [curve[-1] for curve in posterior.info["curves"]["val_nll"]]
    by_hand = [bn.score(posterior[k], val.member(k))["nll"] for k in range(4)]
    assert last == pytest.approx(by_hand, rel=1e-5)
    assert max(by_hand) - min(by_hand) > 0.01  # rows differ, so that the check can fail


def test_noise_is_set_by_a_members_own_rows():
    """One that is learned: at its best, the mean squared error of those rows."""
    train, val = table().held_out(3, 0.25)
    posterior = bn.fit(bn.MAP(epochs=2), problem(learned=True), train, val=val, members=3, engine=ENGINE)
    for k in range(3):
        own = val.member(k)
        predictive = posterior[k].predict(own.inputs)
        error = (predictive.mean - own.targets).square().mean().sqrt()
        assert torch.allclose(predictive.sd, error.expand_as(predictive.sd), rtol=1e-3)


def test_a_member_is_the_same_alone_and_with_others():
    train, val = table().held_out(6, 0.25)
    recipe = bn.MAP(epochs=20, patience=2)
    together = bn.fit(recipe, problem(), train, val=val, members=3, engine=ENGINE)
    alone = bn.fit(recipe, problem(), train, val=val, members=3, only=[2], engine=ENGINE)
    inputs = table().inputs
    assert torch.allclose(together[2].predict(inputs).mean, alone.predict(inputs).mean, atol=1e-4)


def test_methods_that_start_elsewhere_compare_themselves_on_own_rows():
    """One start for all members: each judges it on its own rows."""
    train, val = table().held_out(3, 0.25)
    start = bn.fit(bn.MAP(epochs=2), problem(), train, val=val, engine=ENGINE)
    posterior = bn.fit(bn.SWA(iterates=3, every=1), problem(), train, val=val, start=start, members=3, engine=ENGINE)
    before = [curve[0] for curve in posterior.info["curves"]["start_nll"]]
    assert before == pytest.approx([bn.score(start, val.member(k))["nll"] for k in range(3)], rel=1e-4)


def test_too_few_rows_and_coupled_members_are_refused_before_training():
    _, val = table().held_out(3, 0.25)
    more = table().held_out(5, 0.25)[0]
    with pytest.raises(ValueError, match="validation data have index lists for 3 members and 5 were asked for"):
        bn.fit(bn.MAP(epochs=1), problem(), more, val=val, members=5, engine=ENGINE)
    with pytest.raises(ValueError, match="see the same batches"):
        bn.fit(bn.SVGD(epochs=1), problem(), table(), val=val, members=3, engine=ENGINE)
