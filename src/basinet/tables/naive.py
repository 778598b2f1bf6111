"""What a stream's predictions are measured against: two predictions that never look at inputs.

    constant    numbers: a normal with the mean and spread of all targets so far; classes: their frequencies so far
    last value  numbers: a normal around the last known target, as wide as targets have moved from one to the next;
                classes: the last one again, as often as that was right

Both know every target before the row, also those of rows that a model predicts in the same batch. All of their state is
numbers, so that a file needs to hold only `dataclasses.asdict` of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

NAMES = ("constant", "last value")
FINEST = 1e-3  # standard deviations of the first rows' targets: no reference is surer than that


class Scored(NamedTuple):
    """The scores of one prediction."""

    nll: float
    error: float  # squared, of numbers; 1 or 0, of classes


@dataclass(frozen=True)
class Numbers:
    """Of standardised numbers so far."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0  # sum of squared deviations from the mean
    last: float = 0.0
    steps: float = 0.0  # sum of squared differences of neighbours

    def after(self, target: float) -> Numbers:
        """With one more target."""
        mean = self.mean + (target - self.mean) / (self.count + 1)
        squares = self.squares + (target - self.mean) * (target - mean)
        steps = self.steps + (target - self.last) ** 2 * (self.count > 0)
        return Numbers(self.count + 1, mean, squares, target, steps)

    def scored(self, target: float) -> tuple[Scored, ...]:
        """Both references on a target that is not known yet, in the order of NAMES."""
        spreads = self.squares / max(1, self.count), self.steps / max(1, self.count - 1)
        return tuple(_normal(target, at, v) for at, v in zip((self.mean, self.last), spreads))


@dataclass(frozen=True)
class Classes:
    """Of classes so far."""

    counts: tuple[int, ...]  # of each class
    last: int = -1
    stays: int = 0  # how often a class was that of the row before

    def after(self, target: int) -> Classes:
        """With one more target."""
        counts = tuple(c + (k == target) for k, c in enumerate(self.counts))
        return replace(self, counts=counts, last=int(target), stays=self.stays + (target == self.last))

    def scored(self, target: int) -> tuple[Scored, ...]:
        """Both references on a target that is not known yet, in the order of NAMES."""
        total, kinds = sum(self.counts), len(self.counts)
        stays = (self.stays + 1) / (total + 2)
        again = stays if target == self.last else (1 - stays) / max(1, kinds - 1)
        often = max(range(kinds), key=self.counts.__getitem__)
        constant = (self.counts[target] + 1) / (total + kinds)
        return Scored(-math.log(constant), float(target != often)), Scored(-math.log(again), float(target != self.last))


def streamed(past: Any, targets: Sequence[float]) -> tuple[Any, dict[str, list[float]]]:
    """The past after some targets, one by one; and of each reference the sums of NLL and of errors."""
    sums = [[0.0, 0.0] for _ in NAMES]
    for target in targets:
        for total, one in zip(sums, past.scored(target)):
            total[0], total[1] = total[0] + one.nll, total[1] + one.error
        past = past.after(target)
    return past, dict(zip(NAMES, sums))


def _normal(target: float, mean: float, variance: float) -> Scored:
    square, wide = (target - mean) ** 2, variance + FINEST**2
    return Scored(0.5 * (square / wide + math.log(2 * math.pi * wide)), square)
