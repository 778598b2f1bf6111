"""Step sizes by validation: each member its own, none worse than its start, and what is reported."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import ravel
from basinet.optim import SGD, Validated
from basinet.trial import member_nll

ENGINE = bn.Engine(device="cpu", progress=False)
KEY = bn.Noise.seed(5)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 20), nn.Tanh(), nn.Linear(20, 1)).double()


def wave(n: int, name: str) -> bn.Data:
    x = KEY.split(name).normal(torch.empty(n, 3, dtype=torch.float64))
    noise = KEY.split(name).split("noise").normal(x[:, :1])
    return bn.Data(x, (2 * x[:, :1]).sin() + x[:, 1:2] + 0.1 * noise)


PROBLEM = bn.Problem(net, bn.likelihoods.Gaussian(noise=0.1), bn.priors.Normal(scale=1.0))
TRAIN, VAL = wave(120, "train"), wave(60, "val")
MAPS = bn.fit(bn.MAP(epochs=300), PROBLEM, TRAIN, members=3, engine=ENGINE)
RECIPES = (bn.SWA(iterates=8, batch_size=30), bn.SWAG(iterates=8, rank=4, batch_size=30))


def far(recipe, step: float):
    """With first tries that leave the mode for good."""
    return type(recipe)(
        **{**vars(recipe), "optimizer": SGD(lr=Validated(value=step), momentum=0.9), "unit_noise": False}
    )


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
def test_no_member_is_worse_than_its_start_on_validation_data(recipe):
    before = member_nll(MAPS, VAL)
    posterior = bn.fit(recipe, PROBLEM, TRAIN, val=VAL, start=MAPS, engine=ENGINE)
    assert len(posterior.parts) == 1 and posterior.recipe == recipe and posterior.members == MAPS.members
    after, curves = member_nll(posterior, VAL), posterior.info["curves"]
    assert all(b <= a + 1e-3 for a, b in zip(before, after))
    assert [x for [x] in curves["start_nll"]] == pytest.approx(before)
    assert [x for [x] in curves["own_nll"]] == pytest.approx(after)
    for [step], tried, nll in zip(curves["step_size"], curves["tried_step_size"], curves["tried_nll"]):
        assert step == 0 or step == tried[nll.index(min(nll))]
    assert len(posterior.info["notes"]) == 3 and all(len(lines) == 1 for lines in posterior.info["notes"])


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: type(r).__name__)
def test_where_no_step_gains_a_member_stays_where_it_starts(recipe):
    posterior = bn.fit(far(recipe, 3000.0), PROBLEM, TRAIN, val=VAL, start=MAPS, engine=ENGINE)
    torch.testing.assert_close(ravel(posterior.mean()), ravel(MAPS.mean()), rtol=0, atol=1e-12)
    assert member_nll(posterior, VAL) == pytest.approx(member_nll(MAPS, VAL), abs=1e-6)
    assert all("stays at its start" in lines[0] for lines in posterior.info["notes"])
    assert posterior[1:].info["notes"] == posterior.info["notes"][1:]


def test_members_choose_for_themselves_the_same_alone_and_with_others(tmp_path):
    recipe = RECIPES[1]
    together = bn.fit(recipe, PROBLEM, TRAIN, val=VAL, start=MAPS, engine=ENGINE, pool=tmp_path)
    for k in range(3):
        alone = bn.fit(recipe, PROBLEM, TRAIN, val=VAL, start=MAPS[k], engine=ENGINE)
        assert alone.info["curves"]["step_size"] == [together.info["curves"]["step_size"][k]]
        torch.testing.assert_close(ravel(alone.mean()), ravel(together[k].mean()), rtol=0, atol=1e-9)
    again = bn.fit(
        recipe,
        PROBLEM,
        TRAIN,
        val=VAL,
        start=MAPS,
        engine=ENGINE,
        pool=tmp_path,
        observe=lambda e: pytest.fail("again"),
    )
    assert torch.equal(again.predict(VAL.inputs).outputs, together.predict(VAL.inputs).outputs)
    together.save(tmp_path / "saved")
    loaded = bn.load(tmp_path / "saved", net)
    assert loaded.recipe == recipe and loaded.info["notes"] == together.info["notes"]


def test_without_validation_data_the_step_is_the_published_one():
    fixed = bn.SWA(iterates=4, batch_size=30, optimizer=SGD(lr=0.05, momentum=0.9))
    left_open = bn.SWA(iterates=4, batch_size=30)
    one, other = (bn.fit(r, PROBLEM, TRAIN, start=MAPS, engine=ENGINE) for r in (fixed, left_open))
    torch.testing.assert_close(ravel(one.mean()), ravel(other.mean()), rtol=0, atol=1e-13)
    given = bn.fit(fixed, PROBLEM, TRAIN, val=VAL, start=MAPS, engine=ENGINE)
    torch.testing.assert_close(ravel(one.mean()), ravel(given.mean()), rtol=0, atol=1e-13)


def test_norm_statistics_and_rows_survive_the_choice():
    def normed() -> nn.Module:
        return nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1)).double()

    problem = bn.Problem(normed, PROBLEM.likelihood)
    sites = bn.Data(TRAIN.inputs, TRAIN.targets, rows=torch.arange(120).reshape(2, 60))
    base = bn.fit(bn.MAP(epochs=100), problem, sites, members=2, engine=ENGINE)
    posterior = bn.fit(bn.SWAG(iterates=4, rank=2, batch_size=20), problem, sites, val=VAL, start=base, engine=ENGINE)
    assert posterior.predict(VAL.inputs).outputs.shape[0] == 2
    assert all(b <= a + 1e-3 for a, b in zip(member_nll(base, VAL), member_nll(posterior, VAL)))


def test_laplace_that_is_worse_than_its_start_warns(caplog):
    narrow = bn.fit(bn.Laplace(), PROBLEM, TRAIN, val=VAL, start=MAPS, engine=ENGINE)
    assert all(b <= a + 1e-3 for a, b in zip(member_nll(MAPS, VAL), member_nll(narrow, VAL)))
    assert all("by the validation NLL" in lines[0] for lines in narrow.info["notes"])
    with caplog.at_level(logging.WARNING, logger="basinet"):
        wide = bn.fit(
            bn.Laplace(prior_precision=1e-6, where=None, via="sample"),
            PROBLEM,
            TRAIN,
            val=VAL,
            start=MAPS[0],
            engine=ENGINE,
        )
    assert "worse than its start" in caplog.text and "worse than its start" in wide.info["notes"][0][-1]


def test_a_given_step_that_harms_is_warned_of(caplog):
    fixed = bn.SWA(iterates=8, batch_size=30, optimizer=SGD(lr=2.0, momentum=0.9))
    with caplog.at_level(logging.WARNING, logger="basinet"):
        posterior = bn.fit(fixed, PROBLEM, TRAIN, val=VAL, start=MAPS, engine=ENGINE)
    worse = [b > a + 1e-3 for a, b in zip(member_nll(MAPS, VAL), member_nll(posterior, VAL))]
    assert any(worse) and caplog.text.count("worse than its start") == sum(worse)
    assert [bool(lines) for lines in posterior.info["notes"]] == worse


@pytest.mark.parametrize("recipe", [bn.SWA, bn.SWAG], ids=lambda r: r.__name__)
@pytest.mark.parametrize("given", [True, False], ids=["start", "base"])
def test_without_validation_data_harm_is_seen_on_training_data(recipe, given, caplog):
    """A step that leaves the mode is said to harm, from a given start or from a base of its own; a small one is not."""
    base, more = bn.MAP(epochs=300), {"rank": 4} if recipe is bn.SWAG else {}
    for step, harms in ((2.0, True), (1e-5, False)):
        small = recipe(base=base, iterates=8, batch_size=30, optimizer=SGD(lr=step, momentum=0.9), **more)
        with caplog.at_level(logging.WARNING, logger="basinet"):
            posterior = bn.fit(small, PROBLEM, TRAIN, members=3, start=MAPS if given else None, engine=ENGINE)
        gaps = [b - a for a, b in zip(member_nll(MAPS, TRAIN), member_nll(posterior, TRAIN))]
        assert (min(gaps) > 0.1) if harms else (max(gaps) < 0.1)
        assert caplog.text.count("likely worse than its start: training examples") == 3 * harms
        assert ("notes" in posterior.info) == harms
        assert not harms or "pass val=" in posterior.info["notes"][0][0]
        caplog.clear()


def test_tries_that_diverge_are_not_reported_one_by_one(capsys):
    loud = bn.Engine(device="cpu", progress=True)
    bn.fit(far(RECIPES[1], 1e200), PROBLEM, TRAIN, val=VAL, start=MAPS, engine=loud)
    lines = capsys.readouterr().err.splitlines()
    assert sum("step sizes on validation data" in line for line in lines) == 1
    assert not any("not finite" in line or "diverged" in line for line in lines) and len(lines) < 10
