"""Hamiltonian Monte Carlo: proposals far away along trajectories of constant energy, accepted or rejected exactly.

    H(q, p) = U(q) + p' M^-1 p / 2;   accepted with min(1, exp(H_0 - H)), so that draws are exact at any step size

(Duane et al. 1987; Neal 2011). The warm-up finds the step size for an acceptance, a diagonal mass matrix, and the
length of trajectories: by ChEES across chains, or pi sigma_prior / 2 (Izmailov et al. 2021), a quarter of the period
in the prior, or a number. The network is the one that predicts: without dropout, norm statistics as at the start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ..chains import Metropolis, Moving
from ..chains.proof import exact_checks
from ..core.tree import Params
from ..problem import Problem
from ..problem.priors import Normal

if TYPE_CHECKING:
    from ..testing import Bench, Check


CUT = 1.2  # times the steps that there are: what is wanted beyond is said


@dataclass(frozen=True, kw_only=True)
class HMC(Metropolis):
    """Hamiltonian Monte Carlo with full batches: chains that warm up together, from trained networks.

    Members are chains; give at least 4. Draws are kept in order, `bn.diagnose` judges them.
    """

    enough: ClassVar[int] = 6000

    length: float | Literal["chees", "prior"] = "chees"
    """Length of trajectories, or how it is found."""
    leapfrog: int = 64
    """The most steps of a trajectory; fewer if steps= would not last for all draws."""
    jitter: bool = True
    """Whether lengths vary, by up to 40 %, so that no period is met."""
    acceptance: float = 0.8
    """The acceptance for which the step size is found."""

    def __post_init__(self) -> None:
        super().__post_init__()
        number = isinstance(self.length, (int, float)) and not isinstance(self.length, bool)
        if not (number and 0 < float(self.length) < math.inf) and self.length not in ("chees", "prior"):
            raise ValueError(f"expected a length of more than 0, 'chees' or 'prior', got {self.length!r}")
        if self.leapfrog < 1:
            raise ValueError(f"expected at least 1 leapfrog step in a trajectory, got {self.leapfrog}")
        if not 0 < self.acceptance < 1:
            raise ValueError(f"expected an acceptance between 0 and 1, got {self.acceptance}")

    @property
    def target(self) -> float:  # type: ignore[override]
        """Acceptance."""
        return self.acceptance

    @property
    def adapts(self) -> bool:  # type: ignore[override]
        """Whether chains find the length together."""
        return self.length == "chees"

    @property
    def most(self) -> int:
        return min(self.leapfrog, max(1, (self.total - self.warm) // (self.draws + 1)))  # so that all draws are made

    @property
    def jitters(self) -> bool:
        return self.jitter

    def remarks(self, state: Moving) -> Iterable[str]:
        """Where trajectories were cut short."""
        wanted = float((state.length.log - state.pace.log_size).exp())
        if wanted < CUT * self.most:
            return
        why = f"leapfrog={self.leapfrog} allows" if self.most == self.leapfrog else "steps= lasts for"
        more = "leapfrog=" if self.most == self.leapfrog else "steps=, or keep fewer draws"
        longer = "longer ones" if self.adapts else f"{wanted:,.0f}"
        yield (
            f"trajectories were cut at {self.most} leapfrog steps, the most that {why}, although {longer} would be "
            f"better: draws are exact but mix more slowly; raise {more}"
        )

    def first_length(self, problem: Problem, params: Params) -> float:
        if self.length == "chees":
            return 1.0 if self.step_size is None else self.step_size
        if self.length != "prior":
            return float(self.length)
        if not isinstance(problem.prior, Normal):
            raise ValueError(
                f"length='prior' is pi sigma sqrt(T) / 2 for a normal prior, got {type(problem.prior).__name__}: give "
                "a number, or 'chees'"
            )
        network, _ = problem.split(params)
        scales = problem.prior.scales(network)
        return math.pi / 2 * max(scales.values()) * math.sqrt(problem.prior_temperature * self.temperature)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        yield from exact_checks(bench, cls(steps=600, warmup=300, draws=20), 64)
