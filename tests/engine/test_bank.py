"""The bank: rows of samples that the engine owns, each member's first ones."""

from __future__ import annotations

import pytest
import torch

from basinet.engine.bank import BLOCK, Bank

WAITS = pytest.mark.parametrize("waits", [False, True], ids=["host", "device"])


def bank_of(members: int, rows: int, waits: bool = False) -> Bank:
    """A bank that stores at once, or lets samples wait, as it does where they are on a GPU."""
    bank = Bank(members, rows)
    if waits:
        bank.waits, bank.block = True, min(rows, BLOCK)
    return bank


def sample(step: int, members: int = 3) -> dict[str, torch.Tensor]:
    """Leaves (members, ...) that tell member and step."""
    who = torch.arange(members)
    return {"x": (10.0 * who + step)[:, None].expand(-1, 2).double(), "n": who * 100 + step}


@WAITS
def test_each_member_keeps_its_own_samples_in_order(waits):
    bank = bank_of(3, 4, waits)
    keeps = ([True, False, False], [True, True, False], [False, True, False], [True, True, False])
    for step, keep in enumerate(keeps):
        bank.write(torch.tensor(keep), sample(step))
    bank.fetch()
    assert bank.counts.tolist() == [3, 3, 0]
    assert bank.of(0)["x"].tolist() == [[0.0, 0.0], [1.0, 1.0], [3.0, 3.0]]
    assert bank.of(1)["n"].tolist() == [101, 102, 103]
    assert bank.of(1)["x"].dtype == torch.float64 and bank.of(1)["n"].dtype == torch.int64
    assert bank.of(2) is None


@WAITS
def test_a_member_keeps_its_first_samples_when_its_rows_are_full(waits):
    bank = bank_of(2, 2, waits)
    for step in range(5):
        bank.write(torch.tensor([True, step >= 3]), sample(step, 2))
    assert bank.of(0)["n"].tolist() == [0, 1]
    assert bank.of(1)["n"].tolist() == [103, 104]


@WAITS
def test_a_bank_without_rows_keeps_nothing(waits):
    bank = bank_of(2, 0, waits)
    bank.write(torch.tensor([True, True]), sample(0, 2))
    assert bank.of(0) is None and bank.of(1) is None


@WAITS
def test_samples_are_copies_without_a_graph(waits):
    bank = bank_of(1, 2, waits)
    x = torch.ones(1, 2, requires_grad=True)
    bank.write(torch.tensor([True]), {"x": x})
    with torch.no_grad():
        x.zero_()
    kept = bank.of(0)["x"]
    assert kept.tolist() == [[1.0, 1.0]] and not kept.requires_grad


@WAITS
def test_members_that_have_cells_of_their_own_write_one_by_one(waits):
    bank = bank_of(3, 2, waits)
    for step in range(3):
        for j in (0, 2):
            one = {n: x[j : j + 1] for n, x in sample(step).items()}
            bank.write(torch.tensor([step > 0]), one, slice(j, j + 1))
    assert bank.of(0)["n"].tolist() == [1, 2] and bank.of(1) is None and bank.of(2)["n"].tolist() == [201, 202]


def test_samples_are_fetched_in_blocks_and_in_order():
    bank, rows = bank_of(2, 3 * BLOCK + 5, True), 3 * BLOCK + 5
    for step in range(rows + 7):
        bank.write(torch.tensor([True, step % 2 == 0]), sample(step, 2))
        if step % BLOCK == BLOCK - 1:
            bank.fetch()
    assert bank.of(0)["n"].tolist() == list(range(rows))
    assert bank.of(1)["n"].tolist() == [100 + step for step in range(0, rows + 7, 2)]


@WAITS
def test_some_of_the_members_continue_with_their_samples(waits):
    bank = bank_of(3, 3, waits)
    for step in range(2):
        bank.write(torch.tensor([True, False, step == 1]), sample(step))
    some = bank.only([2, 0])
    some.waits, some.block = bank.waits, bank.block
    for step in (2, 3):
        some.write(torch.tensor([True, True]), {n: x[[2, 0]] for n, x in sample(step).items()})
    assert some.of(0)["n"].tolist() == [201, 202, 203] and some.of(1)["n"].tolist() == [0, 1, 2]


@WAITS
def test_a_member_that_restarts_has_all_its_rows_again(waits):
    bank = bank_of(2, 2, waits)
    for step in range(2):
        bank.write(torch.tensor([True, True]), sample(step, 2))
    bank.clear(1)
    assert bank.of(1) is None
    for step in (2, 3, 4):
        bank.write(torch.tensor([True, True]), sample(step, 2))
    assert bank.of(0)["n"].tolist() == [0, 1] and bank.of(1)["n"].tolist() == [102, 103]


@WAITS
def test_a_bank_goes_through_a_checkpoint(waits):
    bank, again = bank_of(2, 3, waits), bank_of(2, 3, waits)
    bank.write(torch.tensor([True, False]), sample(0, 2))
    contents = bank.contents()
    assert contents is not None
    again.restore([x.clone() for x in contents], bank.structure())
    for step in (1, 2, 3):
        for each in (bank, again):
            each.write(torch.tensor([True, True]), sample(step, 2))
    for j in range(2):
        assert all(torch.equal(x, again.of(j)[n]) for n, x in bank.of(j).items())
    assert again.of(0)["n"].tolist() == [0, 1, 2] and again.of(1)["n"].tolist() == [101, 102, 103]


def test_what_was_only_tried_is_forgotten():
    bank = bank_of(1, 2, True)
    bank.write(torch.tensor([True]), sample(0, 1))
    bank.forget_waiting()
    assert bank.of(0) is None
    for step in (1, 2, 3):
        bank.write(torch.tensor([True]), sample(step, 1))
    assert bank.of(0)["n"].tolist() == [1, 2]


def test_reading_many_members_copies_what_waits_once(monkeypatch):
    bank, copies, cpu = bank_of(50, 4, waits=True), [], torch.Tensor.cpu
    for step in range(3):
        bank.write(torch.ones(50, dtype=torch.bool), sample(step, 50))
    monkeypatch.setattr(torch.Tensor, "cpu", lambda x: copies.append(x.shape) or cpu(x))
    assert [len(bank.of(member)["n"]) for member in range(50)] == [3] * 50
    assert sorted(copies) == [(50, 3), (50, 3, 2)]  # each leaf
