"""Collected iterates: Welford against two passes, plans, and what is refused."""

import pytest
import torch

from basinet.averaging import Moments, check_iterates, plan, share
from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.optim import SGD, Cyclic

KEY = Noise.seed(5)


@pytest.mark.parametrize("offset", [0.0, 1e3, -1e4])
def test_moments_are_those_of_two_passes_in_single_precision(offset):
    count = 200
    exact = KEY.normal(torch.empty(count, 50).double())
    iterates = (offset + exact).float()
    moments = Moments.at({"a": torch.full((50,), 7.0)})  # of which nothing is left
    for t, x in enumerate(iterates, 1):
        moments = moments.add({"a": x}, torch.tensor(1 / t).double())
    truth = iterates.double()
    unit = 2**-23 * max(1.0, abs(offset))  # of the numbers themselves
    assert float((moments.mean["a"] - truth.mean(0)).abs().max()) < 10 * unit
    variance = moments.squares["a"].double() / count
    error = float((variance / truth.var(0, correction=0) - 1).abs().max())
    assert error < 1e-5 + 4 * unit
    if offset:  # where the textbook's difference of mean squares has lost everything
        lost = iterates.square().mean(0) - iterates.mean(0).square()
        assert float((lost / truth.var(0, correction=0) - 1).abs().max()) > 100 * error


def test_squares_are_never_negative_and_equal_iterates_have_none():
    moments = Moments.at({"a": torch.zeros(3)})
    for t in range(1, 50):
        moments = moments.add({"a": torch.tensor([0.1, 1e-20, 12345.678])}, torch.tensor(1 / t).double())
    assert bool((moments.squares["a"] >= 0).all())
    assert float(moments.squares["a"].max()) < 1e-3 and torch.allclose(moments.mean["a"][2], torch.tensor(12345.678))


def test_a_share_of_nothing_leaves_moments_as_they_are():
    before = Moments({"a": torch.tensor([1.0, 2.0])}, {"a": torch.tensor([3.0, 4.0])})
    after = before.add({"a": torch.tensor([9.0, 9.0])}, torch.tensor(0.0).double())
    assert torch.equal(after.mean["a"], before.mean["a"]) and torch.equal(after.squares["a"], before.squares["a"])


def test_the_share_is_that_of_a_mean_at_the_end_of_each_gap():
    shares = lift(lambda step: share(step, 3))(torch.arange(10))
    assert shares.tolist() == pytest.approx([0, 0, 1, 0, 0, 1 / 2, 0, 0, 1 / 3, 0])


@pytest.mark.parametrize(
    ("every", "batch_size", "steps", "batch"),
    [(None, 16, 5 * 3, 16), (None, None, 5, None), (None, 100, 5, None), (7, 16, 35, 16), (1, None, 5, None)],
)
def test_steps_are_as_many_as_give_the_iterates(every, batch_size, steps, batch):
    assert plan(5, every, batch_size, 40)[:2] == (steps, batch)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ((0, None, SGD(lr=0.1)), "expected at least 1 iterate to average over, got 0"),
        ((3, 0, SGD(lr=0.1)), "expected at least 1 step from one iterate to the next, or None .* got 0"),
        ((3, None, SGD(lr=Cyclic(peak=0.1, cycles=4))), r"got 4 cycles and 3 iterates: give Cyclic.*cycles=3"),
    ],
)
def test_impossible_plans_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        check_iterates(*given)
