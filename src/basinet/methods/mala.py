"""The Metropolis-adjusted Langevin algorithm: one step along the gradient with noise, accepted or rejected.

    y = x - e^2/2 M^-1 dU(x) + e M^-1/2 z,   accepted with min(1, p(y) q(x | y) / (p(x) q(y | x)))

It is Hamiltonian Monte Carlo with trajectories of one leapfrog step (Roberts & Rosenthal 1998: accept .574). Short
steps explore by a random walk: more gradients for a draw than HMC takes in many dimensions, and nothing to tune.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from ..chains import Metropolis
from ..chains.proof import exact_checks

if TYPE_CHECKING:
    from ..testing import Bench, Check


@dataclass(frozen=True, kw_only=True)
class MALA(Metropolis):
    """Langevin steps with full batches, accepted or rejected: chains that warm up together, from trained networks."""

    target: ClassVar[float] = 0.574

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        yield from exact_checks(bench, cls(steps=800, warmup=300, draws=20), 64)
