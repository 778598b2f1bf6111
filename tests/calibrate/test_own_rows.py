"""The spread of a mixture whose members were validated on rows of their own: its formula, and the truth beside it."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.calibrate.own_rows import mixture_factor
from basinet.core.noise import Noise
from basinet.core.wording import speaking

KEY = Noise.seed(11)
ENGINE = bn.Engine(device="cpu", progress=False)
INPUTS, NOISE, APART = 6, 1.0, 0.8  # numbers per row, standard deviations of noise and of members around the truth


def unit_rows(n: int, seed: int) -> bn.Data:
    """Inputs of length 1, and targets that are noise: the truth is zero everywhere."""
    key = KEY.split(seed)
    x = nn.functional.normalize(key.split("x").normal(torch.empty(n, INPUTS, dtype=torch.float64)), dim=1)
    return bn.Data(x, NOISE * key.split("y").normal(x[:, :1]))


def scattered(members: int) -> bn.Posterior:
    """Linear functions with weights N(0, APART^2), whose noise is that of their errors: NOISE^2 + APART^2 in mean."""

    def make() -> nn.Module:
        module = nn.Linear(INPUTS, 1, bias=False).double()
        nn.init.normal_(module.weight, std=APART)
        return module

    likelihood = bn.likelihoods.Gaussian(noise=math.hypot(NOISE, APART))
    problem = bn.Problem(make, likelihood, bn.priors.Normal(scale=1.0))
    return bn.fit(bn.MAP(epochs=0), problem, unit_rows(10, 2), members=members, engine=ENGINE)


@pytest.mark.parametrize("members", [2, 5, 12])
def test_the_spread_is_the_one_that_data_new_to_all_members_would_choose(members):
    """Rows of members against 20,000 rows that all of them see. The factor goes by second moments and the other by
    likelihood, each known to 1 %; they agree within 5 %."""
    posterior, data = scattered(members), unit_rows(6000, 0)
    assert [member.k for member in posterior.members] == list(range(members))
    _, val = data.held_out(members, 0.3)
    own = float(bn.temper(posterior, val).temperature.values)
    truth = float(bn.temper(posterior, unit_rows(20_000, 1)).temperature.values)
    assert own == pytest.approx(truth, rel=0.05)
    assert truth < 0.9  # the mixture is too wide as it is: the check can fail


def test_the_factor_is_its_formula():
    posterior, data = scattered(3), unit_rows(500, 0)
    _, val = data.held_out(3, 0.5)
    predictives = [[posterior[k].predict(val.member(k).inputs)] for k in range(3)]
    squares = []
    for i, j in ((0, 1), (0, 2), (1, 2)):
        both = torch.tensor(sorted({*val.rows[i].tolist()} & {*val.rows[j].tolist()}))
        x = data.inputs[both]
        squares.append((posterior[i].predict(x).mean - posterior[j].predict(x).mean).square().flatten())
    variance = NOISE**2 + APART**2
    b = float((torch.cat(squares) / 2 / variance).clamp(max=9.0).mean())

    def factor(share):
        return pytest.approx(math.sqrt((1 - share) / (1 + share)), rel=1e-6)

    assert mixture_factor(predictives, val.rows, None) == factor(2 / 3 * b)
    assert mixture_factor(predictives, val.rows, None, spread=1.3) == factor(2 / 3 * b / 1.3**2)
    for weights in (torch.tensor([0.5, 0.5, 0.0]), torch.tensor([2.0, 2.0, 0.0])):
        assert mixture_factor(predictives, val.rows, weights) == factor(b / 2)
    assert mixture_factor(predictives[:1], val.rows[:1], None) == 1.0


def test_members_that_share_no_row_keep_their_own_spread_with_a_warning(caplog):
    posterior, data = scattered(4), unit_rows(2000, 0)
    train, held = data.folds(4)
    rows = torch.stack([torch.arange(2000).view(4, -1)[k] for k in range(4)])
    val = bn.Data(data.inputs, data.targets, rows=rows)
    spread = float(bn.temper(posterior, val).temperature.values)
    assert "left out by two members" in caplog.text and "use Data.held_out with a larger fraction" in caplog.text
    caplog.clear()
    with speaking("command"):
        bn.temper(posterior, val)
    assert "mixture: use a larger --val" in caplog.text
    errors = torch.cat([posterior[k].predict(val.member(k).inputs).mean - val.member(k).targets for k in range(4)])
    assert spread == pytest.approx(float(errors.square().mean().sqrt()) / math.hypot(NOISE, APART), rel=1e-5)
    assert len(held) == 4 and train.rows is not None


def classes(members: int) -> tuple[bn.Posterior, bn.Data]:
    problem = bn.Problem(lambda: nn.Linear(3, 4), bn.likelihoods.Categorical(), bn.priors.Normal(scale=1.0))
    x = KEY.split("classes").normal(torch.empty(200, 3))
    data = bn.Data(x, x[:, :3].argmax(1))
    return bn.fit(bn.MAP(epochs=0), problem, data, members=members, engine=ENGINE), data


def test_temperatures_of_classes_are_those_of_each_member_on_its_rows():
    posterior, data = classes(3)
    _, val = data.held_out(3, 0.4)
    tempered = bn.temper(posterior, val).temperature
    assert tempered.of == "members"
    alone = [float(bn.temper(posterior[k], val.member(k)).temperature.values[0]) for k in range(3)]
    assert tempered.values.tolist() == pytest.approx(alone, rel=1e-9)


def test_what_needs_rows_that_no_member_was_trained_on_is_refused():
    posterior, data = classes(3)
    _, val = data.held_out(3, 0.4)
    for of in ("average", "classes"):
        with pytest.raises(ValueError, match="of='members'"):
            bn.temper(posterior, val, of)
    _, numbers = unit_rows(100, 0).held_out(2)
    with pytest.raises(ValueError, match="give data without rows"):
        bn.temper(scattered(2), numbers, "quantiles")
    for calibrate in (bn.conformal, bn.weigh):
        with pytest.raises(ValueError, match="keep a part of the data"):
            calibrate(posterior, val)


def test_members_are_scored_on_their_own_rows():
    posterior, data = scattered(3), unit_rows(300, 0)
    _, val = data.held_out(3, 0.2)
    each = [bn.score(posterior[k], val.member(k)) for k in range(3)]
    together = bn.score(posterior, val)
    assert together["nll"] == pytest.approx(sum(s["nll"] for s in each) / 3, rel=1e-6)
    assert together["rmse"] == pytest.approx(math.sqrt(sum(s["rmse"] ** 2 for s in each) / 3), rel=1e-6)
    assert together["n"] == 180
