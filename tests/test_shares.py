"""Fits that several calls carry out: the same members to the bit, whoever trains them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import basinet as bn
from basinet.core.tree import leaves
from basinet.methods.map import MAP

SHORT = MAP(epochs=3, batch_size=5)
PROBLEM = bn.Problem(lambda: nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), bn.likelihoods.Categorical())


def classes(n: int = 14) -> bn.Data:
    key = bn.Noise.seed(3)
    return bn.Data(key.split("x").normal(torch.empty(n, 4)), key.split("y").integers(n, 3))


def fit(method: bn.Method = SHORT, members: int = 7, *, only: Any = None, pool: Path | None = None, **of: Any) -> Any:
    engine = bn.Engine(**{"device": "cpu", "progress": False, "strategy": "stacked", **of})
    return bn.fit(method, PROBLEM, classes(), members=members, pool=pool, only=only, engine=engine)


def params(posterior: bn.Posterior) -> dict[int, list[torch.Tensor]]:
    return {m.members[0].k: leaves(m.parts[0].family) for m in posterior}


def same(a: dict[int, list[torch.Tensor]], b: dict[int, list[torch.Tensor]]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(x, y) for k in a for x, y in zip(a[k], b[k], strict=True))


@pytest.mark.parametrize("method", [SHORT, bn.SWAG(base=SHORT, batch_size=5, iterates=3, rank=2)], ids=["MAP", "SWAG"])
@pytest.mark.parametrize("strategy", ["stacked", "loop"])
def test_shares_in_any_order_make_the_members_of_one_fit(tmp_path, method, strategy):
    whole = params(fit(method, group=3, strategy=strategy))
    for share in ("2/3", "0/3", "1/3"):
        part = params(fit(method, only=share, group=3, pool=tmp_path, strategy=strategy))
        assert 0 < len(part) < 7 and same(part, {k: whole[k] for k in part})
    gathered = fit(method, group=3, pool=tmp_path, strategy=strategy)
    assert same(params(gathered), whole) and sum(part.info["trained"] for part in gathered.parts) == 0


def test_only_trains_and_returns_these_members(tmp_path):
    part = fit(only=[5, 2], pool=tmp_path)
    assert [m.k for m in part.members] == [2, 5] and len(list(tmp_path.rglob("member-*"))) == 2
    assert same(params(part), {k: x for k, x in params(fit(group=1)).items() if k in (2, 5)})


def test_members_of_a_group_are_trained_with_those_beside_them(tmp_path):
    assert sorted(params(fit(only=[3], group=3, pool=tmp_path))) == [3, 4, 5]


def test_a_sweep_and_a_start_are_shared_out_by_member():
    rates = MAP(epochs=3, batch_size=5, optimizer=bn.optim.Adam(lr=[0.01, 0.1]))
    part, whole = fit(rates, 6, only="1/2", group=3), fit(rates, 6, group=3)
    assert [m.members[0].k for m in part] == [1, 3, 5] and all(m.recipe.optimizer.lr == 0.1 for m in part)
    assert same(params(part), {k: params(whole)[k] for k in (1, 3, 5)})
    start = fit(group=1)
    again = bn.fit(SHORT, PROBLEM, classes(), start=start, only=[4], engine=bn.Engine(device="cpu", progress=False))
    assert [m.k for m in again.members] == [4]


def test_a_share_has_as_many_members_side_by_side_as_it_has():
    assert [len(fit(members=10, only=f"{i}/3")) for i in range(3)] == [4, 4, 2]
    assert [len(fit(members=20, only=f"{i}/2")) for i in range(2)] == [10, 10]  # in four blocks of five


@pytest.mark.parametrize("only", ["3/3", "-1/3", "1", "a/b", "", "1/0", [7], [-1], [], [1.0], [True], 3])
def test_what_is_not_a_share_is_refused(only):
    with pytest.raises(ValueError, match=r"expected (a share as I/N|only= as numbers of members from 0 to 6)"):
        fit(only=only)


def test_more_shares_than_groups_are_refused_with_what_to_do():
    with pytest.raises(ValueError, match=r"train in 3 blocks of up to 3 .* 3 shares at most, or give Engine\(group"):
        fit(only="0/4", group=3)


def test_members_that_see_each_other_are_not_shared_out():
    with pytest.raises(ValueError, match="see each other and train in one place"):
        fit(bn.SVGD(epochs=1), only="0/2")


@pytest.mark.parametrize("group", [0, -1, 1.5, True])
def test_a_group_is_a_positive_number(group):
    with pytest.raises(ValueError, match="expected group as a positive number"):
        bn.Engine(group=group)
