"""IVON: mean-field variational inference by natural gradients, at the price of Adam (Shen et al. 2024).

    q = N(m, diag 1 / (lambda (h + delta))),   lambda = N / T,   delta = prior precision / lambda

    theta = m + s e;  g = slope of the loss per example at theta;  h' = g e / s, an estimate of its curvature
    v <- b1 v + (1 - b1) g
    h <- b2 h + (1 - b2) h' + (1 - b2)^2 (h - h')^2 / (2 (h + delta))     so that h + delta stays above zero
    m <- m - lr min(h0 + delta, 1) (v / (1 - b1^t) + delta (m - c)) / (h + delta)

The effective sample size is N, from the data, and delta follows from the prior, centred on c: neither is a knob. The
fixed point is that of mean-field variational inference. At 1 and lr = 1 a step is Newton's, which is why the factor
h0 + delta of the published step is not let above it: a strong prior would make it diverge. What the likelihood learns
is a point and follows v / (1 - b1^t) at the rate lr, by at most lr in a step.

Four bounds keep it from running off, as the published form does on tables. q starts with standard deviations of at
most 0.03 (h0 up to 5). h is not let below 0, so that no weight is wider than its prior. A step divides by h or h0 / 10,
whichever is more. Before the learning rate no element's step is larger than `clip`. The fixed point is the same
wherever the expected curvature is positive, since where the means stand still does not depend on how they get there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from ..core.lift import gradient, lift_or_loop
from ..core.noise import Noise
from ..core.tree import Params, Point, nbytes, ravel, size, take, tree_map
from ..data import Data, Stream
from ..engine import Demand, Finished, Info, Method, Predicting, Report, Review, Schedule, Step
from ..engine.method import Entry, patience_of
from ..families import Delta, Diagonal, Partial
from ..optim import Cosine, Rate
from ..problem import Batch, Problem
from ..variational import judged
from ..variational import prior as priors
from ..variational.estimators import normals

if TYPE_CHECKING:
    from ..testing import Bench, Check

USUAL, WIDEST = 0.5, 0.03  # h0, and the largest standard deviation at the start
LEAST = 0.1  # of h0: a step divides by no smaller curvature


class State(NamedTuple):
    """Of one member."""

    centre: Params  # m
    curvature: Params  # h, of the network's parameters
    velocity: Params  # v
    buffers: Params


class Slopes(NamedTuple):
    """What is estimated at a draw."""

    loss: Tensor
    grads: Params
    curvature: Params  # h'
    buffers: Params


@dataclass(frozen=True, kw_only=True)
class IVON(Method):
    """A normal distribution with independent parameters whose variances come from the curvature that noisy gradients
    show (improved variational online Newton). The prior must be normal."""

    epochs: int | None = None
    """Passes through the data; None: 3,000 steps, up to 6,000 where that is 32 passes."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    patience: int | None = None
    """Reports without a lower validation NLL (of draws) until a member stops, at its best; None: 60 where epochs is
    None, else never."""
    lr: float | Rate = Cosine(peak=0.2)
    """Learning rate, multiplied by min(h0 + delta, 1) / (h + delta)."""
    curvature: float | None = None
    """h0, that of the loss per example at the start; None: 0.5, or up to 5 where q would else start with standard
    deviations above 0.03, too wide to learn."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Part kept of the gradient's mean and of the curvature, in [0, 1); the second 0.99999 for hundreds of thousands of
    steps, as published."""
    clip: float | None = 1.0
    """Largest size of an element's step before lr (h0 + delta); None: any, with which steep losses, such as that of a
    small noise, throw the weights far off before h knows of them."""
    draws: int = 1
    """Draws of the weights per step."""
    accumulate: int = 1
    """Passes in which a batch is computed, one after another, in the memory of its parts; the step is that of the whole
    batch, at one draw."""

    def __post_init__(self) -> None:
        if not isinstance(self.lr, Rate) and not 0 <= self.lr < math.inf:
            raise ValueError(f"expected a finite learning rate of at least 0, got {self.lr}")
        if self.curvature is not None and not 0 < self.curvature < math.inf:
            raise ValueError(f"expected a positive, finite curvature to start from, got {self.curvature}")
        if len(self.betas) != 2 or not all(0 <= b < 1 for b in self.betas):
            raise ValueError(f"expected two betas of at least 0 and below 1, got {self.betas}")
        if self.clip is not None and not self.clip > 0:
            raise ValueError(f"expected clip above 0, or None, got {self.clip}")
        if self.draws < 1:
            raise ValueError(f"expected at least 1 draw per step, got {self.draws}")
        if self.accumulate < 1:
            raise ValueError(f"expected accumulate of at least 1 pass, got {self.accumulate}")

    def adapt(self, problem: Problem) -> Problem:
        """The same problem; raises where the prior is not normal."""
        if priors.gaussian(problem.prior, _zeros(problem)) is None:
            raise ValueError(
                f"IVON adds the precision of a normal prior to the curvature, got {type(problem.prior).__name__}: use "
                "bn.priors.Normal, or MeanField, which takes any prior"
            )
        return problem

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> State:
        network = problem.split(point.params)[0]
        rough = [n for n, x in network.items() if torch.finfo(x.dtype).eps > 1 - self.betas[1]]
        if rough:
            raise ValueError(
                f"a curvature of which each step keeps {self.betas[1]:g} does not move in {network[rough[0]].dtype} "
                f"({rough[0]}): keep the parameters in float32, and compute products in bfloat16 by "
                "Engine(autocast=torch.bfloat16)"
            )
        curvature = {
            n: torch.full_like(x, self.curvature or USUAL) for n, x in network.items()
        }  # the first step knows N
        return State(point.params, curvature, tree_map(torch.zeros_like, point.params), point.buffers)

    def update(self, state: State, step: Step) -> tuple[State, Info]:
        first, second = self.betas
        deltas, centres = _prior(step.problem, state.curvature, step.scale)
        start = self.curvature or min(max(USUAL, 1 / (step.scale * WIDEST**2)), 10 * USUAL)
        begin = step.batch.step == 0
        state = state._replace(curvature={n: torch.where(begin, start, h) for n, h in state.curvature.items()})
        seen = self._slopes(state, deltas, step)
        velocity = {n: first * v + (1 - first) * seen.grads[n] for n, v in state.velocity.items()}
        curvature = {}
        for n, h in state.curvature.items():
            gap = h - seen.curvature[n]
            bend = 0.5 * (1 - second) ** 2 * gap.square() / (h + deltas[n])
            curvature[n] = (h - (1 - second) * gap + bend).clamp(min=0)
        steps, clock = self.schedule(step.batch.total).steps, step.batch.step
        rate = self.lr(clock, steps) if isinstance(self.lr, Rate) else self.lr
        correction = 1 - torch.as_tensor(first, dtype=torch.float64, device=clock.device) ** (clock + 1)
        centre = {}
        for n, m in state.centre.items():
            way = velocity[n] / correction.to(m.dtype)
            if n in curvature:
                pull = deltas[n] * (m - centres[n] if n in centres else m)
                way = (way + pull) / (curvature[n].clamp(min=LEAST * start) + deltas[n])
                way = way if self.clip is None else way.clamp(-self.clip, self.clip)
                way = way * _at_most_one(start + deltas[n])
            else:
                way = way.clamp(-1, 1)
            centre[n] = m - (rate.to(m.dtype) if isinstance(rate, Tensor) else rate) * way
        return State(centre, curvature, velocity, seen.buffers), Info(seen.loss)

    def point(self, state: State) -> Point:
        return Point(state.centre, state.buffers)

    @property
    def best(self) -> bool:
        return patience_of(self) is not None

    def judged(self, state: State, problem: Problem, n: int) -> Sequence[Point]:
        return judged.draws(_random_part(state, problem, n), state.centre, state.buffers)

    def review(self, state: State, report: Report) -> Review:
        patience = patience_of(self)
        spread = float(ravel(_random_part(state, report.problem, report.data.n).scale).median())
        return Review(state, patience is not None and report.waited >= patience, {"spread": spread})

    def fault(self, state: State, problem: Problem) -> str:
        """The parameters whose part of the divergence is not finite, where there are such."""
        bad = {n for n, h in state.curvature.items() if not bool(h.isfinite().all())}
        bad |= {*priors.not_finite(problem, state.centre, {})}
        return priors.in_words([n for n in state.centre if n in bad])

    def finish(
        self, state: State, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        assert data is not None  # `needs` says so
        family = _random_part(state, problem, data.n)
        points = judged.draws(family, state.centre, state.buffers)
        centre, curves = judged.settled(problem, state.centre, points, val)
        rest = {n: x for n, x in centre.items() if n not in family.scale}
        return Finished(Partial(Delta(rest, state.buffers), family) if rest else family, curves)

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        random = problem.split(point.params)[0]
        drawn = Predicting(self.samples, self.samples, size(random), 2.0 * size(random))
        return Demand(nbytes(point) + nbytes(random), what=f"{size(random):,} variances", predict=drawn)

    def _slopes(self, state: State, deltas: dict[str, Any], step: Step) -> Slopes:
        """Gradient and curvature of the loss per example at draws, averaged."""
        scale, problem = _scale(state.curvature, deltas, step.scale), step.problem

        def of_one(key: Tensor, buffers: Params) -> Slopes:
            noise = Noise(key)
            z = normals(scale, noise.split("weights"))
            drawn = state.centre | {n: state.centre[n] + s * z[n] for n, s in scale.items()}

            def loss(params: Params, buffers: Params, batch: Batch, noise: Noise) -> tuple[Tensor, Params]:
                energy, after = problem.data_potential(params, buffers, batch, noise, "train")
                return energy / step.scale, after

            slope = gradient(loss, lambda result: result[0])
            first, *others = _parts(step.batch, self.accumulate)
            grads, (value, buffers) = slope(drawn, buffers, first, noise)
            if others:
                value, grads = tree_map(lambda x: x * _share(first, step.batch), (value, grads))
            for i, part in enumerate(others):
                own, (loss_there, buffers) = slope(drawn, buffers, part, noise.split(i))
                share = _share(part, step.batch)
                value, grads = tree_map(lambda x, y, share=share: x + share * y, (value, grads), (loss_there, own))
            return Slopes(value, grads, {n: grads[n] * z[n] / s for n, s in scale.items()}, buffers)

        if self.draws == 1:
            return of_one(step.noise.key, state.buffers)
        each = tree_map(lambda x: x.expand(self.draws, *x.shape).clone(), state.buffers)
        all_ = lift_or_loop(of_one)(step.noise.spread(self.draws).key, each)
        means = tree_map(lambda x: x.mean(0), Slopes(all_.loss, all_.grads, all_.curvature, {}))
        return means._replace(buffers=take(all_.buffers, 0))

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("IVON", cls(), 1), Entry("IVON ensemble", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        recipe = cls(epochs=250, batch_size=None, lr=Cosine(peak=0.3), curvature=1.0, betas=(0.9, 0.96), draws=300)
        for exact, suffix in ((bench.conjugate(), ""), (bench.conjugate(temperature=0.3), ", temperature 0.3")):
            family: Any = take(bench.fit(recipe, exact.problem, exact.data).parts[0].family, 0)
            yield bench.close(f"mean{suffix}", "mu", family.centre, exact.mean, 5e-3)
            variances, says = ravel(family.scale).square() * exact.precision.diagonal(), "1, in units of 1 / Lambda_ii"
            yield bench.close(f"variances{suffix}", says, variances, torch.ones_like(variances), 0.02)


def _prior(problem: Problem, like: Params, times: float) -> tuple[dict[str, Any], Params]:
    """delta of each tensor, and the prior's centres where they are not zero. Times is N / T."""
    known = priors.gaussian(problem.prior, like)
    assert known is not None  # adapt has checked
    return {n: s**-2 / (problem.prior_temperature * times) for n, s in known.scale.items()}, known.centre


def _random_part(state: State, problem: Problem, n: int) -> Diagonal:
    """q, of a training with n examples."""
    times = problem.scale(n)
    scale = _scale(state.curvature, _prior(problem, state.curvature, times)[0], times)
    return Diagonal({name: state.centre[name] for name in scale}, scale, state.buffers)


def _parts(batch: Batch, count: int) -> list[Batch]:
    """A batch in `count` parts, or in as many as it has examples."""
    n = batch.targets.shape[0]
    count = min(count, n)
    if count == 1:
        return [batch]
    parts = []
    for i in range(count):
        cut = slice(n * i // count, n * (i + 1) // count)
        index = batch.index[cut] if batch.index.dim() else batch.index  # of a stream it is the batch's number
        weights = None if batch.weights is None else batch.weights[cut]
        parts.append(Batch(take(batch.inputs, cut), batch.targets[cut], index, batch.step, batch.total, weights))
    return parts


def _share(part: Batch, batch: Batch) -> float:
    return part.targets.shape[0] / batch.targets.shape[0]


def _scale(curvature: Params, deltas: dict[str, Any], times: float) -> Params:
    """Standard deviations."""
    return {n: (times * (h + deltas[n])).rsqrt() for n, h in curvature.items()}


def _at_most_one(factor: Any) -> Any:
    return factor.clamp(max=1.0) if isinstance(factor, Tensor) else min(factor, 1.0)


def _zeros(problem: Problem) -> Params:
    return {n: torch.zeros(shape) for n, shape in problem.network.params.items()}
