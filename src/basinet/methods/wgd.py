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

from ..engine.method import Entry
from ..optim import SGD, Adam
from ..repulsion.kernels import Kernel, Pairs
from ..repulsion.particles import Particles, particles
from ..repulsion.scores import RIDGE, check_estimate, score_matrix
from ..testing.exact import conjugate

if TYPE_CHECKING:
    from ..testing import Bench, Check


@dataclass(frozen=True, kw_only=True)
class WGD(Particles):
    """Members that follow the posterior and push each other apart, by the score of their own density.

    They see each other in their weights, in their outputs on the batch ("function", where `extra` adds inputs drawn
    around the batch at each step), or in what `layer` gives ("features"). One member is MAP; repulsion 0 is a deep
    ensemble on one batch. `WGD.paper()` has the settings of the reference implementation.
    """

    estimate: str = "kde"
    """How the members' score is estimated: kde (kernel density; not linear), sge (Stein), ssge (spectral Stein)."""
    ridge: float = RIDGE
    """Eta, added to the kernel's diagonal by sge and ssge."""

    @classmethod
    def paper(cls, space: str = "weights", layer: str | None = None) -> WGD:
        """The reference implementation's settings for kde (its networks: 10 to 100 members, noise or class likelihood
        at scale 1): Adam at a constant 0.01, batches of 128, median bandwidth, the posterior's own repulsion, and a
        prior of outputs that is known by as many draws as members."""
        draws = None if space == "function" else 0
        return cls(space=space, layer=layer, batch_size=128, prior_draws=draws, repulsion=1.0, optimizer=Adam(lr=0.01))

    def check(self) -> None:
        check_estimate(self.estimate, Kernel(self.kernel, self.bandwidth))
        if not 0 <= self.ridge < float("inf"):
            raise ValueError(f"expected a finite ridge of at least 0, got {self.ridge}")

    def coupled_by(self, pairs: Pairs) -> tuple[None, Tensor]:
        return None, self.repulsion * score_matrix(self.estimate, pairs, self.ridge)

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
            measured = particles(bench, recipe, line, members).var(0, correction=0) / variance
            name = f"variance of {members} particles, kde, h^2 = {share} s^2"
            yield bench.close(name, "s^2 - h^2, in units of s^2", measured, torch.full_like(measured, 1 - share), 0.02)
        for temperature in (1.0, 0.25):
            exact = conjugate(n=6, noise=1.0, correlation=0.5, temperature=temperature)
            descent = SGD(lr=0.6)  # momentum would carry particles through each other
            stein = cls(epochs=150, batch_size=None, estimate="sge", kernel="linear", ridge=1e-6, optimizer=descent)
            measured = particles(bench, stein, exact, 8)
            name = f"of 8 particles, sge with kernel x'y + 1, temperature {temperature:g}"
            yield bench.close(f"mean {name}", "mu", measured.mean(0), exact.mean, 1e-5)
            covariance = torch.cov(measured.T, correction=0)
            yield bench.close(f"covariance {name}", "T Lambda^-1", covariance, exact.covariance, 1e-5)
        mode = cls(epochs=150, batch_size=None, optimizer=SGD(lr=0.6, momentum=0.5))
        yield bench.close("one member", "mu", particles(bench, mode, exact, 1)[0], exact.mean, 1e-9)
