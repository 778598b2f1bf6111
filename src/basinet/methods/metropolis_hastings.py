"""Metropolis-Hastings: random steps, accepted where the posterior is higher, and otherwise with its ratio.

    y = x + e M^-1/2 z,   accepted with min(1, p(y) / p(x))

(Metropolis et al. 1953). It needs no gradient, so that any likelihood will do; in many dimensions it hardly moves, and
says so: acceptance .234 is best there (Roberts, Gelman & Gilks 1997).
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
class MetropolisHastings(Metropolis):
    """A random walk with full batches, accepted or rejected, without gradients: for small problems and for
    comparison."""

    target: ClassVar[float] = 0.234
    slopes: ClassVar[bool] = False

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        yield from exact_checks(bench, cls(steps=1200, warmup=400, draws=20), 64)
