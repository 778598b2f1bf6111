"""The bank: rows of samples that the engine owns, each member's first ones."""

from __future__ import annotations

import torch

from basinet.engine.bank import Bank


def sample(step: int, members: int = 3) -> dict[str, torch.Tensor]:
    """Leaves (members, ...) that tell member and step."""
    who = torch.arange(members)
    return {"x": (10.0 * who + step)[:, None].expand(-1, 2).double(), "n": who * 100 + step}


def test_each_member_keeps_its_own_samples_in_order():
    bank = Bank(3, 4)
    keeps = ([True, False, False], [True, True, False], [False, True, False], [True, True, False])
    for step, keep in enumerate(keeps):
        bank.write(torch.tensor(keep), sample(step))
    assert bank.counts.tolist() == [3, 3, 0]
    assert bank.of(0)["x"].tolist() == [[0.0, 0.0], [1.0, 1.0], [3.0, 3.0]]
    assert bank.of(1)["n"].tolist() == [101, 102, 103]
    assert bank.of(1)["x"].dtype == torch.float64 and bank.of(1)["n"].dtype == torch.int64
    assert bank.of(2) is None


def test_a_member_keeps_its_first_samples_when_its_rows_are_full():
    bank = Bank(2, 2)
    for step in range(5):
        bank.write(torch.tensor([True, step >= 3]), sample(step, 2))
    assert bank.of(0)["n"].tolist() == [0, 1]
    assert bank.of(1)["n"].tolist() == [103, 104]


def test_a_bank_without_rows_keeps_nothing():
    bank = Bank(2, 0)
    bank.write(torch.tensor([True, True]), sample(0, 2))
    assert bank.of(0) is None and bank.of(1) is None


def test_samples_are_copies_without_a_graph():
    bank = Bank(1, 2)
    x = torch.ones(1, 2, requires_grad=True)
    bank.write(torch.tensor([True]), {"x": x})
    with torch.no_grad():
        x.zero_()
    kept = bank.of(0)["x"]
    assert kept.tolist() == [[1.0, 1.0]] and not kept.requires_grad
