"""The examples that a member sees: all of them each epoch, in an order that depends only on its key and the step."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from basinet import Data, Noise
from basinet.engine.batches import Batches


def numbered(n: int, **fields: Tensor) -> Data:
    """n examples whose input and target are their position."""
    return Data(torch.arange(n, dtype=torch.float64)[:, None], torch.arange(n), **fields)


def keys(*members: int) -> Tensor:
    return torch.stack([Noise.seed(5).split(k).key for k in members])


def visited(batches: Batches, steps: int) -> Tensor:
    """(g, steps * B), in the order of the steps."""
    return batches.index(0, steps).transpose(0, 1).flatten(1)


@pytest.mark.parametrize(("n", "batch_size"), [(12, 4), (10, 4), (7, 3), (5, 4), (6, 1)])
def test_each_epoch_visits_every_example_once_and_remainders_flow_on(n, batch_size):
    epochs = 4
    steps = -(-epochs * n // batch_size)
    batches = Batches(numbered(n), [0, 1, 2], keys(0, 1, 2), batch_size)
    index = batches.index(0, steps)
    assert index.shape == (steps, 3, batch_size)
    for order in visited(batches, steps):
        for epoch in order[: epochs * n].reshape(epochs, n):
            assert sorted(epoch.tolist()) == list(range(n))


def test_orders_differ_between_members_and_between_epochs():
    orders = visited(Batches(numbered(20), [0, 1], keys(0, 1), 5), 8).reshape(2, 2, 20)
    assert not torch.equal(orders[0, 0], orders[1, 0])
    assert not torch.equal(orders[0, 0], orders[0, 1])
    assert not torch.equal(orders[0, 0], torch.arange(20))


def test_the_order_depends_on_the_key_and_not_on_the_group():
    together = visited(Batches(numbered(11), [3, 7, 9], keys(3, 7, 9), 4), 9)
    alone = visited(Batches(numbered(11), [7], keys(7), 4), 9)
    assert torch.equal(together[1], alone[0])


@pytest.mark.parametrize("cuts", [(9,), (1,) * 9, (2, 4, 3), (5, 4)])
def test_the_order_does_not_depend_on_how_segments_are_cut(cuts):
    whole = Batches(numbered(11), [0, 1], keys(0, 1), 4).index(0, 9)
    batches, first, parts = Batches(numbered(11), [0, 1], keys(0, 1), 4), 0, []
    for count in cuts:
        parts.append(batches.index(first, count))
        first += count
    assert torch.equal(torch.cat(parts), whole)


def test_any_step_can_be_asked_for_first():
    whole = Batches(numbered(11), [0], keys(0), 4).index(0, 30)
    batches = Batches(numbered(11), [0], keys(0), 4)
    assert torch.equal(batches.index(23, 7), whole[23:])
    assert torch.equal(batches.index(2, 5), whole[2:7])


def test_rows_decide_which_examples_a_member_sees():
    rows = torch.tensor([[0, 0, 1, 2], [5, 6, 7, 7], [9, 9, 9, 8]])
    data = numbered(10, rows=rows)
    batches = Batches(data, [2, 0], keys(2, 0), 2)
    for member, order in zip((2, 0), visited(batches, 6)):
        for epoch in order.reshape(3, 4):
            assert sorted(epoch.tolist()) == sorted(rows[member].tolist())


def test_rows_and_full_batches_give_each_member_its_row():
    rows = torch.tensor([[0, 0, 1, 2], [5, 6, 7, 7]])
    batches = Batches(numbered(10, rows=rows), [1, 0], keys(1, 0), None)
    assert not batches.shared
    assert batches.index(3, 2).tolist() == [rows[[1, 0]].tolist()] * 2
    inputs, targets, weights = batches.gather(batches.index(0, 1)[0])
    assert targets.tolist() == rows[[1, 0]].tolist() and inputs.shape == (2, 4, 1) and weights is None


@pytest.mark.parametrize("batch_size", [None, 10, 11])
def test_a_full_batch_is_shared_and_in_order(batch_size):
    data = numbered(10, weights=torch.arange(10.0))
    batches = Batches(data, [0, 1], keys(0, 1), batch_size)
    assert batches.shared
    index = batches.index(4, 3)
    assert index.tolist() == [list(range(10))] * 3
    inputs, targets, weights = batches.gather(index[0])
    assert inputs is data.inputs and targets is data.targets and weights is data.weights


def test_batches_gather_inputs_targets_and_weights_of_the_same_examples():
    tree = {"a": torch.arange(6.0), "b": (torch.arange(12).reshape(6, 2),)}
    data = Data(tree, torch.arange(6), weights=torch.arange(6.0) + 1)
    batches = Batches(data, [0, 1], keys(0, 1), 3)
    assert not batches.shared
    index = batches.index(0, 1)[0]  # (g, B)
    inputs, targets, weights = batches.gather(index)
    assert torch.equal(targets, index) and torch.equal(inputs["a"], index.float())
    assert torch.equal(inputs["b"][0][..., 1], 2 * index + 1) and torch.equal(weights, index + 1.0)


@pytest.mark.parametrize("members", [(0, 1), (0,)])
def test_batches_lie_in_memory_alike_at_every_clock(members):
    # a compiled step is compiled again for other strides: here steps 2 and 5 run over the end of an epoch
    batches = Batches(numbered(11), list(members), keys(*members), 4)
    assert {batches.index(clock, count)[0].stride() for clock in range(9) for count in (1, 3)} == {(4, 1)}


@pytest.mark.parametrize(("n", "batch_size"), [(12, 4), (10, 4), (7, 3), (6, 1)])
def test_in_the_given_order_each_pass_has_every_example_once_and_may_end_short(n, batch_size):
    batches = Batches(numbered(n), [0, 1], keys(0, 1), batch_size, given=True)
    a_pass = -(-n // batch_size)
    for first in (0, a_pass):
        index = batches.index(first, a_pass)
        assert [len(i[0]) for i in index] == [min(batch_size, n - t * batch_size) for t in range(a_pass)]
        assert torch.cat(list(index), 1).tolist() == [list(range(n))] * 2
    assert torch.equal(batches.index(1, 2)[0], batches.index(0, 2)[1])  # any step can be asked for first


def test_the_given_order_is_that_of_a_members_rows():
    rows = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 5, 3]])
    batches = Batches(numbered(10, rows=rows), [1, 0], keys(1, 0), 2, given=True)
    assert torch.cat(list(batches.index(0, 3)), 1).tolist() == rows[[1, 0]].tolist()


def test_in_the_given_order_restarted_members_have_batches_as_long_as_the_others_or_none():
    batches = Batches(numbered(8), [0, 1], keys(0, 1), 4, given=True)
    assert batches.index([1, 0], 1)[0].tolist() == [[4, 5, 6, 7], [0, 1, 2, 3]]
    batches = Batches(numbered(7), [0, 1], keys(0, 1), 4, given=True)
    with pytest.raises(RuntimeError, match=r"choose a batch_size that divides 7, the number of examples"):
        batches.index([1, 0], 1)


@pytest.mark.parametrize("rows", [None, torch.tensor([[0, 0, 1, 2], [5, 6, 7, 7], [9, 9, 9, 8]])])
def test_some_of_the_members_continue_with_their_own_batches(rows):
    def of() -> Batches:
        data = numbered(10) if rows is None else numbered(10, rows=rows)
        return Batches(data, [0, 1, 2], keys(0, 1, 2), 3)

    whole, some = of(), of()
    some.index(0, 2)
    some.keep([2, 0])
    assert torch.equal(some.index(2, 6), whole.index(2, 6)[:, [2, 0]])


def test_independent_examples_come_as_often_as_chance_has_them():
    n, steps = 50, 400
    batches = Batches(numbered(n), [0, 1], keys(0, 1), 10, independent=True)
    for order in visited(batches, steps):
        counts = torch.bincount(order, minlength=n).double()
        expected = steps * 10 / n
        chi = float(((counts - expected) ** 2 / expected).sum())
        assert 14 < chi < 105  # chi-square with 49 degrees of freedom, z = 4.5 and more; shuffled passes give 0
    torch.testing.assert_close(batches.index(7, 3), batches.index(0, 10)[7:])
