"""Stochastic weight averaging: the mean of the weights that descent visits after training.

    theta_SWA = 1/T sum_t theta_t,   theta_t = the weights t c steps after a mode, at a constant or cyclic step size

Steps that do not shrink swing around the mode, inside the flat region it lies in; their mean is near its centre
(Izmailov et al. 2018). The mean was never visited: norm statistics are recomputed for it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ..averaging import Averaging, share, toward
from ..core.noise import Noise
from ..core.tree import Point, ravel
from ..engine import Descent, Step
from ..optim import SGD
from ..problem import Problem

if TYPE_CHECKING:
    from ..testing import Bench, Check


@dataclass(frozen=True, kw_only=True)
class SWA(Averaging):
    """The mean of weights visited after training at a step size that does not shrink, as one point.

    Given validation data, the step size is chosen on them for each member, which stays where it starts if none gains.
    With `optimizer=SGD(lr=Cyclic(peak=..., cycles=...))`, as many cycles as iterates, the step size falls and rises
    again, and each iterate is the end of a cycle.
    """

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        return Descent(point.params, point.buffers, self.optimizer.init(point.params), point.params)

    def absorb(self, state: Descent, step: Step) -> tuple[Descent, None]:
        mean = toward(state.memory, state.params, share(step.batch.step, self.gap(step.batch.total)))
        return Descent(state.params, state.buffers, state.moments, mean), None

    def point(self, state: Descent) -> Point:
        return Point(state.memory, state.buffers)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact, rate, count = bench.conjugate(), 0.1, 30
        still = cls(iterates=1, every=1, batch_size=None, optimizer=SGD(lr=0.0))  # where the base ended
        start = bench.fit(still, exact.problem, exact.data)
        recipe = cls(iterates=count, every=1, batch_size=None, optimizer=SGD(lr=rate), unit_noise=False)
        mean = bench.fit(recipe, exact.problem, exact.data, start=start).mean()
        away = ravel(start.mean()) - exact.mean
        shrink = torch.eye(len(away), dtype=torch.float64) - rate * exact.precision / exact.data.n
        visited = torch.stack([torch.linalg.matrix_power(shrink, t) @ away for t in range(1, count + 1)])
        says = "average of mu + (I - eta Lambda / N)^t (theta_0 - mu)"
        expected = exact.mean + visited.mean(0)
        yield bench.close("mean along gradient descent on a quadratic", says, mean, expected, 1e-10)
        known, rate, count, members = bench.noisy(), 0.9, 20, 400  # iterates that are correlated, and many members
        start = bench.fit(still, known.problem, known.data)
        recipe = cls(iterates=count, every=2, optimizer=SGD(lr=rate), unit_noise=False)
        posterior = bench.fit(recipe, known.problem, known.data, members, start=start)
        means = torch.stack([p.params["weight"] for p in posterior.points()])  # (members, d)
        rho, t = known.correlation(rate, 2), torch.arange(1, count + 1, dtype=torch.float64)
        expected = known.mean + (rho**t).mean() * (ravel(start.mean()) - known.mean)
        spread = (rho ** (t[:, None] - t).abs() - rho ** (t[:, None] + t)).mean()
        variance = spread * known.stationary(rate).diagonal()
        z = (means.mean(0) - expected) / (variance / members).sqrt()
        says = "mu + sum_t rho^t (theta_0 - mu) / T"
        yield bench.close("mean over members under noise, in standard errors", says, z, torch.zeros_like(z), 4.5)
        z = (means.var(0) / variance - 1) * ((members - 1) / 2) ** 0.5
        says = "sum_st (rho^|s-t| - rho^(s+t)) / T^2 times the stationary one"
        yield bench.close("variance over members under noise, in standard errors", says, z, torch.zeros_like(z), 4.5)
