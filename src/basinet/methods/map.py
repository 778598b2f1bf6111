"""Maximum a posteriori: one mode of the posterior. With `members=M` it is the deep ensemble.

    theta* = argmin_theta U(theta),   U = -sum_n log p(y_n | x_n, theta) - log p(theta)

A deep ensemble (Lakshminarayanan et al. 2017) is M such modes from M initialisations, each with its own shuffling.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..engine import GradientMethod, Schedule
from ..engine.method import Entry
from ..optim import SGD, Adam, Cosine, Optimizer

if TYPE_CHECKING:
    from ..testing import Bench, Check


@dataclass(frozen=True, kw_only=True)
class MAP(GradientMethod):
    """The most probable parameters, by gradient descent on the potential per example, U T / N.

    The prior is part of U, so no weight decay is needed. The default step size decays to zero along a cosine, so that
    the end is a mode and not a place around which the last batches swing.
    """

    epochs: int | None = None  # passes through the data; None: what makes 1,000 steps, and at least 10
    batch_size: int | None = 128  # examples a step; None: all
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))  # how a gradient becomes a step
    patience: int | None = None  # reports without a lower validation NLL until a member stops, at its best; None: never

    def __post_init__(self) -> None:
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"expected patience of at least 1 report, or None, got {self.patience}")

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("MAP", cls(), 1), Entry("deep ensemble", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact = bench.conjugate()
        full = cls(epochs=1000, batch_size=None, optimizer=SGD(lr=0.05, momentum=0.9))
        found = bench.fit(full, exact.problem, exact.data).mean()
        yield bench.close("mode of the conjugate posterior, full batch", "mu", found, exact.mean, 1e-12)
        batches = cls(epochs=1000, batch_size=10, optimizer=Adam(lr=Cosine(peak=0.05)))
        found = bench.fit(batches, exact.problem, exact.data).mean()
        yield bench.close("mode of the conjugate posterior, batches of 10", "mu", found, exact.mean, 1e-3)
        for cold in (bench.conjugate(temperature=0.1), bench.conjugate(temperature=0.1, temper="likelihood")):
            found = bench.fit(full, cold.problem, cold.data).mean()
            yield bench.close(f"mode at temperature 0.1 ({cold.problem.temper})", "its mu", found, cold.mean, 1e-12)
