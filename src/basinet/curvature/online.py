"""Prior and noise by marginal likelihood while the parameters are trained (Immer et al. 2021).

Every so often the evidence of a Laplace approximation at the parameters of the moment is climbed in the precision of
the prior and in the noise, whose logarithms move by at most LEAP at a time: far from a mode it says little. Where
parameters and both stand still, the parameters are the mode under that prior and noise, and these are a maximum of the
evidence: at a mode it changes with them as if the mode stayed where it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from ..core.tree import Params
from ..problem import Problem
from ..problem.likelihoods import Gaussian, Likelihood
from ..problem.priors import Normal
from . import structures
from .evidence import LOG_NOISE, Evidence
from .gaussians import CurvedDiagonal, CurvedFull, CurvedKronecker
from .passes import Passes

Structure = Literal["full", "kronecker", "diagonal"]
STRUCTURES: tuple[Structure, ...] = ("full", "kronecker", "diagonal")
TUNED = ("marglik", "layers")  # one factor of the prior's precision for all parameters, or one per layer
LEAP = 1.0  # of a logarithm at a time


class Step(NamedTuple):
    """One step up the evidence."""

    factors: dict[str, float]  # by which the prior's precision is multiplied, of each tensor
    log_noise: float | None  # where it is looked for
    log_evidence: float  # after the step


def check(problem: Problem, with_noise: bool) -> None:
    """Raises where a problem has no prior and noise that the evidence is a function of."""
    if not isinstance(problem.prior, Normal):
        raise ValueError(
            f"the marginal likelihood is that of a Normal prior, got {type(problem.prior).__name__}: use "
            "bn.priors.Normal"
        )
    if with_noise:
        check_noise(problem.likelihood)


def check_noise(likelihood: Likelihood) -> None:
    """Raises where there is no noise to look for."""
    if not (isinstance(likelihood, Gaussian) and likelihood.learned and isinstance(likelihood.noise, float)):
        raise ValueError(
            f"noise='marglik' is for Gaussian(noise=..., learned=True) with one noise for all outputs, got {likelihood}"
        )


def groups_of(names: Iterable[str], tuned: str | float | None) -> dict[str, str]:
    """Which tensors have one factor of the prior's precision."""
    if tuned not in TUNED:
        return {}
    return {n: n.rpartition(".")[0] if tuned == "layers" else "" for n in names}


def precisions(problem: Problem, params: Params) -> dict[str, float]:
    """The precision of each tensor under the problem's prior."""
    assert isinstance(problem.prior, Normal)
    return {n: s**-2 for n, s in problem.prior.scales(params).items()}


def climb(
    passes: Passes, structure: Structure, groups: Mapping[str, str], factors: Mapping[str, float], with_noise: bool
) -> Step:
    """A step up the evidence, from factors of the prior's precision and the noise that is among the params."""
    prior = precisions(passes.problem, passes.params)
    if structure == "full":
        matrix = structures.full(passes)
        eigenvalues, run = CurvedFull(matrix, passes.params).eigenvalues(prior), matrix.run
    elif structure == "kronecker":
        kronecker = structures.kronecker(passes)
        eigenvalues, run = CurvedKronecker.of(kronecker, passes.params).eigenvalues(prior), kronecker.run
    else:
        diagonal = structures.diagonal(passes)
        eigenvalues, run = CurvedDiagonal(diagonal).eigenvalues(prior), diagonal.run
    evidence = Evidence.at(passes, prior, run)
    better, r = evidence.better(eigenvalues, groups, factors, with_noise, LEAP)
    log_noise = float(passes.point.params[LOG_NOISE]) - 0.5 * math.log(r) if with_noise else None
    return Step(better, log_noise, evidence.whole(eigenvalues, better, r))
