"""Laplace approximation: a normal distribution around a mode, with the curvature that is there.

    q = N(theta*, Lambda^-1),   Lambda = H / T + diag(1 / s^2) / T_prior,   H = sum_n J_n' (d^2 -log p / df^2) J_n

MacKay 1992; for networks Ritter et al. 2018, Immer et al. 2021 and Daxberger et al. 2021. The mode is that of the
start; nothing is trained. H is that of all N examples, at the parameters that `where` names, in one of the structures
of `basinet.curvature`; the other parameters stay where they are. The evidence of the approximation comes with it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import torch

from ..core.noise import Noise
from ..core.tree import Params, Point, stack
from ..core.where import Where, select
from ..curvature import structures
from ..curvature.evidence import Evidence
from ..curvature.gaussians import Curved, CurvedDiagonal, CurvedFull, CurvedKronecker, CurvedLowRank
from ..curvature.passes import Kind, Pass, Passes, last_layer
from ..data import Data, pieces
from ..engine import Finished, Method, Schedule
from ..engine.memory import SHARE, free_bytes, readable
from ..engine.method import Entry
from ..families import Delta, Family, Partial
from ..predict import Draws, forward, make_predictive
from ..problem import PREFIX, Problem
from ..problem.likelihoods import Gaussian
from ..problem.priors import Normal

if TYPE_CHECKING:
    from ..testing import Bench, Check

Structure = Literal["full", "kronecker", "eigen-corrected", "diagonal", "low-rank"]
STRUCTURES = ("full", "kronecker", "eigen-corrected", "diagonal", "low-rank")
TUNED = ("marglik", "layers", "validation")
SMALL = 1000  # parameters of which the full matrix is the default: a few MB and seconds, whatever the network
COPIES = 4  # of a full matrix that live at once: curvature, precision, its factor, the inverse
FACTORS = [10 ** (k / 2.5) for k in range(-10, 11)]  # of the prior's precision, tried on validation data


@dataclass(frozen=True, kw_only=True)
class Laplace(Method):
    """A normal distribution around a mode, from the curvature there; by default over the last layer."""

    norm: ClassVar[Literal["train", "frozen", "refresh"]] = "frozen"

    base: Method | None = None  # finds the mode where fit is given no start; None: MAP()
    structure: Structure | None = None  # of the covariance; None: full for up to 1,000 parameters, else kronecker
    where: Where = "last"  # which parameters: patterns of names; "last": the last layer, at any size cheap; None: all
    curvature: Kind = "ggn"  # ggn, fisher (from the targets' gradients), or hessian: exact, for a linear last layer
    subset: int | None = None  # examples whose curvature stands for all N, drawn at random; None: all examples
    labels: int | None = None  # labels drawn an example in place of all outputs, for many classes; None: exact
    rank: int = 20  # directions that structure "low-rank" keeps
    prior_precision: float | str | None = (
        None  # None: the prior's; a number; or the prior's times the best factor by "marglik", "layers", "validation"
    )
    noise: Literal["marglik"] | None = None  # choose the learned noise of a Gaussian by marginal likelihood; None: no
    batch_size: int | None = 128  # examples at a time; None: all. What is found does not depend on it

    def __post_init__(self) -> None:
        if self.structure is not None and self.structure not in STRUCTURES:
            raise ValueError(f"expected a structure among {', '.join(STRUCTURES)}, or None, got {self.structure!r}")
        if self.curvature not in ("ggn", "fisher", "hessian"):
            raise ValueError(f"expected curvature 'ggn', 'fisher' or 'hessian', got {self.curvature!r}")
        for name in ("subset", "labels", "rank", "batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"expected {name} of at least 1, got {value}")
        if self.labels is not None and self.curvature != "ggn":
            raise ValueError(f"labels are drawn for curvature='ggn', got curvature={self.curvature!r}: leave them out")
        if self.curvature == "hessian" and self.structure == "low-rank":
            raise ValueError("structure='low-rank' is of a curvature that is positive: take curvature='ggn'")
        known = self.prior_precision in (None, *TUNED)
        if not known and not (isinstance(self.prior_precision, (int, float)) and 0 < self.prior_precision < math.inf):
            raise ValueError(
                f"expected prior_precision as a positive number, {', '.join(TUNED)} or None, got "
                f"{self.prior_precision!r}"
            )
        if self.noise not in (None, "marglik"):
            raise ValueError(f"expected noise='marglik' or None, got {self.noise!r}")
        if self.noise and self.prior_precision == "validation":
            raise ValueError("noise='marglik' goes with a prior precision by marginal likelihood, or a fixed one")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """Validation data where the prior is tuned on them."""
        return frozenset({"data", "val"} if self.prior_precision == "validation" else {"data"})

    def schedule(self, n: int) -> Schedule:
        return Schedule(0, None)

    def finish(
        self, state: Point, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        assert data is not None
        self._check(problem, data.n)
        passes = self._passes(state, problem, data, noise)
        prior = self._prior(problem, passes)
        curved, run = self._curvature(passes)
        evidence = _evidence(passes, prior, curved, run)
        told: dict[str, list[float]] = {}
        factors, r = dict.fromkeys(evidence.eigenvalues, 1.0), 1.0
        if self.prior_precision == "validation":
            assert val is not None
            tried = [_loss(_posterior(passes, curved, prior, dict.fromkeys(factors, m)), problem, val, noise) for m in FACTORS]
            factors = dict.fromkeys(factors, FACTORS[tried.index(min(tried))])
            told = {"tried_factor": FACTORS, "tried_nll": tried}
        elif self.noise or self.prior_precision in TUNED:
            groups = {n: n.rpartition(".")[0] if self.prior_precision == "layers" else "" for n in factors}
            factors, r = evidence.best(groups if self.prior_precision in TUNED else {}, noise=self.noise is not None)
        told |= {"log_evidence": [evidence.value(factors, r)], "prior_factor": list(factors.values())}
        return Finished(_posterior(passes, curved, prior, factors, r), told)

    def _check(self, problem: Problem, n: int) -> None:
        if not isinstance(problem.prior, Normal):
            raise ValueError(
                f"Laplace adds the curvature of a Normal prior, got {type(problem.prior).__name__}: fit it under "
                "bn.priors.Normal, or use a method that samples"
            )
        likelihood = problem.likelihood
        scalar = isinstance(likelihood, Gaussian) and likelihood.learned and isinstance(likelihood.noise, float)
        if self.noise and not scalar:
            raise ValueError(
                f"noise='marglik' is for Gaussian(noise=..., learned=True) with one noise for all outputs, got {likelihood}"
            )
        if self.subset is not None and self.subset > n:
            raise ValueError(f"expected a subset of at most the {n:,} examples there are, got {self.subset:,}")

    def _passes(self, point: Point, problem: Problem, data: Data, noise: Noise) -> Passes:
        network = problem.split(point.params)[0]
        passes = Passes(
            problem=problem,
            point=point,
            data=data,
            names=tuple(network),
            noise=noise,
            kind=self.curvature,
            labels=self.labels,
            subset=self.subset,
            batch_size=self.batch_size,
        )
        return replace(passes, names=last_layer(passes) if self.where == "last" else select(network, self.where))

    def _prior(self, problem: Problem, passes: Passes) -> dict[str, float]:
        """The prior's precision of each tensor."""
        assert isinstance(problem.prior, Normal)
        if isinstance(self.prior_precision, (int, float)):
            return dict.fromkeys(passes.params, float(self.prior_precision))
        scales = problem.prior.scales(problem.split(passes.point.params)[0])
        return {n: scales[n] ** -2 for n in passes.params}

    def _curvature(self, passes: Passes) -> tuple[Curved, Pass]:
        params = passes.params
        total = sum(x.numel() for x in params.values())
        structure = self.structure or ("full" if total <= SMALL else "kronecker")
        if structure == "full":
            _check_memory(params)
            matrix = structures.full(passes)
            return CurvedFull(matrix, params), matrix.run
        if structure == "diagonal":
            found = structures.diagonal(passes)
            return CurvedDiagonal(found), found.run
        if structure == "low-rank":
            directions = structures.low_rank(passes, self.rank)
            return CurvedLowRank(directions), directions.run
        factors = structures.kronecker(passes)
        curved = CurvedKronecker.of(factors, params)
        if structure == "eigen-corrected":
            curved = curved.corrected(structures.diagonal(passes, curved.left, curved.right))
        return curved, factors.run

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("Laplace", cls(), 1), Entry("mixture of Laplaces", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        mode = MODE
        exact = bench.conjugate()
        for name in ("full", "kronecker", "eigen-corrected", "low-rank"):
            made = bench.fit(cls(structure=name, base=mode), exact.problem, exact.data)
            yield bench.close(f"{name}: covariance", "Lambda^-1", _covariance(made), exact.covariance, 1e-10)
        yield bench.close("mean", "mu", made.mean(), exact.mean, 1e-10)


