"""Exponential moving average of the weights along gradient descent.

    average_t = sum_{i<=t} d^(t-i) theta_i / sum_{i<=t} d^(t-i),   d = exp(-1 / (horizon x steps per epoch))

A constant step keeps the iterates swinging around the mode; their average lies closer to it (Polyak & Juditsky 1992).
One point as MAP gives, for the price of one more copy of the weights. Norm statistics are recomputed for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch

from ..core.noise import Noise
from ..core.tree import Point, ravel, tree_map
from ..engine import Descent, GradientMethod, Schedule, Step
from ..optim import SGD, Adam, Optimizer
from ..problem import Problem

if TYPE_CHECKING:
    from ..testing import Bench, Check


@dataclass(frozen=True, kw_only=True)
class EMA(GradientMethod):
    """A moving average of the weights that training visits, as one point."""

    norm: ClassVar[Literal["train", "frozen", "refresh"]] = "refresh"

    epochs: int | None = None
    """Passes through the data; None: until done, within 3,000 to 6,000 steps, or 10 passes if that is more."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    horizon: float = 5.0
    """Epochs after which a visited weight counts 1/e of the newest."""
    optimizer: Optimizer = Adam(lr=3e-3)
    """How a gradient becomes a step; constant, since the average does the settling."""
    patience: int | None = None
    """Reports without a lower validation NLL until a member stops, at its best; None: 60 where epochs is None, else
    never."""

    def __post_init__(self) -> None:
        if not 0 < self.horizon < math.inf:
            raise ValueError(f"expected a finite horizon of more than 0 epochs, got {self.horizon}")
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"expected at least 1 epoch to average over, got {self.epochs}")

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def forgetting(self, n: int) -> float:
        """-log d, for n examples: the part of the horizon that one step is."""
        return min(self.batch_size or n, n) / (self.horizon * n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        average = tree_map(torch.zeros_like, point.params)  # the first step puts all weight on the first iterate
        return Descent(point.params, point.buffers, self.optimizer.init(point.params), average)

    def absorb(self, state: Descent, step: Step) -> tuple[Descent, None]:
        rate = self.forgetting(step.batch.total)
        t = (step.batch.step + 1).double()
        share = torch.expm1(-rate * torch.ones_like(t)) / torch.expm1(-rate * t)  # of the newest iterate; 1 at first
        average = tree_map(lambda a, x: a + share.to(a.dtype) * (x - a), state.memory, state.params)
        return Descent(state.params, state.buffers, state.moments, average), None

    def point(self, state: Descent) -> Point:
        return Point(state.memory, state.buffers)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact = bench.conjugate()
        rate, epochs = 0.1, 40
        recipe = cls(epochs=epochs, batch_size=None, horizon=7.0, optimizer=SGD(lr=rate))
        mean = ravel(bench.fit(recipe, exact.problem, exact.data).mean())
        start = ravel(
            bench.fit(cls(epochs=1, batch_size=None, optimizer=SGD(lr=0.0)), exact.problem, exact.data).mean()
        )
        shrink = torch.eye(len(start), dtype=torch.float64) - rate * exact.precision / exact.data.n
        decay = math.exp(-recipe.forgetting(exact.data.n))
        weights = torch.tensor([decay ** (epochs - i) for i in range(1, epochs + 1)], dtype=torch.float64)
        visited = [
            exact.mean + torch.linalg.matrix_power(shrink, i) @ (start - exact.mean) for i in range(1, epochs + 1)
        ]
        average = torch.einsum("i,id->d", weights / weights.sum(), torch.stack(visited))
        says = "average of mu + (I - eta Lambda / N)^i (theta_0 - mu)"
        yield bench.close("average along gradient descent on a quadratic", says, mean, average, 1e-10)
        settled = cls(epochs=400, batch_size=10, horizon=50.0, optimizer=SGD(lr=0.2))
        mean = ravel(bench.fit(settled, exact.problem, exact.data).mean())
        raw = bench.fit(cls(epochs=400, batch_size=10, horizon=1e-3, optimizer=SGD(lr=0.2)), exact.problem, exact.data)
        ratio = float((mean - exact.mean).norm() / (ravel(raw.mean()) - exact.mean).norm())
        yield bench.close(
            "distance to mu over that of the last iterate, noisy steps",
            "< 1/2",
            torch.tensor(ratio),
            torch.tensor(0.0),
            0.5,
        )
