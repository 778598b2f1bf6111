"""Wasserstein gradient descent: members are particles that follow the posterior and push each other apart.

    theta_i <- theta_i - eta [grad U(theta_i) + repulsion grad log q(theta_i)]

q is the density of the members themselves, whose score is estimated from them (`basinet.repulsion`): by a kernel
density (kde), or by Stein's identity (sge, ssge). It is the gradient flow of KL(q || posterior) (D'Angelo & Fortuin
2021, "Repulsive deep ensembles are Bayesian"). At repulsion 1 and with many members these are a sample of the
posterior, but for the kernel: kde with bandwidth h has the particle covariance Sigma - h^2 I where the posterior has
Sigma. An elementwise optimiser that rescales gradients, such as Adam, rescales the repulsion too.
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
from ..repulsion.scores import RIDGE, check_estimate, score_matrix
from ..repulsion.spaces import Coupling, Space, Step

if TYPE_CHECKING:
    from ..testing import Bench, Check


@dataclass(frozen=True, kw_only=True)
class WGD(CoupledMethod):
    """Members that follow the posterior and push each other apart, by the score of their own density.

    They see each other in their weights, in their outputs on the batch ("function", where `extra` adds inputs drawn
    around the batch at each step), or in what `layer` gives ("features"). One member is MAP. `WGD.paper()` has the
    settings of the reference implementation.
    """

    epochs: int | None = None  # passes through the data; None: what makes 1,000 steps, and at least 10
    batch_size: int | None = 128  # examples a step, the same for all members; None: all
    space: str = "weights"  # where members repel each other: weights, function or features
    layer: str | None = None  # the submodule whose output is compared, by name, for space "features"
    extra: int = 0  # inputs added to the batch's for space "function", drawn at each step: normal, with its mean
    reach: float = 2.0  # standard deviation of extra inputs, in those of the batch, feature by feature
    prior_draws: int | None = 0  # a step, to tell the prior of outputs by; None: one a member; 0: it pulls on weights
    estimate: str = "kde"  # of the members' score: kde (kernel density), sge (Stein), ssge (spectral Stein)
    ridge: float = RIDGE  # eta, added to the kernel's diagonal by sge and ssge
    kernel: str = "rbf"  # between members: rbf, imq (inverse multiquadric), or linear (not for kde)
    bandwidth: float | None = None  # h of the kernel, in units of the space; None: by the median at each step
    repulsion: float = 1.0  # strength relative to the posterior: 1 is Bayes at any N, 0 a deep ensemble on one batch
    anneal: str = "none"  # how the posterior's pull grows from zero: none, linear, tanh or cyclic
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))  # how a gradient becomes a step
    patience: int | None = None  # reports without a lower validation NLL until all stop, at their best; None: never

    def __post_init__(self) -> None:
        self._space()
        check_estimate(self.estimate, self._kernel())
        check_anneal(self.anneal)
        for name in ("repulsion", "ridge"):
            if not 0 <= getattr(self, name) < float("inf"):
                raise ValueError(f"expected a finite {name} of at least 0, got {getattr(self, name)}")
        if self.patience is not None and self.patience < 1:
            raise ValueError(f"expected patience of at least 1 report, or None, got {self.patience}")

    @classmethod
    def paper(cls, space: str = "weights", layer: str | None = None) -> WGD:
        """The reference implementation's settings for kde (its networks: 10 to 100 members, noise or class likelihood
        at scale 1): Adam at a constant 0.01, batches of 128, median bandwidth, the posterior's own repulsion, and a
        prior of outputs that is known by as many draws as members."""
        draws = None if space == "function" else 0
        return cls(
            space=space, layer=layer, batch_size=128, prior_draws=draws, repulsion=1.0, optimizer=Adam(lr=0.01)
        )

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
            score = score_matrix(self.estimate, kernel.pairs(members), self.ridge)
            return Coupling(pull, None, self.repulsion * score, members)

        return self._space().gradient(couple, Step(state, batch, problem, noise, lift))

    def _space(self) -> Space:
        return Space(self.space, self.layer, self.extra, self.reach, self.prior_draws)

    def _kernel(self) -> Kernel:
        return Kernel(self.kernel, self.bandwidth)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("WGD (weights)", cls(), 10), Entry("WGD (function)", cls(space="function"), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        line, members = conjugate(d=1, n=10), 100
        variance = line.covariance[0]
        for share in (0.3, 0.5):
            rate = float(0.3 * variance * line.data.n)  # a third of the way to the mode
            recipe = cls(epochs=150, batch_size=None, bandwidth=float(share * variance) ** 0.5, optimizer=SGD(lr=rate))
            found = _particles(bench, recipe, line, members).var(0, correction=0) / variance
            name = f"variance of {members} particles, kde, h^2 = {share} s^2"
            yield bench.close(name, "s^2 - h^2, in units of s^2", found, torch.full_like(found, 1 - share), 0.02)
        for temperature in (1.0, 0.25):
            exact = conjugate(n=6, noise=1.0, correlation=0.5, temperature=temperature)
            descent = SGD(lr=0.6)  # momentum would carry particles through each other
            stein = cls(epochs=150, batch_size=None, estimate="sge", kernel="linear", ridge=1e-6, optimizer=descent)
            found = _particles(bench, stein, exact, 8)
            name = f"of 8 particles, sge with kernel x'y + 1, temperature {temperature:g}"
            yield bench.close(f"mean {name}", "mu", found.mean(0), exact.mean, 1e-5)
            covariance = torch.cov(found.T, correction=0)
            yield bench.close(f"covariance {name}", "T Lambda^-1", covariance, exact.covariance, 1e-5)
        mode = cls(epochs=150, batch_size=None, optimizer=SGD(lr=0.6, momentum=0.5))
        yield bench.close("one member", "mu", _particles(bench, mode, exact, 1)[0], exact.mean, 1e-9)


def _particles(bench: Bench, recipe: WGD, exact: Conjugate, members: int) -> Tensor:
    """(members, d)."""
    return ravel(bench.fit(recipe, exact.problem, exact.data, members).sample(1), 2)[:, 0]
