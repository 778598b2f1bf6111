"""Mean-field variational inference: independent normals, by descent on the negative ELBO (Bayes by backprop).

    q = N(m, diag(s^2)),   loss = E_q[U] - H[q],   U = -sum_n log p(y_n | x_n, theta) / T - log p(theta) / T_prior

up to a constant the divergence from q to the (tempered) posterior, divided by N / T to read as a loss per example: at
temperature 1 it is minus the ELBO over N. Draws are m + s e, so gradients pass through them (Blundell et al. 2015).
The entropy is in closed form, the prior's energy where it is normal, else at the draws. For a linear model with normal
noise the optimum is known: the exact mean, and variances 1 / Lambda_ii, which are below those of the posterior.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.lift import lift_or_loop
from ..core.noise import Noise
from ..core.tree import Params, Point, nbytes, ravel, size, take, tree_map, unravel
from ..core.where import select
from ..data import Data, Stream
from ..engine import Demand, Descent, Finished, GradientMethod, Info, Predicting, Report, Review, Schedule, Step
from ..engine.method import Entry
from ..families import Delta, Diagonal, Family, Partial
from ..optim import SGD, Adam, Cosine, Optimizer
from ..problem import Problem
from ..variational import estimators, judged
from ..variational import prior as priors
from ..variational.estimators import ESTIMATORS, Estimator

if TYPE_CHECKING:
    from ..testing import Bench, Check

LEARNED = 0.5  # part of the steps over which the divergence comes in where the prior is learned
LOG_2PI_E = 1 + math.log(2 * math.pi)


class Variational(NamedTuple):
    """What descent moves."""

    centre: Params  # m, of all parameters: those that are not random are points
    rho: Params  # of the random ones: s = scale exp(pace rho)


@dataclass(frozen=True, kw_only=True)
class MeanField(GradientMethod):
    """A normal distribution with independent parameters, by maximising the ELBO (Bayes by backprop).

    It trains from scratch, or from a trained network with `start=`; a prior centred there is
    `priors.Normal(scale=..., centre=params)`. What the likelihood learns is a point, as are parameters outside of
    `where`. Noise enters each layer in the way that gives the least noisy gradients where that is exact: at the
    outputs of linear layers that see an example once, in the weights of everything else, and of all layers where the
    problem has terms; which one it was is in `posterior.info["notes"]`.
    """

    epochs: int | None = None
    """Passes through the data; None: 3,000 steps, up to 6,000 where that is 32 passes."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))
    """How a gradient becomes a step."""
    patience: int | None = None
    """Reports without a lower validation NLL (of draws) until a member stops, at its best; None: 60 where epochs is
    None, else never."""
    where: str | tuple[str, ...] | None = None
    """Patterns of names that are random; None: all of the network's."""
    scale: float = 0.03
    """Standard deviations at the start: larger ones keep deep networks from learning."""
    pace: float = 0.2
    """Step size of log s over that of the means: at 1, deviations outgrow what was learned."""
    draws: int = 1
    """Draws of the weights per step, whose gradients are averaged."""
    estimator: Estimator = "auto"
    """How gradients are estimated: weights, local or flipout; auto: the one with the least noise that is exact."""
    warm_up: float | None = None
    """Share of the steps over which the weight of entropy and prior rises from 0 to 1; None: 0, or half if the prior is
    learned, which would otherwise shrink to nothing."""
    prior_precision: Literal["elbo", "layers"] | None = None
    """Learn a factor on a Normal prior's precision by the ELBO: "elbo" one, "layers" one per tensor; None: do not."""

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise ValueError(f"expected a positive, finite scale to start from, got {self.scale}")
        if not 0 < self.pace < math.inf:
            raise ValueError(f"expected a positive, finite pace, got {self.pace}")
        if self.draws < 1:
            raise ValueError(f"expected at least 1 draw per step, got {self.draws}")
        if self.estimator not in ESTIMATORS:
            raise ValueError(f"expected an estimator among {', '.join(ESTIMATORS)}, got {self.estimator!r}")
        if self.warm_up is not None and not 0 <= self.warm_up < 1:
            raise ValueError(f"expected warm_up as a part of the steps, at least 0 and below 1, got {self.warm_up}")
        if self.prior_precision not in (None, "elbo", "layers"):
            raise ValueError(f"expected prior_precision 'elbo', 'layers' or None, got {self.prior_precision!r}")

    @property
    def randomised(self) -> bool:  # type: ignore[override]
        """Noise is an example's own unless it is that of weights."""
        return self.estimator != "weights"

    def adapt(self, problem: Problem) -> Problem:
        priors.check(problem, self.prior_precision)
        return estimators.altered(problem, self._random(problem), self.estimator)

    def context(self, problem: Problem, data: Data | Stream) -> dict[str, dict[str, Tensor]]:
        """The layers that are perturbed example by example, by how that is done."""
        kinds = estimators.kinds(problem, data, self._random(problem), self.estimator)
        return {kind: {n: torch.zeros(()) for n, k in kinds.items() if k == kind} for kind in sorted({*kinds.values()})}

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        params = Variational(point.params, {n: torch.zeros_like(point.params[n]) for n in self._random(problem)})
        return Descent(params, point.buffers, self.optimizer.init(params))

    def loss(self, params: Variational, state: Descent, step: Step) -> Info:
        problem, logs = step.problem, self._log_scale(ravel(params.rho))  # one vector: a pass in place of many
        scale = unravel(logs.exp(), params.rho)
        chosen = {n: kind for kind, names in step.context.items() for n in names}
        examples = step.batch.targets.shape[0]

        def energy(key: Tensor, buffers: Params) -> tuple[Tensor, Params]:
            noise = Noise(key)
            own = noise.split("weights")
            drawn, given = estimators.perturbed(params.centre, scale, chosen, problem, examples, own)
            return problem.data_potential(drawn, buffers | given, step.batch, noise, "train")

        potential, buffers = self._averaged(energy, state.buffers, step.noise)
        kept = {n: x for n, x in buffers.items() if n in state.buffers}
        divergence = self._prior(problem, params.centre, scale, step.noise) - _entropy(logs)
        weight = self._warmth(step.batch.step, step.batch.total)
        return Info((potential + weight * divergence) / step.scale, buffers=kept)

    def point(self, state: Descent) -> Point:
        return Point(state.params.centre, state.buffers)

    def judged(self, state: Descent, problem: Problem, n: int) -> Sequence[Point]:
        return judged.draws(self._random_part(state), state.params.centre, state.buffers)

    def review(self, state: Descent, report: Report) -> Review:
        spread = float(ravel(self._random_part(state).scale).median())
        return super().review(state, report)._replace(curves={"spread": spread})

    def fault(self, state: Descent, problem: Problem) -> str:
        """The parameters whose part of the divergence is not finite, where there are such."""
        return priors.in_words(priors.not_finite(problem, state.params.centre, self._random_part(state).scale))

    def finish(
        self, state: Descent, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        part = self._random_part(state)
        points = judged.draws(part, state.params.centre, state.buffers)
        centre, curves = judged.settled(problem, state.params.centre, points, val)
        rest, scale = {n: x for n, x in centre.items() if n not in part.scale}, part.scale
        family: Family = Partial(Delta(rest, state.buffers), part) if rest else part
        if self.prior_precision is not None:
            learned = priors.factors(problem.prior, problem.split(centre)[0], scale, self.prior_precision)
            curves |= {"prior_factor": list(learned.values()), "prior_factor_names": list(learned)}
        kinds = self.context(problem, data) if data is not None else {}
        lines = [f"{kind}: {', '.join(n or 'the layer' for n in names)}" for kind, names in kinds.items()]
        return Finished(family, curves, tuple([f"noise by layer: {'; '.join(lines)}"] if lines else []))

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        random = {n: point.params[n] for n in self._random(problem)}
        drawn = Predicting(self.samples, self.samples, size(random), 2.0 * size(random))
        return Demand(nbytes(point) + nbytes(random), what=f"{size(random):,} variances", predict=drawn)

    def _random(self, problem: Problem) -> tuple[str, ...]:
        return select(problem.network.params, self.where)

    def _log_scale(self, rho: Tensor) -> Tensor:
        return math.log(self.scale) + self.pace * rho

    def _random_part(self, state: Descent) -> Diagonal:
        centre, scale = state.params.centre, {n: self._log_scale(x).exp() for n, x in state.params.rho.items()}
        return Diagonal({n: centre[n] for n in scale}, scale, state.buffers)

    def _averaged(self, energy: Any, buffers: Params, noise: Noise) -> tuple[Tensor, Params]:
        """The mean of the potential over draws, and the buffers after the first of them."""
        if self.draws == 1:
            return energy(noise.key, buffers)
        each = tree_map(lambda x: x.expand(self.draws, *x.shape).clone(), buffers)
        potentials, after = lift_or_loop(energy)(noise.spread(self.draws).key, each)
        return potentials.mean(), take(after, 0)

    def _prior(self, problem: Problem, centre: Params, scale: Params, noise: Noise) -> Tensor:
        network = problem.split(centre)[0]
        if self.prior_precision is not None:
            energy = priors.tuned_energy(problem.prior, network, scale, self.prior_precision)
        else:
            energy = priors.expected_energy(problem.prior, network, scale, noise)
        return energy / problem.prior_temperature

    def _warmth(self, clock: Tensor, n: int) -> Tensor | float:
        part = (0.0 if self.prior_precision is None else LEARNED) if self.warm_up is None else self.warm_up
        if not isinstance(part, Tensor) and part == 0:
            return 1.0
        return ((clock + 1) / (part * self.schedule(n).steps)).clamp(max=1.0)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("mean-field VI", cls(), 1), Entry("mean-field VI ensemble", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        fast = cls(epochs=350, batch_size=None, draws=200, scale=0.1, optimizer=Adam(lr=Cosine(peak=0.1)))
        for exact, suffix in ((bench.conjugate(), ""), (bench.conjugate(temperature=0.3), ", temperature 0.3")):
            family: Any = take(bench.fit(fast, exact.problem, exact.data).parts[0].family, 0)
            yield bench.close(f"mean{suffix}", "mu", family.centre, exact.mean, 5e-3)
            measured, says = ravel(family.scale).square() * exact.precision.diagonal(), "1, in units of 1 / Lambda_ii"
            yield bench.close(f"variances{suffix}", says, measured, torch.ones_like(measured), 0.02)
        exact, count, scale = bench.conjugate(), 20_000, 0.1
        still = cls(epochs=1, batch_size=None, draws=count, scale=scale, estimator="weights", optimizer=SGD(lr=0.0))
        likelihood = exact.precision - torch.eye(3, dtype=torch.float64) / exact.problem.prior.scale**2  # type: ignore[attr-defined]
        for where, start in (("away from the optimum", exact.mean + 0.1), ("at the mean", exact.mean)):
            posterior = bench.fit(still, exact.problem, exact.data, start=start)
            elbo = -exact.data.n * posterior.info["curves"]["loss"][0][0]
            gap = _divergence(start, torch.full_like(start, scale), exact.mean, exact.precision)
            measured = torch.tensor(exact.log_evidence - elbo, dtype=torch.float64)
            slope = likelihood @ start - exact.precision @ exact.mean  # of the log likelihood, quadratic in the draws
            variance = scale**2 * slope.square().sum() + 0.5 * scale**4 * likelihood.square().sum()
            z = 4.5 * float(variance / count) ** 0.5
            yield bench.close(f"log evidence less the ELBO, {where}", "KL(q | posterior), z of 4.5", measured, gap, z)


def _entropy(log_scale: Tensor) -> Tensor:
    return log_scale.sum() + 0.5 * len(log_scale) * LOG_2PI_E


def _divergence(mean: Tensor, scale: Tensor, centre: Tensor, precision: Tensor) -> Tensor:
    """KL(N(mean, diag(scale^2)) | N(centre, precision^-1))."""
    offset = mean - centre
    trace = (precision.diagonal() * scale.square()).sum()
    logs = torch.linalg.slogdet(precision)[1] + 2 * scale.log().sum()
    return 0.5 * (trace + offset @ precision @ offset - len(mean) - logs)
