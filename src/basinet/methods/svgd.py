"""Stein variational gradient descent: members are particles that share their gradients and push each other apart.

    theta_i <- theta_i - eta/M sum_j [k_ij grad U(theta_j) - repulsion grad_{theta_j} k_ij],  k_ij = k(theta_i, theta_j)

(Liu & Wang 2016.) At repulsion 1 and with many members these are a sample of the posterior. With the kernel x'y + 1
and more members than parameters, their mean and covariance (divisor M) are exact where the posterior is normal; with a
radial kernel a few members spread too little.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, ravel
from ..engine import CoupledMethod, Descent, Info, Lift, Schedule
from ..engine.method import Entry
from ..optim import SGD, Adam, Cosine, Optimizer
from ..problem import Batch, Problem
from ..problem.exact import Conjugate, conjugate
from ..repulsion.anneal import anneal_weight, check_anneal
from ..repulsion.kernels import Kernel
from ..repulsion.spaces import Coupling, Space, Step

if TYPE_CHECKING:
    from ..testing import Bench, Check


@dataclass(frozen=True, kw_only=True)
class SVGD(CoupledMethod):
    """Members that share their gradients through a kernel, and push each other apart by its slope.

    They see each other in their weights, in their outputs on the batch ("function", where `extra` adds inputs drawn
    around the batch at each step), or in what `layer` gives ("features"). One member is MAP. `SVGD.paper()` has the
    paper's settings. Members far apart have gradients divided by their number, which Adam makes up for.
    """

    epochs: int | None = None  # passes through the data; None: what makes 1,000 steps, and at least 10
    batch_size: int | None = 128  # examples a step, the same for all members; None: all
    space: str = "weights"  # where members see each other: weights, function or features
    layer: str | None = None  # the submodule whose output is compared, by name, for space "features"
    extra: int = 0  # inputs added to the batch's for space "function", drawn at each step: normal, with its mean
    reach: float = 2.0  # standard deviation of extra inputs, in those of the batch, feature by feature
    prior_draws: int | None = 0  # a step, to tell the prior of outputs by; None: one a member; 0: it pulls on weights
    kernel: str = "rbf"  # between members: rbf, imq (inverse multiquadric), or linear
    bandwidth: float | None = None  # h of the kernel, in units of the space; None: by the median at each step
    repulsion: float = 1.0  # strength relative to the posterior: 1 is Bayes at any N
    anneal: str = "none"  # how the posterior's pull grows from zero: none, linear, tanh or cyclic
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))  # how a gradient becomes a step
    patience: int | None = None  # reports without a lower validation NLL until all stop, at their best; None: never

    def __post_init__(self) -> None:
        self._space(), self._kernel()
        check_anneal(self.anneal)
        if not 0 <= self.repulsion < float("inf"):
            raise ValueError(f"expected a finite repulsion of at least 0, got {self.repulsion}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"expected patience of at least 1 report, or None, got {self.patience}")

    @classmethod
    def paper(cls) -> SVGD:
        """The authors' settings for networks: batches of 100, median bandwidth, the posterior's own repulsion, and a
        constant step of 0.001 in units of the gradients' running root mean square (here Adam's, without momentum)."""
        return cls(batch_size=100, repulsion=1.0, optimizer=Adam(lr=1e-3, betas=(0.0, 0.9), eps=1e-6))

    def adapt(self, problem: Problem) -> Problem:
        return self._space().adapt(problem)

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def gradient(  # type: ignore[override]
        self, state: Descent, batch: Batch, problem: Problem, noise: Noise, lift: Lift
    ) -> tuple[Params, Info]:
        pull = anneal_weight(self.anneal, batch.step, self.schedule(batch.total).steps)

        def couple(values: list[Tensor]) -> Coupling:
            kernel = self._kernel()
            members = kernel.seen(values)
            pairs, count = kernel.pairs(members), len(values[0])
            return Coupling(pull, pairs.values / count, -self.repulsion / count * pairs.slopes, members)

        return self._space().gradient(couple, Step(state, batch, problem, noise, lift))

    def _space(self) -> Space:
        return Space(self.space, self.layer, self.extra, self.reach, self.prior_draws)

    def _kernel(self) -> Kernel:
        return Kernel(self.kernel, self.bandwidth)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("SVGD", cls(), 10),)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        for temperature in (1.0, 2.0):
            exact = conjugate(n=6, noise=1.0, correlation=0.5, temperature=temperature)
            recipe = cls(epochs=200, batch_size=None, kernel="linear", optimizer=SGD(lr=0.3, momentum=0.8))
            found = _particles(bench, recipe, exact, 6)
            name = f"of 6 particles, kernel x'y + 1, temperature {temperature:g}"
            yield bench.close(f"mean {name}", "mu", found.mean(0), exact.mean, 1e-6)
            covariance = torch.cov(found.T, correction=0)
            yield bench.close(f"covariance {name}", "T Lambda^-1", covariance, exact.covariance, 1e-6)
        line = conjugate(d=1, n=10)
        variance = line.covariance[0]
        rate = float(variance * line.data.n)  # one particle would be at the mode in a step
        recipe = cls(epochs=300, batch_size=None, optimizer=SGD(lr=rate, momentum=0.8))
        found = _particles(bench, recipe, line, 10).var(0, correction=0) / variance
        known = torch.full_like(found, 0.772)  # found by direct integration
        yield bench.close(
            "variance of 10 particles, median bandwidth", "0.772 s^2, in units of s^2", found, known, 2e-3
        )
        mode = cls(epochs=150, batch_size=None, optimizer=SGD(lr=0.6, momentum=0.5))
        yield bench.close("one member", "mu", _particles(bench, mode, exact, 1)[0], exact.mean, 1e-9)


def _particles(bench: Bench, recipe: SVGD, exact: Conjugate, members: int) -> Tensor:
    """(members, d)."""
    return ravel(bench.fit(recipe, exact.problem, exact.data, members).sample(1), 2)[:, 0]
