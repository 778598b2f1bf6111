"""Variational inference with a normal distribution whose parameters are correlated: full, or diagonal plus low rank.

    full       q = N(m, L L'),          L lower triangular with a positive diagonal
    low-rank   q = N(m, S^2 + C'C),     S diagonal, C of K rows
    loss = E_q[U] - H[q]                as in MeanField, with one draw of the weights for a batch

Full is exact where the posterior is normal; so is low-rank where its covariance is of that form. A full covariance has
P^2 / 2 numbers: it is for small networks and for chosen parameters (`where=`); all others are points.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.lift import lift_or_loop
from ..core.noise import Noise
from ..core.tree import Params, Point, nbytes, ravel, size, take, tree_map, unravel
from ..core.where import select
from ..data import Data, Stream
from ..engine import Demand, Descent, Finished, GradientMethod, Info, Method, Predicting, Schedule, Step
from ..engine.method import Entry
from ..families import Delta, Full, LowRank, Partial
from ..optim import Adam, Cosine, Optimizer
from ..problem import Problem
from ..variational import judged
from ..variational import prior as priors

if TYPE_CHECKING:
    from ..testing import Bench, Check

STRUCTURES = ("full", "low-rank")
RANKS = (20, 10, 5, 2, 1)  # lower ranks that are named where a structure does not fit


class Variational(NamedTuple):
    """What descent moves."""

    centre: Params  # m, of all parameters: those that are not random are points
    rho: Any  # of the diagonal, which is scale exp(pace rho): of L, (P,); of S, by name
    rest: Any  # in units of scale: of L, (P, P), of which the part below the diagonal counts; C by name, (K, ...)


class Shape(NamedTuple):
    """The same in units of the parameters."""

    centre: Params
    log_scale: Any
    rest: Any


@dataclass(frozen=True, kw_only=True)
class GaussianVI(GradientMethod):
    """A normal distribution with correlated parameters, by maximising the ELBO: low rank, or full where it is small."""

    epochs: int | None = None
    """Passes through the data; None: 3,000 steps, up to 6,000 where that is 32 passes."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))
    """How a gradient becomes a step."""
    patience: int | None = None
    """Reports without a lower validation NLL (of draws) until a member stops, at its best; None: 60 where epochs is
    None, else never."""
    structure: Literal["full", "low-rank"] = "low-rank"
    """Structure of the covariance."""
    rank: int = 5
    """K, columns of a low-rank covariance beside its diagonal."""
    where: str | tuple[str, ...] | None = None
    """Patterns of names that are random; None: all of the network's."""
    scale: float = 0.03
    """Standard deviations at the start."""
    pace: float = 0.2
    """Steps of the diagonal's logarithms, in those of the means: as fast as these, deviations outgrow what was learned.
    """
    draws: int = 1
    """Draws of the weights per step, whose gradients are averaged."""

    def __post_init__(self) -> None:
        if self.structure not in STRUCTURES:
            raise ValueError(f"expected a structure among {', '.join(STRUCTURES)}, got {self.structure!r}")
        if self.rank < 1:
            raise ValueError(f"expected a rank of at least 1, got {self.rank}: MeanField has no columns")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"expected a positive, finite scale to start from, got {self.scale}")
        if not 0 < self.pace < math.inf:
            raise ValueError(f"expected a positive, finite pace, got {self.pace}")
        if self.draws < 1:
            raise ValueError(f"expected at least 1 draw per step, got {self.draws}")

    def adapt(self, problem: Problem) -> Problem:
        self._random(problem)
        priors.check(problem, None)
        return problem

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        random = {n: point.params[n] for n in self._random(problem)}
        if self.structure == "full":
            flat = ravel(random)
            params = Variational(point.params, torch.zeros_like(flat), flat.new_zeros(len(flat), len(flat)))
        else:
            like = {n: x.expand(self.rank, *x.shape) for n, x in random.items()}
            columns = noise.split("columns").normal_params({n: torch.empty_like(x) for n, x in like.items()})
            small = 0.1 / math.sqrt(self.rank)  # not zero, where all columns would move alike
            still = tree_map(torch.zeros_like, random)
            params = Variational(point.params, still, {n: small * x for n, x in columns.items()})
        return Descent(params, point.buffers, self.optimizer.init(params))

    def loss(self, params: Variational, state: Descent, step: Step) -> Info:
        problem, shape = step.problem, self._shape(params)
        family = self._family(shape, problem, state.buffers)

        def energy(key: Tensor, buffers: Params) -> tuple[Tensor, Tensor, Params]:
            noise = Noise(key)
            drawn = params.centre | family.sample(noise.split("weights")).params
            potential, after = problem.data_potential(drawn, buffers, step.batch, noise, "train")
            return potential, self._prior(drawn, shape, problem), after

        if self.draws == 1:
            potential, prior, after = energy(step.noise.key, state.buffers)
        else:
            each = tree_map(lambda x: x.expand(self.draws, *x.shape).clone(), state.buffers)
            potential, prior, after = lift_or_loop(energy)(step.noise.spread(self.draws).key, each)
            potential, prior, after = potential.mean(), prior.mean(), take(after, 0)
        return Info((potential + prior - self._entropy(shape)) / step.scale, buffers=after)

    def point(self, state: Descent) -> Point:
        return Point(state.params.centre, state.buffers)

    def judged(self, state: Descent, problem: Problem, n: int) -> Sequence[Point]:
        family = self._family(self._shape(state.params), problem, state.buffers)
        return judged.draws(family, state.params.centre, state.buffers)

    def fault(self, state: Descent, problem: Problem) -> str:
        """The parameters whose part of the divergence is not finite, where there are such."""
        spread = tree_map(torch.sqrt, self._variances(self._shape(state.params), problem))
        return priors.in_words(priors.not_finite(problem, state.params.centre, spread))

    def finish(
        self, state: Descent, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        family = self._family(self._shape(state.params), problem, state.buffers)
        points = judged.draws(family, state.params.centre, state.buffers)
        centre, curves = judged.settled(problem, state.params.centre, points, val)
        rest = {n: x for n, x in centre.items() if n not in family.mean().params}
        return Finished(Partial(Delta(rest, state.buffers), family) if rest else family, curves)

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        random = {n: point.params[n] for n in self._random(problem)}
        count, each = size(random), nbytes(random) / max(1, size(random))
        numbers = count * (count if self.structure == "full" else 1 + self.rank)
        normals = count if self.structure == "full" else count + self.rank
        drawn = Predicting(self.samples, self.samples, normals, 2.0 * numbers)
        what = f"a {self.structure} covariance of {count:,} parameters"
        kept = nbytes(point) + int(numbers * each)
        return Demand(kept, 6 * int(numbers * each), what=what, predict=drawn)  # gradients and two moments in training

    def variants(self) -> Iterable[Method]:
        ranks = sorted({self.rank, *(k for k in RANKS if k < self.rank)}, reverse=True)
        low = [replace(self, structure="low-rank", rank=k) for k in ranks]
        return ([self, *low]) if self.structure == "full" else low

    def _random(self, problem: Problem) -> tuple[str, ...]:
        return select(problem.network.params, self.where)

    def _shape(self, params: Variational) -> Shape:
        log_scale = tree_map(lambda x: math.log(self.scale) + self.pace * x, params.rho)
        return Shape(params.centre, log_scale, tree_map(lambda x: self.scale * x, params.rest))

    def _family(self, shape: Shape, problem: Problem, buffers: Params) -> Full | LowRank:
        centre = {n: shape.centre[n] for n in self._random(problem)}
        if self.structure == "full":
            return Full(centre, shape.rest.tril(-1) + shape.log_scale.exp().diag(), buffers)
        variances = {n: (2 * x).exp() for n, x in shape.log_scale.items()}
        return LowRank(centre, variances, shape.rest, buffers)

    def _prior(self, drawn: Params, shape: Shape, problem: Problem) -> Tensor:
        """The prior's energy: expected where it is normal, since it depends on marginal variances alone; else at the
        draw."""
        network = problem.split(drawn)[0]
        if priors.gaussian(problem.prior, network) is None:
            return -problem.prior.log_prob(network) / problem.prior_temperature
        centre = problem.split(shape.centre)[0]
        spread = tree_map(torch.sqrt, self._variances(shape, problem))
        return priors.expected_energy(problem.prior, centre, spread, Noise.seed(0)) / problem.prior_temperature

    def _variances(self, shape: Shape, problem: Problem) -> Params:
        if self.structure == "full":
            factor = shape.rest.tril(-1) + shape.log_scale.exp().diag()
            return unravel(factor.square().sum(1), {n: shape.centre[n] for n in self._random(problem)})
        return {n: (2 * x).exp() + shape.rest[n].square().sum(0) for n, x in shape.log_scale.items()}

    def _entropy(self, shape: Shape) -> Tensor:
        if self.structure == "full":
            return shape.log_scale.sum() + 0.5 * len(shape.log_scale) * (1 + math.log(2 * math.pi))
        flat = ravel(shape.log_scale)
        scaled = torch.cat([(shape.rest[n] * (-x).exp()).flatten(1) for n, x in shape.log_scale.items()], 1)  # (K, P)
        inner = scaled @ scaled.T + torch.eye(self.rank, dtype=flat.dtype, device=flat.device)
        root, failed = torch.linalg.cholesky_ex(inner)  # which raises nothing: the member's loss is NaN
        logs = torch.where(failed == 0, root.diagonal().log().sum(), math.nan)
        return flat.sum() + logs + 0.5 * len(flat) * (1 + math.log(2 * math.pi))

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("low-rank VI", cls(), 1), Entry("low-rank VI ensemble", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        fast = cls(epochs=400, batch_size=None, draws=400, scale=0.1, rank=3, optimizer=Adam(lr=Cosine(peak=0.1)))
        full, cold = replace(fast, structure="full"), bench.conjugate(temperature=0.3)
        for recipe, exact, structure in (
            (full, bench.conjugate(), "full"),
            (full, cold, "full, temperature 0.3"),
            (fast, bench.conjugate(), "rank 3 of 3"),
        ):
            posterior = bench.fit(recipe, exact.problem, exact.data)
            yield bench.close(f"{structure}: mean", "mu", posterior.mean(), exact.mean, 5e-3)
            roots = exact.covariance.diagonal().sqrt()
            off = (bench.covariance(posterior) - exact.covariance) / (roots[:, None] * roots)
            says = "Lambda^-1, in units of its diagonal"
            yield bench.close(f"{structure}: covariance", says, off, torch.zeros_like(off), 0.03)
            if structure == "full":
                elbo = -exact.data.n * posterior.info["curves"]["loss"][0][-1]  # of 4 steps
                gap = torch.tensor(exact.log_evidence - elbo, dtype=torch.float64)
                z = 4.5 * math.sqrt(0.5 * 3 / (4 * fast.draws))  # the log likelihood of draws has variance below d / 2
                yield bench.close("full: log evidence less the ELBO", "0, z of 4.5", gap, torch.zeros_like(gap), z)
