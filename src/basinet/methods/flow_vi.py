"""Flow posteriors: a normal distribution bent by a flow, by maximising the ELBO.

    theta = f_T(... f_1(z)),   z ~ N(m, Sigma),   loss = E[U(theta) - sum_t log |det f_t'|] - H[N(m, Sigma)]

The normal is that of the posterior it starts from, which stays as it is: around a Laplace approximation of the last
layer, with radial flows, this is LA-NF (Kristiadi et al. 2022). Around a point it is a diagonal one that is learned
with the flow. All maps start as the identity, so that the ELBO begins at that of the normal. Parameters outside of it
stay where they are, and so do norm statistics.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.lift import lift, lift_or_loop
from ..core.noise import Noise
from ..core.tree import Params, Point, move, nbytes, ravel, size, unravel
from ..core.where import select
from ..data import Data, Stream
from ..engine import Based, Demand, Descent, GradientMethod, Info, Method, Predicting, Schedule, Step
from ..engine.method import Entry
from ..families import Delta, Diagonal, Family, Full, Partial, flows
from ..families import Flow as FlowFamily
from ..layers.carrying import Carrying
from ..optim import Adam, Cosine, Optimizer
from ..problem import Problem
from ..variational import prior as priors

if TYPE_CHECKING:
    from ..testing import Bench, Check

PREFIX = "flow."
SCALE, OF, FACTOR = f"{PREFIX}scale.", f"{PREFIX}of.", f"{PREFIX}factor"  # buffers that hold the normal it starts from
MEAN = 2000  # draws whose mean is that of the posterior
TOGETHER = 50  # of them


class Moved(NamedTuple):
    """What descent moves."""

    maps: Params
    centre: Params  # m and log of the diagonal of Sigma^1/2, where these are learned; else empty
    log_scale: Params


class Kept(NamedTuple):
    """What stays."""

    params: Params  # the point
    scale: Params  # of a diagonal normal that was given
    of: Params  # names of the params of a normal with a factor
    factor: Tensor  # (P, P); (0,) where it is diagonal


@dataclass(frozen=True, kw_only=True)
class FlowVI(Based, GradientMethod):
    """A normal distribution bent by radial, planar or coupling flows: around Laplace's last layer, LA-NF.

    `FlowVI(base=Laplace(structure="full"))` bends the last layer's Laplace approximation; `start=` takes any posterior
    whose members are normal. Around a point (MAP) the parameters that `where` names have a diagonal normal that is
    learned with the flow.
    """

    norm: ClassVar[Literal["train", "frozen", "refresh"]] = "frozen"

    base: Method | None = None
    """The recipe whose normal distribution is bent, if fit gets no start; None: MAP(), a point."""
    epochs: int | None = 20
    """Passes through the data, as published; None: 3,000 steps, up to 6,000."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=1e-3))
    """How a gradient becomes a step."""
    flow: Literal["radial", "planar", "coupling"] = "radial"
    """The kind of the maps; coupling is RealNVP."""
    maps: int = 10
    """Maps in a row; 0 is the normal itself."""
    where: str | tuple[str, ...] | None = None
    """Around a point: patterns of names that are random; None: all."""
    scale: float = 0.02
    """Around a point: standard deviations at the start."""
    draws: int = 4
    """Draws of the weights per step, whose gradients are averaged."""

    def __post_init__(self) -> None:
        if self.flow not in flows.KINDS:
            raise ValueError(f"expected a kind of flow among {', '.join(flows.KINDS)}, got {self.flow!r}")
        if self.maps < 0:
            raise ValueError(f"expected at least 0 maps, got {self.maps}")
        if self.draws < 1:
            raise ValueError(f"expected at least 1 draw per step, got {self.draws}")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"expected a positive, finite scale to start from, got {self.scale}")

    def adapt(self, problem: Problem) -> Problem:
        select(problem.network.params, self.where)
        priors.check(problem, None)
        problem = Based.adapt(self, problem)
        return problem.through(Carrying(problem.network, PREFIX))

    def starting(self, family: Family) -> Point:
        """The mean, and the covariance of what is normal among the buffers."""
        point = family.mean()
        part = family.part if isinstance(family, Partial) else family
        if part.points is not None:
            return point
        if isinstance(part, Diagonal):
            return Point(point.params, point.buffers | {SCALE + n: s for n, s in part.scale.items()})
        params = part.mean().params
        like = ravel(params)
        factor = part.factor if isinstance(part, Full) else _factor(part)
        of = {OF + n: like.new_empty(0) for n in params} | {FACTOR: factor.to(like.dtype)}
        return Point(point.params, point.buffers | of)

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        given = point.buffers
        scale = {n.removeprefix(SCALE): x for n, x in given.items() if n.startswith(SCALE)}
        of = {n.removeprefix(OF): x for n, x in given.items() if n.startswith(OF)}
        names = tuple(scale or of or select(problem.network.params, self.where))
        chosen = {n: point.params[n] for n in names}
        like = ravel(chosen)
        own: Params = {} if scale or of else chosen
        start = {n: torch.full_like(x, math.log(self.scale)) for n, x in own.items()}
        maps = flows.start(self.flow, self.maps, like, noise.split("maps")) if self.maps else {}
        params = Moved(maps, own, start)
        kept = Kept(point.params, scale, of, given[FACTOR] if of else like.new_empty(0))
        buffers = {n: x for n, x in given.items() if not n.startswith(PREFIX)}
        return Descent(params, buffers, self.optimizer.init(params), kept)

    def loss(self, params: Moved, state: Descent, step: Step) -> Info:
        problem, before = step.problem, self._before(params, state)

        def energy(key: Tensor) -> Tensor:
            noise = Noise(key)
            chosen = before.sample(noise.split("weights")).params
            z, logs = self._mapped(params.maps, ravel(chosen))
            theta = state.memory.params | unravel(z, chosen)
            potential, _ = problem.data_potential(theta, state.buffers, step.batch, noise, "eval")
            return potential - problem.log_prior(theta) / problem.prior_temperature - logs

        each = lift_or_loop(energy)(step.noise.spread(self.draws).key)
        return Info((each.mean() - _entropy(before)) / step.scale)

    def point(self, state: Descent) -> Point:
        return Point(state.memory.params | state.params.centre, state.buffers)

    def fault(self, state: Descent, problem: Problem) -> str:
        """The parameters whose part of the divergence is not finite, where there are such; else the flow."""
        before = self._before(state.params, state)
        names = before.mean().params
        scale = unravel(before.factor.norm(dim=1), names) if isinstance(before, Full) else before.scale
        bad = priors.in_words(priors.not_finite(problem, state.memory.params | names, scale))
        maps = [n for n, x in state.params.maps.items() if not bool(x.isfinite().all())]
        return bad or (f"the flow is not finite in its {', '.join(maps)}" if maps else "")

    def finish(
        self, state: Descent, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Family:
        before = self._before(state.params, state)
        names = before.mean().params
        rest = {n: x for n, x in state.memory.params.items() if n not in names}
        part: Family = before
        if self.maps:
            shell = FlowFamily(before, state.params.maps, names, self.flow)
            total, root = torch.zeros_like(ravel(names), dtype=torch.float64), noise.split("mean")
            for i in range(0, MEAN, TOGETHER):
                draws = shell.draws(root, i, i + TOGETHER).params
                total = total + ravel(draws, 1).double().sum(0)
            part = FlowFamily(
                before, state.params.maps, unravel((total / MEAN).to(ravel(names).dtype), names), self.flow
            )
        return Partial(Delta(rest, state.buffers), part) if rest else part

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        given = [n for n in point.buffers if n.startswith((SCALE, OF))]
        names = [n.removeprefix(SCALE).removeprefix(OF) for n in given] or select(problem.network.params, self.where)
        count = size({n: point.params[n] for n in names})
        each = next(iter(point.params.values())).element_size()
        half = (count + 1) // 2
        numbers = {"radial": count + 2, "planar": 2 * count + 1}.get(self.flow, half * (half + 3 * flows.HIDDEN + 4))
        kept = nbytes(point) + (2 * count + self.maps * numbers) * each
        what = f"{self.maps} {self.flow} maps of {count:,} parameters"
        drawn = Predicting(self.samples, self.samples, count, 2.0 * self.maps * numbers)
        return Demand(kept, TOGETHER * count * each, what=what, predict=drawn)

    def variants(self) -> Iterable[Method]:
        return (self,) if self.flow == "radial" else (self, replace(self, flow="radial"))

    def _before(self, params: Moved, state: Descent) -> Diagonal | Full:
        kept: Kept = state.memory
        if kept.of:
            return Full({n: kept.params[n] for n in kept.of}, kept.factor, state.buffers)
        if kept.scale:
            return Diagonal({n: kept.params[n] for n in kept.scale}, kept.scale, state.buffers)
        return Diagonal(params.centre, {n: x.exp() for n, x in params.log_scale.items()}, state.buffers)

    def _mapped(self, maps: Params, z: Tensor) -> tuple[Tensor, Tensor]:
        return flows.forward(self.flow, maps, z) if maps else (z, z.new_zeros(()))

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("radial flow", cls(), 1), Entry("radial flow ensemble", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact = bench.conjugate()
        adam = Adam(lr=Cosine(peak=0.05))
        precision = exact.precision
        independent = 0.5 * float(precision.diagonal().log().sum() - torch.linalg.slogdet(precision)[1])
        recipe = cls(epochs=200, batch_size=None, maps=4, flow="coupling", scale=0.1, draws=128, optimizer=adam)
        for maps, says, expected, tolerance in (
            (4, "below a tenth of that of independent parameters", 0.0, 0.1 * independent),
            (0, "that of independent parameters", independent, 0.1),
        ):
            posterior = bench.fit(replace(recipe, maps=maps), exact.problem, exact.data, start=exact.mean)
            losses = posterior.info["curves"]["loss"][0][-20:]  # of 40 steps
            gap = torch.tensor(exact.log_evidence + exact.data.n * sum(losses) / len(losses), dtype=torch.float64)
            known = torch.full_like(gap, expected)
            yield bench.close(f"log evidence less the ELBO, {maps} coupling maps", says, gap, known, tolerance)


def _factor(part: Family) -> Tensor:
    """The Cholesky factor of a normal's covariance, in double precision; of the nearest positive definite one, where
    rounding has left it without."""
    double = move(part, dtype=torch.float64)
    params = double.mean().params
    like = ravel(params)
    eye = torch.eye(len(like), dtype=like.dtype, device=like.device)
    covariance = double.quad(lift(lambda row: unravel(row, params))(eye))  # raises where it is not normal
    if not bool(covariance.isfinite().all()):
        bad = unravel(covariance.diagonal(), params)
        names = ", ".join(n for n, x in bad.items() if not bool(x.isfinite().all())) or "some pairs of parameters"
        raise FloatingPointError(
            f"the covariance of the normal to be bent is not finite in {names}: check the posterior that base or start "
            "gives"
        )
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if not failed:
        return factor
    values, vectors = torch.linalg.eigh(covariance)
    least = torch.finfo(values.dtype).eps * len(values) * values.amax()
    upper = torch.linalg.qr((vectors * values.clamp(min=least).sqrt()).mT, mode="r").R
    return (upper * upper.diagonal().sign()[:, None]).mT


def _entropy(before: Diagonal | Full) -> Tensor:
    if isinstance(before, Full):
        logs, count = before.factor.diagonal().log().sum(), len(before.factor)
    else:
        logs, count = ravel(before.scale).log().sum(), size(before.scale)
    return logs + 0.5 * count * (1 + math.log(2 * math.pi))
