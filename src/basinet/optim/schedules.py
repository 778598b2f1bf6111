"""Schedules: numbers that follow a member's clock, such as a learning rate.

A schedule is called with `clock`, the 0-based number of the step, and `steps`, the planned number of steps.
An int clock gives a float; an integer tensor, as under `vmap` where members have clocks of their own, gives a
float64 tensor. From `clock == steps` on, Linear and Cosine stay at their last value and Cyclic goes on.

    Cosine   floor + (peak - floor) (1 + cos(pi t/T)) / 2, t = clock, T = steps  (Loshchilov & Hutter 2017)
    Cyclic   the same with t = clock mod L and T = L, where L = ceil(steps/cycles)    (Huang 2017; Zhang 2020)
    Plateau  peak until t = hold T, then a straight line to floor at t = end T, and floor          (Maddox et al. 2019)

>>> Cosine(peak=0.2)(50, 100)
0.1
>>> WarmUp(schedule=Constant(value=1.0), fraction=0.04)(torch.arange(6), 100)
tensor([0.2500, 0.5000, 0.7500, 1.0000, 1.0000, 1.0000], dtype=torch.float64)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from numbers import Real
from types import ModuleType

import torch
from torch import Tensor

from ..core.recipe import Recipe

Clock = int | Tensor  # an integer tensor where members have their own clocks
Scalar = float | Tensor  # what follows from a clock


class Rate(Recipe, ABC, kind="rate"):
    """A number as a pure function of the clock."""

    @abstractmethod
    def __call__(self, clock: Clock, steps: int) -> Scalar:
        """The value at step `clock` = 0, 1, ... of `steps`: a float for an int, a tensor for a tensor."""


@dataclass(frozen=True, kw_only=True)
class Constant(Rate):
    """The same value at every step."""

    value: float
    """The value, at least 0."""

    def __post_init__(self) -> None:
        check_nonnegative("Constant", value=self.value)

    def __call__(self, clock: Clock, steps: int) -> Scalar:
        t, _ = arithmetic(clock)
        return self.value + 0.0 * t


@dataclass(frozen=True, kw_only=True)
class Validated(Rate):
    """A constant that is chosen for each member on validation data, by methods that start from trained networks; where
    there are no such data, `value`."""

    value: float
    """What is tried first, at least 0."""

    def __post_init__(self) -> None:
        check_nonnegative("Validated", value=self.value)

    def __call__(self, clock: Clock, steps: int) -> Scalar:
        t, _ = arithmetic(clock)
        return self.value + 0.0 * t


@dataclass(frozen=True, kw_only=True)
class Linear(Rate):
    """A straight line from `start` at clock 0 to `end` at clock `steps`."""

    start: float
    """The value at clock 0, at least 0."""
    end: float
    """The value at clock `steps`, at least 0."""

    def __post_init__(self) -> None:
        check_nonnegative("Linear", start=self.start, end=self.end)

    def __call__(self, clock: Clock, steps: int) -> Scalar:
        t, _ = arithmetic(_at_most(steps, clock))
        return self.start + (self.end - self.start) * (t / steps)


@dataclass(frozen=True, kw_only=True)
class Cosine(Rate):
    """Half a cosine wave from `peak` at clock 0 to `floor` at clock `steps`."""

    peak: float
    """The value at clock 0, at least `floor`."""
    floor: float = 0.0
    """The value at clock `steps`, at least 0."""

    def __post_init__(self) -> None:
        _check_wave("Cosine", self.peak, self.floor)

    def __call__(self, clock: Clock, steps: int) -> Scalar:
        return _half_wave(self.peak, self.floor, _at_most(steps, clock), steps)


@dataclass(frozen=True, kw_only=True)
class Plateau(Rate):
    """`peak` for a while, then a straight line down to `floor`, which stays.

    >>> print(*(Plateau(peak=0.1, floor=0.001)(clock, 10) for clock in (0, 5, 9)))
    0.1 0.1 0.001
    """

    peak: float
    """The value at first, at least `floor`."""
    floor: float = 0.0
    """The value at last, at least 0."""
    hold: float = 0.5
    """The part of the steps after which it falls."""
    end: float = 0.9
    """The part after which it has fallen, above `hold`."""

    def __post_init__(self) -> None:
        _check_wave("Plateau", self.peak, self.floor)
        if not 0 <= self.hold < self.end <= 1:
            raise ValueError(f"Plateau: expected 0 <= hold < end <= 1, got hold={self.hold!r} and end={self.end!r}")

    def __call__(self, clock: Clock, steps: int) -> Scalar:
        t, _ = arithmetic(clock)
        gone = (t / steps - self.hold) / (self.end - self.hold)
        inside = gone.clamp(0.0, 1.0) if isinstance(gone, Tensor) else min(1.0, max(0.0, gone))
        return self.peak + (self.floor - self.peak) * inside


@dataclass(frozen=True, kw_only=True)
class Cyclic(Rate):
    """Half a cosine wave per cycle, each starting again at `peak`: for snapshots and cyclical SG-MCMC.

    A cycle has L = ceil(steps/cycles) steps and its last value, at clock L - 1, is just above `floor`. Where
    `cycles` does not divide `steps`, the last cycle is cut short.
    """

    peak: float
    """The value at the start of each cycle, at least `floor`."""
    cycles: int
    """The number of cycles in the planned steps, at least 1."""
    floor: float = 0.0
    """The value each cycle falls towards, at least 0."""

    def __post_init__(self) -> None:
        _check_wave("Cyclic", self.peak, self.floor)
        if not (isinstance(self.cycles, int) and self.cycles >= 1):
            raise ValueError(
                f"Cyclic: expected cycles to be an integer of at least 1, got {self.cycles!r}. "
                "Use Cosine for a single descent."
            )

    def __call__(self, clock: Clock, steps: int) -> Scalar:
        length = -(-steps // self.cycles)  # rounded up
        return _half_wave(self.peak, self.floor, clock % length, length)


@dataclass(frozen=True, kw_only=True)
class WarmUp(Rate):
    """A linear rise to the start of another schedule, which then runs over the remaining steps.

    With W = round(fraction * steps) steps of warm-up, at least one, the value at clock t < W is (t + 1)/W
    times the inner schedule's first: 1/W of it at clock 0, so that no step is lost on zero, and all of it at
    W - 1. From clock W on it is the inner schedule at clock t - W of steps - W.
    """

    schedule: Rate
    """What follows the rise."""
    fraction: float = 0.05
    """The part of the steps spent rising, between 0 and 1."""

    def __post_init__(self) -> None:
        if not isinstance(self.schedule, Rate):
            raise ValueError(
                f"WarmUp: expected schedule to be a Rate, got {self.schedule!r}. Wrap a number as Constant(value=...)."
            )
        if not (isinstance(self.fraction, Real) and 0 < self.fraction < 1):
            raise ValueError(
                f"WarmUp: expected fraction to be between 0 and 1, both excluded, got {self.fraction!r}. "
                "Without a warm-up, use only the inner schedule."
            )

    def __call__(self, clock: Clock, steps: int) -> Scalar:
        warm = max(1, round(self.fraction * steps))
        t, _ = arithmetic(_at_most(warm, clock + 1))
        after = clock - _at_most(warm, clock)
        return (t / warm) * self.schedule(after, max(1, steps - warm))


def arithmetic(clock: Clock) -> tuple[Scalar, ModuleType]:
    """The clock as a real number, and the module whose functions take it: `math`, or `torch` in float64."""
    return (clock.double(), torch) if isinstance(clock, Tensor) else (float(clock), math)


def check_nonnegative(owner: str, **values: float) -> None:
    """Refuse what is not a finite number of at least 0."""
    for name, value in values.items():
        if not (isinstance(value, Real) and 0 <= value < math.inf):
            raise ValueError(
                f"{owner}: expected {name} to be a finite number of at least 0, got {value!r}. "
                f"Give {owner}({name}=...) such a number."
            )


def _check_wave(owner: str, peak: float, floor: float) -> None:
    check_nonnegative(owner, peak=peak, floor=floor)
    if floor > peak:
        raise ValueError(
            f"{owner}: expected floor to be at most peak, got floor={floor!r} and peak={peak!r}. "
            "Swap them, or use Linear for a rise."
        )


def _half_wave(peak: float, floor: float, clock: Clock, length: int) -> Scalar:
    t, ops = arithmetic(clock)
    return floor + (peak - floor) * (0.5 + 0.5 * ops.cos(math.pi * t / length))


def _at_most(end: int, clock: Clock) -> Clock:
    """min(clock, end), the same for an int and a tensor."""
    return clock - (clock - end) * (clock > end)
