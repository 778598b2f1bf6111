"""What all filters share: a normal distribution over the parameters that goes from batch to batch.

    A'A  = sum_n J_n' R_n^-1 J_n / T,   push = sum_n J_n' grad log p(y_n | f_n) / T

J_n is the Jacobian of the outputs at the mean, R_n^-1 the Fisher information of the likelihood in the outputs (1 /
sigma^2 for normal noise, diag(p) - p p' for a softmax), so that nothing singular is inverted. With K = P' J' R^-1 the
textbook's gain, P' push is K (y - f). The prior is the distribution before the first batch; what was seen is never
kept, so time and memory of a step do not grow with the stream.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, ravel, take, tree_map
from ..core.where import Where
from ..curvature import roots
from ..curvature.updating import one_of
from ..data import Data, Piece, Stream, pieces
from ..engine import Demand, Finished, Method, Schedule
from ..engine.memory import SHARE, free_bytes, readable
from ..families import Delta, Family, Partial
from ..predict import Via
from ..predict.jacobian import rows_of
from ..problem import Problem
from ..problem.likelihoods.fitting import weighted
from ..problem.priors import FromFamily, Normal
from . import evidence
from .drift import Drift
from .last import check_last, named

HELD = 3  # times what a filter keeps that a step takes


class Seen(NamedTuple):
    """What some examples say, linearised at a point."""

    rows: Tensor  # A, (k, P)
    push: Tensor  # (P,)


class Prior(NamedTuple):
    """A normal prior: of independent parameters, or with any covariance."""

    centre: Params
    scale: Params | None  # standard deviations; None: see the family
    family: Any  # None: see the scales


@dataclass(frozen=True, kw_only=True)
class Filter(Method, kind="method"):
    """An online method. `bn.online` starts one and `posterior.update` continues it; with `bn.fit` it goes over the data
    once, in their order."""

    norm: ClassVar[Literal["train", "frozen", "refresh"]] = "frozen"
    terms: ClassVar[bool] = False

    where: Where = None
    """Which parameters are uncertain: patterns of names, such as "head.*"; "last": the last layer; None: all."""
    drift: Drift | None = None
    """How parameters may move between examples: Forget, Inflate, Shrink, AdaptiveForget or Change; None: they do not
    move."""
    batch_size: int = 16
    """Examples that are linearised together: longer batches are cut; fewer for a wide prior."""
    via: Via = "linear"
    """How it predicts: by the linear function that it filters, or sample, probit, bridge."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"expected a batch_size of at least 1, got {self.batch_size}")
        if self.drift is not None and not isinstance(self.drift, Drift):
            raise TypeError(f"expected drift as bn.filters.Forget(0.999), Inflate(1e-5) or None, got {self.drift!r}")
        if self.via not in get_args(Via):
            raise ValueError(f"expected via as one of {', '.join(get_args(Via))}, got {self.via!r}")

    @property
    def rounds(self) -> int:
        """How often a batch is linearised."""
        return 1

    @abstractmethod
    def numbers(self, parameters: int) -> int:
        """How many numbers are kept for this many parameters."""

    @abstractmethod
    def opened(self, prior: Prior, buffers: Params) -> Family:
        """The prior as the family that this filter keeps."""

    @abstractmethod
    def conditioned(self, before: Any, seen: Seen) -> Family:
        """The family after some examples."""

    def centred(self, prior: Normal) -> bool:
        """Whether a Normal prior keeps its own mean; otherwise it lies around the point where a member starts."""
        return prior.centre is not None

    def seen(self, problem: Problem, point: Point, piece: Piece, names: tuple[str, ...], part: Any) -> Seen:
        """What examples say where `part` is the distribution so far, at its mean `point`."""
        return observed(problem, point, piece, names)

    def checked(self, problem: Problem, point: Point, piece: Piece, names: tuple[str, ...], seen: Seen) -> None:
        """Refuses examples that this filter is not for; by default none."""

    def adapt(self, problem: Problem) -> Problem:
        if not isinstance(problem.prior, (Normal, FromFamily)):
            raise ValueError(
                f"{self.label} starts from a normal prior, got {type(problem.prior).__name__}: use "
                "bn.priors.Normal, or bn.priors.FromFamily of a Gaussian family"
            )
        if problem.terms:
            raise ValueError(f"{self.label} filters only examples, and the problem has further terms: leave them out")
        return problem

    def schedule(self, n: int) -> Schedule:
        return Schedule(0, None)

    def begin(self, problem: Problem, point: Point) -> Family:
        """The distribution before the first example."""
        network = problem.split(point.params)[0]
        inside = {n: network[n] for n in named(problem, self.where)}
        rest = {n: x for n, x in point.params.items() if n not in inside}
        self._check_room(inside)
        part = self._opened(problem, network, inside, {} if rest else point.buffers)
        return Partial(Delta(rest, point.buffers), part) if rest else part

    def step(self, family: Family, problem: Problem, piece: Piece) -> Family:
        """The distribution after some more examples, which are taken `batch_size` at a time."""
        total = len(piece.targets)
        if self.where == "last":
            part: Any = family.part if isinstance(family, Partial) else family
            check_last(problem, family.mean(), piece, tuple(part.centre))
        with self._in_words():
            for here in _cut(piece, self.batch_size):
                family = self._absorbed(family, problem, here)
        bad = [n for n, x in family.mean().params.items() if not bool(x.isfinite().all())]
        if bad:
            raise FloatingPointError(
                f"after these {total} examples the mean of {bad[0]} is not finite: check that the inputs are scaled "
                "and the noise is not far too small"
            )
        return family

    def finish(
        self, state: Point, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Family | Finished:
        """One pass over the data, in their order."""
        assert data is not None
        family = self.begin(problem, state)
        for piece in pieces(data, self.batch_size):
            family = self.step(family, problem, piece)
        return family

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        network = problem.split(point.params)[0]
        inside = [network[n] for n in named(problem, self.where)]
        count, size = sum(x.numel() for x in inside), inside[0].element_size()
        kept = (self.numbers(count) + sum(x.numel() for x in point.params.values())) * size
        return Demand(kept, finish=HELD * kept, passes=0.0 if data is None else float(data.n))

    def log_evidence(self, family: Family, problem: Problem, piece: Piece) -> float:
        """The log probability of some examples before they are seen, linearised at the mean: exact on a linear model
        with normal noise. Longer batches are cut as in `step`."""
        total = 0.0
        with self._in_words():
            for here in _cut(piece, self.batch_size):
                before = self._drifted(family, problem, here)
                total += self._evidence(family, before, problem, here)
                family = self._absorbed(family, problem, here)
        return total

    @contextmanager
    def _in_words(self) -> Iterator[None]:
        """What linear algebra refuses, as an error that says what to do."""
        try:
            yield
        except torch.linalg.LinAlgError as error:
            raise FloatingPointError(
                f"{self.label} cannot take these examples: the covariance that follows from them is not positive in "
                "double precision. Check that the inputs are scaled and the noise is not far too small; a narrower "
                "prior, or a drift that forgets less, helps as well"
            ) from error

    def _evidence(self, family: Family, before: Any, problem: Problem, piece: Piece) -> float:
        """That of examples that are linearised together, where `before` is what is known of the parameters."""
        point, names = _at(family, before), tuple(before.centre)
        return evidence.linearised(before, observed(problem, point, piece, names), fitting(problem, point, piece))

    def _drifted(self, family: Family, problem: Problem, piece: Piece) -> Any:
        """What is known of the parameters before some examples."""
        part: Any = family.part if isinstance(family, Partial) else family
        if self.drift is None:
            return part
        log_probability = partial(self._evidence, family, problem=problem, piece=piece)
        network = problem.split(_at(family, part).params)[0]
        prior = self._opened(problem, network, {n: network[n] for n in part.centre}, {})
        return self.drift.given(part, len(piece.targets), prior, lambda candidate: log_probability(before=candidate))

    def _absorbed(self, family: Family, problem: Problem, piece: Piece) -> Family:
        part: Any = family.part if isinstance(family, Partial) else family
        names = tuple(part.centre)
        before: Any = self._drifted(family, problem, piece)
        new: Any = before
        origin = ravel(before.centre)
        for _ in range(self.rounds):
            point = _at(family, new)
            seen = self.seen(problem, point, piece, names, new)
            if not bool(seen.rows.isfinite().all() and seen.push.isfinite().all()):
                raise FloatingPointError(
                    f"{self.label} cannot take these examples: the network's outputs for them, or their derivatives, "
                    "are not finite. Check that inputs and targets are finite and scaled"
                )
            self.checked(problem, point, piece, names, seen)
            moved = ravel({n: point.params[n] for n in names}) - origin
            new = self.conditioned(before, Seen(seen.rows, seen.push + seen.rows.mT @ (seen.rows @ moved)))
        return Partial(family.rest, new) if isinstance(family, Partial) else new

    def _opened(self, problem: Problem, network: Params, inside: Params, buffers: Params) -> Family:
        """The prior as the family that this filter keeps, tempered."""
        part = self.opened(self._prior(problem, network, inside), buffers)
        return part.scaled(problem.prior_temperature) if problem.prior_temperature != 1 else part

    def _prior(self, problem: Problem, network: Params, inside: Params) -> Prior:
        prior, like = problem.prior, next(iter(inside.values()))
        if isinstance(prior, Normal):
            scales = prior.scales(network)
            given = prior.centre or {}
            zero = {n: given[n].to(x) if n in given else torch.zeros_like(x) for n, x in inside.items()}
            centre = zero if self.centred(prior) else inside
            return Prior(centre, {n: torch.full_like(x, scales[n]) for n, x in inside.items()}, None)
        assert isinstance(prior, FromFamily)
        if len(inside) < len(network):
            raise ValueError(
                "where= chooses among independent parameters, and the prior is a family over all of them: leave "
                "where=None, or use bn.priors.Normal"
            )
        family = one_of(prior.family, like)
        centre = family.mean().params
        return Prior({n: centre[n] for n in inside}, None, family)

    def _check_room(self, inside: Params) -> None:
        like, count = next(iter(inside.values())), sum(x.numel() for x in inside.values())
        asked, free = HELD * self.numbers(count) * like.element_size(), int(SHARE * free_bytes(like.device))
        if asked > free:
            raise MemoryError(
                f"{self.label} takes {readable(asked)} for {count:,} parameters, and {readable(free)} may be used: "
                "use EKF(structure='diagonal'), LOFI with a smaller rank, or where= for some of the parameters"
            )


def observed(problem: Problem, point: Point, piece: Piece, names: tuple[str, ...]) -> Seen:
    """What examples say of some parameters, linearised at a point."""
    jacobian = rows_of(problem, point, piece.inputs, list(names), slice(None))  # leaves (B, E, *shape)
    rows = ravel({n: jacobian[n] for n in names}, 2)
    with torch.no_grad():
        outputs = problem.outputs(point.params, point.buffers, piece.inputs)[0]
    learned, likelihood = problem.split(point.params)[1], problem.likelihood

    def fit(f: Tensor) -> Tensor:
        return weighted(likelihood.log_density(f, piece.targets, learned), piece.weights).sum()

    gradient = torch.func.grad(fit)(outputs).unsqueeze(-1).flatten(1)  # networks may return (B,)
    root = roots.expected(likelihood, outputs, piece.targets, piece.weights, learned)
    columns, share = root.columns(0, root.count), problem.shares[0]
    each = torch.einsum("kbe,bep->kbp", columns, rows).flatten(0, 1)
    return Seen(share**0.5 * each, share * torch.einsum("be,bep->p", gradient, rows))


def fitting(problem: Problem, point: Point, piece: Piece) -> float:
    """The log likelihood of examples at a point, tempered."""
    with torch.no_grad():
        outputs = problem.outputs(point.params, point.buffers, piece.inputs)[0]
        each = problem.likelihood.log_density(outputs, piece.targets, problem.split(point.params)[1])
        return problem.shares[0] * float(weighted(each, piece.weights).double().sum())


def _cut(piece: Piece, size: int) -> Iterator[Piece]:
    """Examples, `size` at a time."""
    total = len(piece.targets)
    for first in range(0, total, size):
        here = slice(first, min(first + size, total))
        weights = None if piece.weights is None else piece.weights[here]
        yield Piece(take(piece.inputs, here), piece.targets[here], weights)


def _at(family: Family, part: Any) -> Point:
    """The mean, of which `part` is the new one."""
    params, buffers = family.mean()
    return tree_map(lambda x: x.detach(), Point(params | part.mean().params, buffers))
