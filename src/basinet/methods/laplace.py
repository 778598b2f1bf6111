"""Laplace approximation: a normal distribution around a mode, with the curvature that is there.

    q = N(theta*, Lambda^-1),   Lambda = H / T + diag(1 / s^2) / T_prior,   H = sum_n J_n' (d^2 -log p / df^2) J_n

MacKay 1992; for networks Ritter et al. 2018, Immer et al. 2021 and Daxberger et al. 2021. The mode is that of the
start; nothing is trained. H is that of all N examples, at the parameters that `where` names, in one of the structures
of `basinet.curvature`; the other parameters stay where they are. The evidence of the approximation comes with it.

How wide it is depends on the prior, which is rarely chosen with this in mind. So the prior's precision is tuned by
default: on validation data if there are any, over a grid that is extended at its upper end, towards the mode itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

import torch

from ..core.grid import chosen_of, tried_on
from ..core.noise import Noise
from ..core.tree import Point, leaves, nbytes
from ..core.where import Where, select
from ..cost.curvature import demand
from ..cost.prediction import predicting, validating
from ..curvature import structures
from ..curvature.evidence import LOG_NOISE, Evidence
from ..curvature.follow import last_layer
from ..curvature.gaussians import (
    Curved,
    CurvedDiagonal,
    CurvedFull,
    CurvedKronecker,
    CurvedLowRank,
    NotPositive,
    one_precision,
)
from ..curvature.online import TUNED, check_noise, groups_of, precisions
from ..curvature.passes import Kind, Pass, Passes
from ..curvature.updating import under_family
from ..data import Data, Stream
from ..engine import Based, Demand, Finished, Method, Schedule
from ..engine.method import Entry
from ..families import Delta, Family, Partial
from ..predict import SEEN, Via, default_via, few_of, nll, worse
from ..problem import Problem
from ..problem.priors import FromFamily, Normal

if TYPE_CHECKING:
    from ..testing import Bench, Check

Structure = Literal["full", "kronecker", "eigen-corrected", "diagonal", "low-rank"]
STRUCTURES: tuple[Structure, ...] = ("full", "kronecker", "eigen-corrected", "diagonal", "low-rank")
CHOICES = ("marglik", "layers", "validation", "prior")
SMALL = 1000  # parameters of which the full matrix is the default: a few MB and seconds, whatever the network
FACTORS = [10 ** (k / 2.5) for k in range(-10, 11)]  # of the prior's precision, tried on validation data
WIDE = 2  # times what a posterior keeps: its curvature, in double precision
HELD = 2**23  # numbers in the posteriors that are tried at once, where they predict in closed form
BLOCKS = 3  # such sets of posteriors in memory: those tried, those before, which are freed late, and parts of them


@dataclass(frozen=True, kw_only=True)
class Laplace(Based):
    """A normal distribution around a mode, from the curvature there; by default over the last layer.

    The prior's precision is tuned without another fit: by the validation NLL ("validation"), or by the marginal
    likelihood, one factor for all parameters ("marglik") or one per layer ("layers"). "prior" leaves it as it is. If
    the start learned its prior (MAP with prior_precision="marglik"), that one is used.
    """

    usual: ClassVar[bool] = True
    norm: ClassVar[Literal["train", "frozen", "refresh"]] = "frozen"
    terms: ClassVar[bool] = False

    structure: Structure | None = None
    """Structure of the covariance; None: full for up to 1,000 parameters, else kronecker."""
    where: Where = "last"
    """Which parameters: patterns of names; "last": what the output comes from, cheap; None: all."""
    curvature: Kind = "ggn"
    """One of ggn, fisher (from the targets' gradients) and hessian (exact, for a linear last layer)."""
    subset: int | None = None
    """Examples whose curvature stands for all N, drawn at random; None: all examples."""
    labels: int | None = None
    """Labels drawn per example in place of all outputs, for many classes; None: exact."""
    rank: int = 20
    """How many directions structure "low-rank" keeps."""
    prior_precision: float | str | None = None
    """A number; "prior": as it is; or how a factor on it is chosen: "validation", "marglik", "layers" (marginal
    likelihood, one per layer); None: by validation data if given, else by marginal likelihood."""
    learned: tuple[float, ...] | None = None
    """Precision of each tensor's prior, if the start learned it; None: it did not."""
    noise: Literal["marglik"] | None = None
    """"marglik": a Gaussian's learned noise is chosen by marginal likelihood; None: it stays as it is."""
    via: Via = "linear"
    """How it predicts: by the linear function whose curvature this is, or sample, probit, bridge."""
    batch_size: int | None = 256
    """Examples at a time; None: all. The result does not depend on it."""

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
            raise ValueError("structure='low-rank' is of a curvature that is positive: use curvature='ggn'")
        known = self.prior_precision in (None, *CHOICES)
        if not known and not (isinstance(self.prior_precision, (int, float)) and 0 < self.prior_precision < math.inf):
            raise ValueError(
                f"expected prior_precision as a positive number, {', '.join(CHOICES)} or None, got "
                f"{self.prior_precision!r}"
            )
        if self.via not in get_args(Via):
            raise ValueError(f"expected via as one of {', '.join(get_args(Via))}, got {self.via!r}")
        if self.noise not in (None, "marglik"):
            raise ValueError(f"expected noise='marglik' or None, got {self.noise!r}")
        if self.noise and self.prior_precision == "validation":
            raise ValueError("noise='marglik' goes with a prior precision by marginal likelihood, or a fixed one")

    @property
    def needs(self) -> frozenset[str]:  # type: ignore[override]
        """Validation data where the prior is tuned on them."""
        return frozenset({"data", "val"} if self.prior_precision == "validation" else {"data"})

    @property
    def uses(self) -> frozenset[str]:  # type: ignore[override]
        """Validation data where the choice is left open."""
        return frozenset({"val"} if self.prior_precision is None and not self.noise else ())

    def started(self, curves: Mapping[str, Any]) -> Method:
        """With the prior that the start learned."""
        learned = curves.get("prior_precision")
        given = isinstance(self.prior_precision, (int, float))
        return self if learned is None or given else replace(self, learned=tuple(learned))

    def schedule(self, n: int) -> Schedule:
        return Schedule(0, None)

    def finish(
        self, state: Point, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        assert data is not None
        passes = self._passes(state, problem, data, noise)
        if isinstance(problem.prior, FromFamily):
            family, evidence_there = under_family(passes, *self._curvature(passes))
            return Finished(family, {"log_evidence": [evidence_there]})
        prior = self._prior(problem, passes)
        curved, run = self._curvature(passes)
        evidence = Evidence.at(passes, prior, run)
        curves: dict[str, list[float]] = {}
        factors, r, how = dict.fromkeys(prior, 1.0), 1.0, self._choice(val)
        if how == "validation":
            assert val is not None
            tried = tried_on(lambda grid: dict(self._tried(passes, curved, prior, val, grid)), FACTORS)
            if not tried:
                raise FloatingPointError(
                    f"the validation NLL is not finite with any factor from {FACTORS[0]:g} to {FACTORS[-1]:g} of the "
                    "prior's precision: check that the validation data are scaled like the training data"
                )
            factors = dict.fromkeys(prior, chosen_of(tried))
            curves = {"tried_factor": [*tried], "tried_nll": [*tried.values()]}
        elif self.noise or how in TUNED:
            factors, r = evidence.best(curved.eigenvalues(prior), groups_of(prior, how), self.noise is not None)
        family, volume = _posterior(passes, curved, prior, factors, r)
        curves |= {"log_evidence": [evidence.value(volume, factors, r)], "prior_factor": list(factors.values())}
        warnings: tuple[str, ...] = ()
        if val is not None or self.prior_precision is None:
            own, start = self._compared(family, passes, val)
            curves |= {"own_nll": [own], "start_nll": [start]}
            advice = (
                "pass val=, which then chooses its prior" if val is None else "prior_precision=None chooses by them"
            )
            warnings = worse(own, start, val is not None, "" if how == "validation" else advice)
        return Finished(family, curves, self._notes(how, factors), warnings)

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        assert data is not None
        passes = self._passes(point, problem, data, Noise.seed(0, next(iter(point.params.values())).device))
        total = demand(self._structure(passes), passes, self.rank)
        with torch.no_grad():
            outputs = problem.outputs(point.params, point.buffers, passes.few())[0][0].numel()
        via, last = default_via(self.via, problem.likelihood), set(passes.names) <= set(last_layer(passes))
        predict = predicting(via, problem.likelihood, outputs, self.samples, last, total.predict)
        kept = total.kept + nbytes(point) - nbytes(passes.params)
        total = total._replace(kept=kept, predict=predict)
        if val is None and self.prior_precision is not None:
            return total
        seen = min(SEEN, data.n) if val is None else val.n
        tried = predict.forwards * seen
        total = total._replace(passes=total.passes + tried + seen)  # its own and those of its start
        held = WIDE * kept + validating(problem, point, passes.few(), via, predict, seen, outputs)
        if self._choice(val) == "validation":
            several = min((len(FACTORS) - 1) * kept, HELD * next(iter(point.params.values())).element_size())
            held += kept if _drawn(via) else BLOCKS * several
            total = total._replace(passes=total.passes + (len(FACTORS) if _drawn(via) else 1) * tried)
        return total._replace(finish=max(total.finish, held))

    def variants(self) -> Iterable[Method]:
        positive = [s for s in STRUCTURES if s != "low-rank" or self.curvature != "hessian"]
        for where in dict.fromkeys((None, self.where, "last")):
            yield from (replace(self, structure=s, where=where) for s in positive)

    def _choice(self, val: Data | Stream | None) -> str | float | None:
        """How the prior's precision is found."""
        if self.prior_precision is not None:
            return self.prior_precision
        return "marglik" if val is None or self.noise else "validation"

    def _structure(self, passes: Passes) -> Structure:
        total = sum(x.numel() for x in passes.params.values())
        return self.structure or ("full" if total <= SMALL else "kronecker")

    def adapt(self, problem: Problem) -> Problem:
        """The problem as the base sees it, if it has what is needed: said before anything is trained."""
        if not isinstance(problem.prior, (Normal, FromFamily)):
            raise ValueError(
                f"Laplace adds the curvature of a Normal prior, got {type(problem.prior).__name__}: fit it under "
                "bn.priors.Normal, or bn.priors.FromFamily of a Gaussian family, or use a method that samples"
            )
        if isinstance(problem.prior, FromFamily) and (self.noise or self.prior_precision not in (None, "prior")):
            raise ValueError(
                "the prior is a family, whose precision is what it is: leave out noise= and prior_precision=, or use "
                "bn.priors.Normal"
            )
        if self.noise:
            check_noise(problem.likelihood)
        return super().adapt(problem)

    def _passes(self, point: Point, problem: Problem, data: Data | Stream, noise: Noise) -> Passes:
        if self.subset is not None and self.subset > data.n:
            raise ValueError(f"expected a subset of at most the {data.n:,} examples there are, got {self.subset:,}")
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
        names = last_layer(passes) if self.where == "last" else select(network, self.where)
        if not names:
            raise ValueError(
                "found no linear layer or convolution with parameters that take gradients: name the parameters, "
                "where=..., or use all of them, where=None"
            )
        if isinstance(problem.prior, FromFamily) and set(names) != set(network):
            raise ValueError(
                f"where={self.where!r} chooses some of the parameters, and the prior is a family over all of them: "
                "use where=None"
            )
        return replace(passes, names=names)

    def _prior(self, problem: Problem, passes: Passes) -> dict[str, float]:
        """The prior's precision of each tensor."""
        if isinstance(self.prior_precision, (int, float)):
            return dict.fromkeys(passes.params, float(self.prior_precision))
        network = problem.split(passes.point.params)[0]
        known = precisions(problem, network) if self.learned is None else dict(zip(network, self.learned, strict=True))
        prior = {n: known[n] for n in passes.params}
        if self.structure == "low-rank":
            one_precision(prior)  # refused before anything is computed
        return prior

    def _curvature(self, passes: Passes) -> tuple[Curved, Pass]:
        params, structure = passes.params, self._structure(passes)
        if structure == "full":
            matrix = structures.full(passes)
            return CurvedFull(matrix, params), matrix.run
        if structure == "diagonal":
            diagonal = structures.diagonal(passes)
            return CurvedDiagonal(diagonal), diagonal.run
        if structure == "low-rank":
            directions = structures.low_rank(passes, self.rank)
            return CurvedLowRank(directions), directions.run
        factors = structures.kronecker(passes)
        curved = CurvedKronecker.of(factors, params)
        if structure == "eigen-corrected":
            curved = curved.corrected(structures.diagonal(passes, curved.left, curved.right))
        return curved, factors.run

    def _tried(
        self, passes: Passes, curved: Curved, prior: Mapping[str, float], val: Data | Stream, factors: Sequence[float]
    ) -> Iterator[tuple[float, float]]:
        """The validation NLL at each factor with which there is a posterior that predicts: next to a precision near
        zero, rounding of the curvature can be more than the prior, and draws can be out of all range."""
        most = 0 if _drawn(default_via(self.via, passes.problem.likelihood)) else HELD
        for held in _families(passes, curved, prior, most, factors):
            losses = self._losses(list(held.values()), passes.problem, val, passes.noise)
            yield from ((m, loss) for m, loss in zip(held, losses) if math.isfinite(loss))

    def _losses(self, families: Sequence[Family], problem: Problem, val: Data | Stream, noise: Noise) -> list[float]:
        """The mean validation NLL of each family, predicted as it will be later on: with the same draws for all."""
        return nll(families, problem, val, default_via(self.via, problem.likelihood), self.samples, noise)

    def _compared(self, family: Family, passes: Passes, val: Data | Stream | None) -> list[float]:
        """The NLL of the posterior and that of its mode, on validation data or else on some training data."""
        seen = few_of(passes.data) if val is None else val
        own = self._losses([family], passes.problem, seen, passes.noise)
        return own + nll([Delta(*passes.point)], passes.problem, seen, "sample", 1, passes.noise)

    def _notes(self, how: str | float | None, factors: Mapping[str, float]) -> tuple[str, ...]:
        """What was chosen, where that was left open."""
        if self.prior_precision is not None or self.noise:
            return ()
        by = "the validation NLL" if how == "validation" else "marginal likelihood; with val=, by the validation NLL"
        return (f"{next(iter(factors.values())):.3g} times the prior's precision, by {by}",)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("Laplace", cls(), 1), Entry("mixture of Laplaces", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact = bench.conjugate()
        for structure in STRUCTURES:
            recipe = cls(structure=structure, prior_precision="prior")
            posterior = bench.fit(recipe, exact.problem, exact.data, start=exact.mean)
            if structure == "diagonal":
                says, expected = "1 / diag(Lambda)", torch.diag(1 / exact.precision.diagonal())
            else:
                says, expected = "Lambda^-1", exact.covariance
            yield bench.close(f"{structure}: covariance", says, bench.covariance(posterior), expected, 1e-12)
            if structure != "diagonal":
                log_evidence = torch.tensor(posterior.info["curves"]["log_evidence"][0], dtype=torch.float64)
                truth = torch.tensor([exact.log_evidence], dtype=torch.float64)
                yield bench.close(f"{structure}: evidence", "that of the conjugate model", log_evidence, truth, 1e-9)
        for cold in (bench.conjugate(temperature=0.3), bench.conjugate(temperature=0.3, temper="likelihood")):
            posterior = bench.fit(cls(prior_precision="prior"), cold.problem, cold.data, start=cold.mean)
            name = f"covariance at temperature 0.3 ({cold.problem.temper})"
            yield bench.close(name, "its Lambda^-1", bench.covariance(posterior), cold.covariance, 1e-12)


def _drawn(via: Via) -> bool:
    """Whether predictions may be from draws, of which each family makes its own."""
    return via in ("sample", "linear")


def _families(
    passes: Passes, curved: Curved, prior: Mapping[str, float], most: int, factors: Sequence[float]
) -> Iterator[dict[float, Family]]:
    """The posteriors there are with the factors, some at a time, which hold about `most` numbers. Mean and bases,
    which they share, count once."""
    some: dict[float, Family] = {}
    held: dict[int, int] = {}
    for m in factors:
        try:
            some[m] = _posterior(passes, curved, prior, dict.fromkeys(prior, m))[0]
        except NotPositive:
            if m == FACTORS[-1]:
                raise
            continue
        held |= {id(x): x.numel() for x in leaves(some[m])}
        if sum(held.values()) > most:
            yield some
            some, held = {}, {}
    if some:
        yield some


def _posterior(
    passes: Passes, curved: Curved, prior: Mapping[str, float], factors: Mapping[str, float], r: float = 1.0
) -> tuple[Family, float]:
    """The posterior with the prior's precision times factors and the noise's times r, and its volume."""
    (params, buffers), (a, s) = passes.point, passes.problem.shares
    centre = passes.params
    precision = {n: s * factors[n] * prior[n] for n in centre}
    rest = {n: x for n, x in params.items() if n not in centre}
    part, volume = curved.posterior(centre, a * r**passes.power, precision, {} if rest else buffers)
    if r != 1.0:
        rest[LOG_NOISE] = rest[LOG_NOISE] - 0.5 * math.log(r)
    return (Partial(Delta(rest, buffers), part) if rest else part), volume
