"""Snapshots: one run of descent that anneals again and again, and what it found at the end of each cycle.

    eta_t = peak (1 + cos(pi (t mod L) / L)) / 2,   L = steps / cycles;   kept: theta_L, theta_2L, ..., theta_steps

Each cycle begins with a step size that leaves the last mode and ends with one that settles in the next (Huang et al.
2017): K modes for the price of one training. They are less diverse than K runs, since each starts where the last ended.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Point, nbytes, ravel, stack, take
from ..data import Data, Stream
from ..engine import Demand, Descent, Finished, GradientMethod, Predicting, Sample, Schedule, Step
from ..engine.method import Entry
from ..families import Empirical, Family
from ..optim import SGD, Adam, Cyclic, Optimizer
from ..problem import Problem
from ..problem.spread import set_noise

if TYPE_CHECKING:
    from ..testing import Bench, Check

SETTLES = 500  # steps of a cycle, and at least 5 epochs, that find the next mode from the last


@dataclass(frozen=True, kw_only=True)
class Snapshot(GradientMethod):
    """The last weights of each cycle of a learning rate that falls to zero and starts again, equally weighted.

    A learning rate given as a number becomes `Cyclic` with that peak. Steps are rounded up to whole cycles. Each
    snapshot keeps its own norm statistics.
    """

    usual: ClassVar[bool] = True

    epochs: int | None = None
    """Passes through the data in all cycles; None: 500 steps per cycle, and at least 5 epochs."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    cycles: int = 5
    """Snapshots kept, one at the end of each cycle."""
    optimizer: Optimizer = Adam(lr=3e-3)
    """How a gradient becomes a step; its lr is the peak of every cycle."""

    def __post_init__(self) -> None:
        if not (isinstance(self.cycles, int) and self.cycles >= 1):
            raise ValueError(f"expected at least 1 cycle, got {self.cycles!r}")
        if self.epochs is not None and self.epochs < 1:
            raise ValueError(f"expected at least 1 epoch, got {self.epochs}")
        rate = _cyclic(self.optimizer.lr, self.cycles)
        object.__setattr__(self, "optimizer", replace(self.optimizer, lr=rate))  # type: ignore[type-var]

    def schedule(self, n: int) -> Schedule:
        planned = Schedule.of_epochs(5 if self.epochs is None else self.epochs, self.batch_size, n)
        length = max(SETTLES, planned.steps) if self.epochs is None else -(-planned.steps // self.cycles)
        return Schedule(length * self.cycles, planned.batch_size, bank=self.cycles)

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        return Demand(self.cycles * nbytes(point), predict=Predicting(self.cycles, self.cycles))

    def absorb(self, state: Descent, step: Step) -> tuple[Descent, Sample]:
        length = self.schedule(step.batch.total).steps // self.cycles
        return state, Sample((step.batch.step + 1) % length == 0, Point(state.params, state.buffers))

    def finish(
        self,
        state: Descent,
        samples: Any,
        problem: Problem,
        data: Data | None,
        val: Data | None,
        noise: Noise,
    ) -> Family | Finished:
        """The snapshots, each with the noise set by validation data."""
        if val is None or problem.likelihood.spread is None:
            return Empirical(samples.params, samples.buffers, self.cycles)
        set_ = [set_noise(problem, take(Point(samples.params, samples.buffers), k), val) for k in range(self.cycles)]
        points = stack([one.point for one in set_])
        factors = [one.factor for one in set_]
        return Finished(Empirical(points.params, points.buffers, self.cycles), {"noise_factor": factors})

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("snapshots", cls(), 1),)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact = bench.conjugate()
        cycles, length, peak = 4, 50, 0.3
        recipe = cls(epochs=cycles * length, batch_size=None, cycles=cycles, optimizer=SGD(lr=peak))
        steps = recipe.schedule(exact.data.n).steps
        rates = torch.as_tensor(recipe.optimizer.learning_rate(torch.arange(steps), steps)).reshape(cycles, length)
        yield bench.close(
            "rate at the start of each cycle, over the peak", "1", rates[:, 0] / peak, torch.ones(cycles), 1e-12
        )
        ends = rates[:, -1] / peak
        yield bench.close("rate at the end of each cycle, over the peak", "0", ends, torch.zeros(cycles), 1e-3)
        yield bench.close("rate a cycle later", "the same", rates[1:], rates[:-1], 1e-12)

        def kept(recipe: Snapshot) -> Tensor:
            family = take(bench.fit(recipe, exact.problem, exact.data).parts[0].family, 0)
            assert isinstance(family, Empirical)
            return ravel(family.params, 1)  # (cycles, d)

        still = cls(epochs=1, batch_size=None, cycles=1, optimizer=SGD(lr=0.0))
        visited, along = kept(still)[0] - exact.mean, []
        for step, eta in enumerate(rates.reshape(-1)):
            visited = visited - eta * (exact.precision @ visited) / exact.data.n
            along += [exact.mean + visited] if (step + 1) % length == 0 else []
        says = "mu + prod_t (I - eta_t Lambda / N) (theta_0 - mu), t to the end of each cycle"
        yield bench.close(
            "snapshots along gradient descent on a quadratic", says, kept(recipe), torch.stack(along), 1e-10
        )
        for name, batch_size, epochs, rate, tolerance in (
            ("full batch", None, 900, 0.2, 1e-6),
            ("batches of 10", 10, 300, 0.05, 0.02),  # an eighth of the posterior's standard deviation
        ):
            descent = SGD(lr=rate, momentum=0.9)
            snapshots = kept(cls(epochs=epochs, batch_size=batch_size, cycles=3, optimizer=descent))
            count = torch.tensor(len(snapshots))
            yield bench.close(f"number of snapshots, {name}", "that of cycles", count, torch.tensor(3), 0.0)
            center = exact.mean.expand_as(snapshots)
            yield bench.close(f"each snapshot on the conjugate posterior, {name}", "mu", snapshots, center, tolerance)


def _cyclic(rate: Any, cycles: int) -> Cyclic:
    """The rate of all cycles, from its peak or as it was given."""
    if isinstance(rate, (int, float)):
        return Cyclic(peak=rate, cycles=cycles)
    if not isinstance(rate, Cyclic) or rate.cycles != cycles:
        raise ValueError(
            f"expected a learning rate that falls in {cycles} cycles, got {rate}: give the peak as a number, such as "
            f"optimizer=SGD(lr=0.1), or Cyclic(peak=..., cycles={cycles})"
        )
    return rate
