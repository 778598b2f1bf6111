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

from ..engine.method import Entry
from ..optim import SGD, Adam
from ..repulsion.kernels import Pairs
from ..repulsion.particles import Particles, particles
from ..testing.exact import conjugate

if TYPE_CHECKING:
    from ..testing import Bench, Check


@dataclass(frozen=True, kw_only=True)
class SVGD(Particles):
    """Members that share their gradients through a kernel, and push each other apart by its slope.

    They see each other in their weights, in their outputs on the batch ("function", where `extra` adds inputs drawn
    around the batch at each step), or in what `layer` gives ("features"). One member is MAP. `SVGD.paper()` has the
    paper's settings. Members far apart have gradients divided by their number, which Adam makes up for.
    """

    @classmethod
    def paper(cls) -> SVGD:
        """The authors' settings for networks: batches of 100, median bandwidth, the posterior's own repulsion, and a
        constant step of 0.001 in units of the gradients' running root mean square (here Adam's, without momentum)."""
        return cls(batch_size=100, repulsion=1.0, optimizer=Adam(lr=1e-3, betas=(0.0, 0.9), eps=1e-6))

    def coupled_by(self, pairs: Pairs) -> tuple[Tensor, Tensor]:
        count = len(pairs.values)
        return pairs.values / count, -self.repulsion / count * pairs.slopes

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("SVGD", cls(), 10),)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        for temperature in (1.0, 2.0):
            exact = conjugate(n=6, noise=1.0, correlation=0.5, temperature=temperature)
            recipe = cls(epochs=200, batch_size=None, kernel="linear", optimizer=SGD(lr=0.3, momentum=0.8))
            measured = particles(bench, recipe, exact, 6)
            name = f"of 6 particles, kernel x'y + 1, temperature {temperature:g}"
            yield bench.close(f"mean {name}", "mu", measured.mean(0), exact.mean, 1e-6)
            covariance = torch.cov(measured.T, correction=0)
            yield bench.close(f"covariance {name}", "T Lambda^-1", covariance, exact.covariance, 1e-6)
        line = conjugate(d=1, n=10)
        variance = line.covariance[0]
        rate = float(variance * line.data.n)  # one particle would be at the mode in a step
        recipe = cls(epochs=300, batch_size=None, optimizer=SGD(lr=rate, momentum=0.8))
        measured = particles(bench, recipe, line, 10).var(0, correction=0) / variance
        known = torch.full_like(measured, 0.772)  # found by direct integration
        yield bench.close(
            "variance of 10 particles, median bandwidth", "0.772 s^2, in units of s^2", measured, known, 2e-3
        )
        mode = cls(epochs=150, batch_size=None, optimizer=SGD(lr=0.6, momentum=0.5))
        yield bench.close("one member", "mu", particles(bench, mode, exact, 1)[0], exact.mean, 1e-9)
