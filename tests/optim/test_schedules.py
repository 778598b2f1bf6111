"""Schedules against torch's schedulers and against values worked out by hand."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from itertools import pairwise

import pytest
import torch
from torch.func import vmap
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, LRScheduler, SequentialLR

from basinet.core.registry import known
from basinet.optim import Constant, Cosine, Cyclic, Linear, Plateau, Rate, WarmUp

STEPS = 60
EVERY = [
    Constant(value=0.3),
    Linear(start=0.2, end=0.05),
    Cosine(peak=0.4, floor=0.1),
    Cyclic(peak=0.4, cycles=7, floor=0.1),  # 7 does not divide 60
    Plateau(peak=0.4, floor=0.1),
    WarmUp(schedule=Cosine(peak=0.4), fraction=0.2),
    WarmUp(schedule=Cyclic(peak=0.4, cycles=3), fraction=0.1),
]


def name(schedule: Rate) -> str:
    return type(schedule).__name__


def theirs(make, lr: float, steps: int = STEPS) -> list[float]:
    """The learning rates of a torch scheduler over the steps."""
    optimizer = torch.optim.SGD([torch.zeros((), requires_grad=True)], lr=lr)
    scheduler: LRScheduler = make(optimizer)
    rates = []
    for _ in range(steps):
        rates.append(scheduler.get_last_lr()[0])
        optimizer.step()
        scheduler.step()
    return rates


def ours(schedule: Rate, steps: int = STEPS) -> list[float]:
    return [schedule(clock, steps) for clock in range(steps)]


@pytest.mark.parametrize("floor", [0.0, 0.02])
def test_cosine_is_torch_cosine_annealing(floor):
    expected = theirs(lambda o: CosineAnnealingLR(o, T_max=STEPS, eta_min=floor), lr=0.3)
    assert ours(Cosine(peak=0.3, floor=floor)) == pytest.approx(expected, rel=1e-12)


def test_linear_is_torch_linear():
    expected = theirs(lambda o: LinearLR(o, start_factor=1.0, end_factor=0.25, total_iters=STEPS), lr=0.8)
    assert ours(Linear(start=0.8, end=0.2)) == pytest.approx(expected, rel=1e-12)


def test_plateau_stays_falls_and_stays():
    values = ours(Plateau(peak=0.4, floor=0.04, hold=0.5, end=0.9))
    assert values[:31] == [0.4] * 31 and values[54:] == pytest.approx([0.04] * 6)
    assert values[42] == pytest.approx(0.22)  # half-way down
    with pytest.raises(ValueError, match=r"expected 0 <= hold < end <= 1, got hold=0\.9 and end=0\.5"):
        Plateau(peak=1.0, hold=0.9, end=0.5)


def test_warm_up_is_torch_linear_then_cosine():
    warm = 12  # a fifth of the steps

    def make(optimizer):
        rise = LinearLR(optimizer, start_factor=1 / warm, end_factor=1.0, total_iters=warm - 1)
        fall = CosineAnnealingLR(optimizer, T_max=STEPS - warm)
        return SequentialLR(optimizer, [rise, fall], milestones=[warm])

    schedule = WarmUp(schedule=Cosine(peak=0.4), fraction=0.2)
    assert ours(schedule) == pytest.approx(theirs(make, lr=0.4), rel=1e-12)


def test_warm_up_rises_from_one_part_to_the_whole():
    schedule = WarmUp(schedule=Linear(start=1.0, end=0.0), fraction=0.4)
    assert ours(schedule, 10) == pytest.approx([1 / 4, 2 / 4, 3 / 4, 1, 1, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])


@pytest.mark.parametrize(("fraction", "steps", "first"), [(0.05, 3, 1.0), (0.99, 1, 1.0), (0.5, 1, 1.0)])
def test_warm_up_of_a_short_run_takes_one_step(fraction, steps, first):
    assert WarmUp(schedule=Cosine(peak=1.0), fraction=fraction)(0, steps) == first


def test_warm_up_nests():
    inner = WarmUp(schedule=Constant(value=6.0), fraction=0.5)  # 4 of the 8 steps that remain: 2/4, 3/4 ...
    outer = WarmUp(schedule=inner, fraction=0.2)  # 2 of 10 steps, up to the inner's first value 6/4
    expected = [0.75, 1.5, 1.5, 3.0, 4.5, 6.0, 6.0, 6.0, 6.0, 6.0]
    assert ours(outer, 10) == pytest.approx(expected, rel=1e-12)


def test_cyclic_by_hand():
    half = math.sqrt(0.5)  # cos(pi/4); four steps per cycle
    cycle = [0.8, 0.4 * (1 + half), 0.4, 0.4 * (1 - half)]
    assert ours(Cyclic(peak=0.8, cycles=3), 12) == pytest.approx(cycle * 3, rel=1e-12)
    assert ours(Cyclic(peak=0.8, cycles=3), 10) == pytest.approx((cycle * 3)[:10], rel=1e-12)  # ceil(10/3) = 4


def test_cyclic_is_the_published_formula():
    peak, cycles, steps = 0.5, 7, 200
    length = math.ceil(steps / cycles)
    expected = [(peak / 2) * (math.cos(math.pi * ((t - 1) % length) / length) + 1) for t in range(1, steps + 1)]
    assert ours(Cyclic(peak=peak, cycles=cycles), steps) == pytest.approx(expected, rel=1e-12)


def test_cyclic_starts_at_the_peak_and_ends_near_the_floor():
    peak, floor, cycles, length = 0.5, 0.1, 4, 50
    values = ours(Cyclic(peak=peak, cycles=cycles, floor=floor), cycles * length)
    for k in range(cycles):
        cycle = values[k * length : (k + 1) * length]
        assert cycle[0] == pytest.approx(peak, rel=1e-15)
        assert floor < cycle[-1] < floor + 1e-3 * (peak - floor)  # the gap is sin²(pi/100) of it
        assert all(a > b for a, b in pairwise(cycle))
        assert cycle == values[:length]


def test_one_cycle_is_cosine():
    assert ours(Cyclic(peak=0.4, cycles=1, floor=0.1)) == ours(Cosine(peak=0.4, floor=0.1))


@pytest.mark.parametrize(
    ("schedule", "last"),
    [
        (Linear(start=1.0, end=0.2), 0.2),
        (Cosine(peak=1.0, floor=0.2), 0.2),
        (WarmUp(schedule=Cosine(peak=1.0, floor=0.2), fraction=0.1), 0.2),
    ],
    ids=["Linear", "Cosine", "WarmUp"],
)
def test_past_the_planned_steps_the_last_value_stays(schedule, last):
    assert [schedule(clock, 10) for clock in (10, 11, 25)] == pytest.approx([last] * 3, rel=1e-12)
    assert schedule(9, 10) > 1.01 * last


@pytest.mark.parametrize("schedule", EVERY, ids=name)
def test_ints_give_floats_and_tensors_give_tensors(schedule):
    floats = [schedule(clock, STEPS) for clock in range(2 * STEPS)]
    clocks = torch.arange(2 * STEPS)
    assert all(type(value) is float for value in floats)
    expected = torch.tensor(floats, dtype=torch.float64)
    for values in (schedule(clocks, STEPS), vmap(lambda clock: schedule(clock, STEPS))(clocks)):
        assert values.dtype == torch.float64
        torch.testing.assert_close(values, expected, rtol=1e-14, atol=1e-16)
    torch.testing.assert_close(schedule(clocks.int(), STEPS), expected, rtol=1e-14, atol=1e-16)


@pytest.mark.parametrize("schedule", EVERY, ids=name)
def test_a_single_clock_gives_the_bits_it_gives_in_a_stack(schedule):
    clocks = torch.arange(STEPS)
    stacked = vmap(lambda clock: schedule(clock, STEPS))(clocks)
    assert torch.equal(stacked, torch.stack([schedule(clock, STEPS) for clock in clocks]))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Constant(value=-1.0), r"Constant: expected value .* got -1\.0"),
        (lambda: Constant(value=math.nan), "Constant: expected value .* got nan"),
        (lambda: Linear(start=0.1, end=math.inf), "Linear: expected end .* got inf"),
        (lambda: Linear(start="0.1", end=0.0), r"Linear: expected start .* got '0\.1'"),
        (lambda: Cosine(peak=0.1, floor=0.2), r"Cosine: expected floor to be at most peak, got floor=0\.2"),
        (lambda: Cosine(peak=-0.1), r"Cosine: expected peak .* got -0\.1"),
        (lambda: Cyclic(peak=0.1, cycles=0), "Cyclic: expected cycles .* got 0"),
        (lambda: Cyclic(peak=0.1, cycles=2.5), r"Cyclic: expected cycles .* got 2\.5"),
        (lambda: Cyclic(peak=0.1, cycles=2, floor=-1), "Cyclic: expected floor .* got -1"),
        (lambda: WarmUp(schedule=0.1), r"WarmUp: expected schedule to be a Rate, got 0\.1.*Constant"),
        (lambda: WarmUp(schedule=Constant(value=1), fraction=0), "WarmUp: expected fraction .* got 0"),
        (lambda: WarmUp(schedule=Constant(value=1), fraction=1.0), r"WarmUp: expected fraction .* got 1\.0"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_schedules_are_frozen_comparable_and_known_by_name():
    assert {"Constant", "Linear", "Cosine", "Cyclic", "WarmUp"} <= set(known("rate"))
    assert "Rate" not in known("rate")
    assert WarmUp(schedule=Cosine(peak=0.4)) == WarmUp(schedule=Cosine(peak=0.4, floor=0.0), fraction=0.05)
    with pytest.raises(FrozenInstanceError):
        Cosine(peak=0.4).peak = 0.5
    with pytest.raises(TypeError):
        Rate()
