"""Methods around other posteriors: snapshots, random networks that are added, priors that were learned."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import stack, take
from basinet.engine import Member
from basinet.families import Delta
from basinet.methods.random_prior import PREFIX
from basinet.posterior import Part

ENGINE = bn.Engine(device="cpu", progress=False)
KEY = bn.Noise.seed(8)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 3)).double()


INPUTS = KEY.split("x").normal(torch.empty(60, 3, dtype=torch.float64))
DATA = bn.Data(INPUTS, INPUTS.argmax(1))
PROBLEM = bn.Problem(net, bn.likelihoods.Categorical())
AROUND = (bn.Laplace(), bn.PEP(draws=2), bn.SWA(iterates=2), bn.SWAG(iterates=2, rank=2))


@pytest.mark.parametrize("recipe", AROUND, ids=lambda r: type(r).__name__)
def test_snapshots_are_not_a_start_but_each_of_them_is(recipe):
    posterior = bn.fit(bn.Snapshot(epochs=40, cycles=3), PROBLEM, DATA, members=2, engine=ENGINE)
    with pytest.raises(ValueError, match=r"members of 3 points each, whose average is not a mode.*apart\(\)"):
        bn.fit(recipe, PROBLEM, DATA, val=DATA, start=posterior, engine=ENGINE)
    apart = posterior.apart()
    assert apart.members == tuple(Member(0, k) for k in range(6))
    torch.testing.assert_close(apart.predict(INPUTS).probs, posterior.predict(INPUTS).probs)
    around = bn.fit(recipe, PROBLEM, DATA, val=DATA, start=apart, engine=ENGINE)
    assert len(around) == 6
    weighted = bn.mix([posterior, bn.fit(bn.MAP(epochs=2), PROBLEM, DATA, engine=ENGINE)], weights=[0.7, 0.3])
    torch.testing.assert_close(weighted.apart().predict(INPUTS).probs, weighted.predict(INPUTS).probs)


@pytest.mark.parametrize("recipe", AROUND, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize("as_base", [False, True])
def test_a_random_network_that_is_added_travels_along(recipe, as_base, tmp_path):
    random = bn.RandomPrior(epochs=30, beta=2.0)
    start = bn.fit(random, PROBLEM, DATA, members=2, engine=ENGINE)
    if as_base:
        posterior = bn.fit(
            type(recipe)(**{**vars(recipe), "base": random}), PROBLEM, DATA, val=DATA, members=2, engine=ENGINE
        )
    else:
        posterior = bn.fit(recipe, PROBLEM, DATA, val=DATA, start=start, engine=ENGINE)
    assert posterior.recipe.base == random
    for k in range(2):
        own, before = (take(p.parts[0].family, k).mean().buffers for p in (posterior, start))
        for name in before:
            if name.startswith(PREFIX):
                assert torch.equal(own[name], before[name])
    centre = posterior.points()[0]
    alone = bn.Posterior((Part(PROBLEM, _delta(centre), (Member(0, 0),), random),))
    distance = (alone.predict(INPUTS).outputs - start[0].predict(INPUTS).outputs).abs().max()
    assert float(distance) < (1e-12 if isinstance(recipe, (bn.Laplace, bn.PEP)) else 5.0)
    posterior.save(tmp_path / "saved")
    loaded = bn.load(tmp_path / "saved", net)
    assert torch.equal(loaded.predict(INPUTS).outputs, posterior.predict(INPUTS).outputs)


def _delta(point):
    return stack([Delta(point.params, point.buffers)])


@pytest.mark.parametrize("learned", ["marglik", "layers"])
def test_laplace_keeps_the_prior_that_its_mode_learned(learned):
    start = bn.fit(
        bn.MAP(epochs=120, batch_size=None, prior_precision=learned, every=1), PROBLEM, DATA, members=2, engine=ENGINE
    )
    precisions = start.info["curves"]["prior_precision"]
    recipe = bn.Laplace(where=None, structure="full", prior_precision="prior")
    posterior = bn.fit(recipe, PROBLEM, DATA, start=start, engine=ENGINE)
    assert posterior.recipe == recipe and len(posterior.parts) == 1
    names = list(PROBLEM.network.params)
    for k in range(2):
        scale = {n: p**-0.5 for n, p in zip(names, precisions[k])}
        problem = bn.Problem(net, PROBLEM.likelihood, bn.priors.Normal(scale=scale))
        plain = bn.Posterior((Part(problem, _delta(start.points()[k]), (Member(0, 0),)),))
        expected = bn.fit(recipe, problem, DATA, start=plain, engine=ENGINE)
        one, other = (take(p.parts[0].family, i).factor for p, i in ((posterior, k), (expected, 0)))
        torch.testing.assert_close(one, other, rtol=1e-7, atol=1e-9)
    fixed = bn.fit(bn.Laplace(prior_precision=3.0), PROBLEM, DATA, start=start[0], engine=ENGINE)
    plain = bn.Posterior((Part(PROBLEM, _delta(start.points()[0]), (Member(0, 0),)),))
    other = bn.fit(bn.Laplace(prior_precision=3.0), PROBLEM, DATA, start=plain, engine=ENGINE)
    assert fixed.info["curves"]["log_evidence"] == other.info["curves"]["log_evidence"]
