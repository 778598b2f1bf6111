"""Stochastic weight averaging: the mean of the weights that descent visits after training.

    theta_SWA = 1/T sum_t theta_t,   theta_t = the weights t c steps after a mode, at a constant or cyclic step size

Steps that do not shrink swing around the mode, inside the flat region it lies in; their mean is near its centre
(Izmailov et al. 2018). The mean was never visited: norm statistics are recomputed for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Point, ravel
from ..engine import Descent, GradientMethod, Method, Schedule
from ..engine.iterates import check_iterates, plan, share, toward
from ..optim import SGD, Optimizer
from ..problem import Batch, Problem

if TYPE_CHECKING:
    from ..testing import Bench, Check


@dataclass(frozen=True, kw_only=True)
class SWA(GradientMethod):
    """The mean of weights visited after training at a step size that does not shrink, as one point.

    With `optimizer=SGD(lr=Cyclic(peak=..., cycles=...))`, as many cycles as iterates, the step size falls and rises
    again, and each iterate is the end of a cycle.
    """

    norm: ClassVar[Literal["train", "frozen", "refresh"]] = "refresh"

    base: Method | None = None  # the training that averaging follows; None: MAP(). Not run where start= is given
    iterates: int = 40  # visited weights that are averaged
    every: int | None = None  # steps from one of them to the next; None: an epoch, as published
    batch_size: int | None = 128  # examples a step; None: all
    optimizer: Optimizer = SGD(lr=0.05, momentum=0.9)  # how a gradient becomes a step; as published for CIFAR-100

    def __post_init__(self) -> None:
        check_iterates(self.iterates, self.every, self.optimizer, self.base)

    def schedule(self, n: int) -> Schedule:
        return plan(self.iterates, self.every, self.batch_size, n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        return Descent(point.params, point.buffers, self.optimizer.init(point.params), point.params)

    def absorb(self, state: Descent, batch: Batch) -> Descent:
        gap = self.schedule(batch.total).steps // self.iterates
        mean = toward(state.memory, state.params, share(batch.step, gap))
        return Descent(state.params, state.buffers, state.moments, mean)

    def point(self, state: Descent) -> Point:
        return Point(state.memory, state.buffers)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact, rate, count = bench.conjugate(), 0.1, 30

        def mean(steps: int, eta: float) -> Tensor:
            recipe = cls(iterates=steps, every=1, batch_size=None, optimizer=SGD(lr=eta))
            return ravel(bench.fit(recipe, exact.problem, exact.data).mean())

        start = mean(1, 0.0) - exact.mean
        shrink = torch.eye(len(start), dtype=torch.float64) - rate * exact.precision / exact.data.n
        visited = torch.stack([torch.linalg.matrix_power(shrink, t) @ start for t in range(1, count + 1)])
        says = "average of mu + (I - eta Lambda / N)^t (theta_0 - mu)"
        expected = exact.mean + visited.mean(0)
        yield bench.close("mean along gradient descent on a quadratic", says, mean(count, rate), expected, 1e-10)
        known, rate, count, members = bench.noisy(), 0.9, 20, 400  # iterates that are correlated, and many members
        made = bench.fit(cls(iterates=count, every=2, optimizer=SGD(lr=rate)), known.problem, known.data, members)
        means = torch.stack([p.params["weight"] for p in made.points()])  # (members, d)
        rho = known.correlation(rate, 2)
        spread = sum((count - abs(k)) * rho ** abs(k) for k in range(1 - count, count)) / count**2
        variance = spread * known.stationary(rate).diagonal()
        z = (means.mean(0) - known.mean) / (variance / members).sqrt()
        yield bench.close("mean over members, in standard errors", "mu", z, torch.zeros_like(z), 4.5)
        z = (means.var(0) / variance - 1) * ((members - 1) / 2) ** 0.5
        says = "sum_k (T - |k|) rho^|k| / T^2 times that of an iterate"
        yield bench.close("variance over members, in standard errors", says, z, torch.zeros_like(z), 4.5)
