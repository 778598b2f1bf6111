"""Variational dropout: noise in proportion to each weight, its size learned; what is all noise is pruned.

    w = theta (1 + sqrt(alpha) e),   e ~ N(0, 1),   prior 1 / |w| (log-uniform)
    loss = E_q[-sum_n log p(y_n | x_n, w)] / T + sum over weights of KL(alpha) / T_prior

KL depends only on alpha, up to a constant, and has no closed form: E ln|e|, e ~ N(1, alpha). Two approximations of it:

    molchanov   k1 - k1 sigmoid(k2 + k3 ln alpha) + ln(1 + 1 / alpha) / 2     any alpha, within .0094 (Molchanov 2017)
    kingma      -ln(alpha) / 2 - c1 alpha - c2 alpha^2 - c3 alpha^3           alpha up to 1 (Kingma et al. 2015)

A weight of large alpha carries no information, and is zero in the posterior (sparse variational dropout). The
noise of a linear layer is that of its outputs (local reparametrisation).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, nbytes, size
from ..core.where import select
from ..data import Data, Stream
from ..engine import Demand, Descent, Finished, GradientMethod, Info, Predicting, Report, Review, Schedule, Step
from ..engine.method import Entry
from ..families import Delta, Diagonal, Family, Partial
from ..optim import Adam, Cosine, Optimizer
from ..problem import Problem
from ..problem.priors import LogUniform
from ..variational import estimators, judged
from ..variational import prior as priors

if TYPE_CHECKING:
    from ..testing import Bench, Check

K1, K2, K3 = 0.63576, 1.87320, 1.48695
C1, C2, C3 = 1.16145124, -1.50204118, 0.58629921
START = {"weight": -10.0, "unit": math.log(0.1), "layer": math.log(0.1)}  # ln sigma^2 as published; else ln alpha
MOST = (
    8.0  # of ln alpha: above it a weight is only noise. Below there is no end: where it stood still, none would leave
)
EULER = 0.5772156649015329
FLOOR = 1e-15  # standard deviation of a weight that is pruned, so that there is a density


class Variational(NamedTuple):
    """What descent moves."""

    centre: Params  # theta, and all other parameters
    log_size: Params  # of the noise: ln sigma^2 of each weight, or ln alpha of units (1, i, ...) or layers ()


@dataclass(frozen=True, kw_only=True)
class VariationalDropout(GradientMethod):
    """Weights with learned noise in proportion to them, under a log-uniform prior; weights that are all noise are
    pruned.

    The log-uniform prior of the weights takes the place of the problem's prior, which all other parameters (biases,
    norm layers) keep. It is improper, and so is the posterior in principle: with little data it prunes too much, and
    what is pruned is certain to be zero.
    """

    randomised: ClassVar[bool] = True

    epochs: int | None = None
    """Passes through the data; None: 3,000 steps, up to 6,000 where that is 32 passes."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=5e-3))
    """How a gradient becomes a step."""
    patience: int | None = None
    """Reports without a lower validation NLL (of draws) until a member stops, at its best; None: 60 where epochs is
    None, else never."""
    where: str | tuple[str, ...] | None = None
    """Patterns of names with noise; None: all matrices and kernels."""
    per: Literal["weight", "unit", "layer"] = "weight"
    """What has an alpha of its own: each weight, each input of a layer, or each layer."""
    divergence: Literal["molchanov", "kingma"] = "molchanov"
    """Approximation of KL; kingma keeps alpha at most 1."""
    warm_up: float = 0.5
    """Share of the steps over which the weight of the divergence rises from 0 to 1."""
    prune: float | None = 3.0
    """The value of ln alpha above which a weight is zero, as published; None: keep all."""

    def __post_init__(self) -> None:
        if self.per not in START:
            raise ValueError(f"expected per 'weight', 'unit' or 'layer', got {self.per!r}")
        if self.divergence not in ("molchanov", "kingma"):
            raise ValueError(f"expected divergence 'molchanov' or 'kingma', got {self.divergence!r}")
        if not 0 <= self.warm_up < 1:
            raise ValueError(f"expected warm_up as a part of the steps, at least 0 and below 1, got {self.warm_up}")
        if self.prune is not None and not self.prune <= MOST:
            raise ValueError(f"expected prune of at most {MOST:g}, the largest ln alpha, or None, got {self.prune}")

    def adapt(self, problem: Problem) -> Problem:
        return estimators.altered(problem, self._noisy(problem), "auto")

    def context(self, problem: Problem, data: Data | Stream) -> dict[str, dict[str, Tensor]]:
        """The layers that are perturbed example by example, by how that is done."""
        kinds = estimators.kinds(problem, data, self._noisy(problem), "auto")
        return {kind: {n: torch.zeros(()) for n, k in kinds.items() if k == kind} for kind in sorted({*kinds.values()})}

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        start = {}
        for n in self._noisy(problem):
            x = point.params[n]
            shapes = {"weight": x.shape, "unit": (1, *x.shape[1:2], *(1 for _ in x.shape[2:])), "layer": ()}
            start[n] = x.new_full(shapes[self.per], START[self.per])
        params = Variational(point.params, start)
        return Descent(params, point.buffers, self.optimizer.init(params))

    def loss(self, params: Variational, state: Descent, step: Step) -> Info:
        problem = step.problem
        chosen = {n: kind for kind, names in step.context.items() for n in names}
        own, examples = step.noise.split("weights"), step.batch.targets.shape[0]
        drawn, given = estimators.perturbed(params.centre, self._scale(params), chosen, problem, examples, own)
        energy, after = problem.data_potential(drawn, state.buffers | given, step.batch, step.noise, "train")
        divergence = torch.stack([self._divergence(params, n).sum() for n in params.log_size]).sum()
        weight = self._warmth(step.batch.step, step.batch.total)
        energy = energy + weight * divergence / problem.prior_temperature + _rest(problem, params)
        buffers = {n: x for n, x in after.items() if n in state.buffers}
        return Info(energy / step.scale, buffers=buffers)

    def point(self, state: Descent) -> Point:
        return Point(state.params.centre, state.buffers)

    def judged(self, state: Descent, problem: Problem, n: int) -> Sequence[Point]:
        return judged.draws(self._random_part(state), state.params.centre, state.buffers)

    def review(self, state: Descent, report: Report) -> Review:
        return super().review(state, report)._replace(curves={"kept": self._kept_share(state.params)})

    def fault(self, state: Descent, problem: Problem) -> str:
        """The weights whose divergence is not finite, where there are such."""
        bad = [n for n in state.params.log_size if not bool(self._divergence(state.params, n).isfinite().all())]
        return priors.in_words(bad)

    def finish(
        self, state: Descent, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        params, part = state.params, self._random_part(state)
        points = judged.draws(part, params.centre, state.buffers)
        centre, curves = judged.settled(problem, params.centre, points, val)
        rest = {n: x for n, x in centre.items() if n not in part.scale}
        family: Family = Partial(Delta(rest, state.buffers), part) if rest else part
        kept = {n: self._kept(params, n) for n in part.scale}
        shares = {n: float(x.double().mean()) for n, x in kept.items()}
        total = self._kept_share(params)
        line = f"{total:.2%} of {size(kept):,} weights kept: " + ", ".join(f"{n} {x:.2%}" for n, x in shares.items())
        curves |= {"kept_share": [total], "kept_by_tensor": list(shares.values())}
        return Finished(family, curves, (line,) if self.prune is not None else ())

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        random = {n: point.params[n] for n in self._noisy(problem)}
        drawn = Predicting(self.samples, self.samples, size(random), 2.0 * size(random))
        return Demand(nbytes(point) + nbytes(random), what=f"{size(random):,} variances", predict=drawn)

    def _noisy(self, problem: Problem) -> tuple[str, ...]:
        """The weights that have noise."""
        shapes = problem.network.params
        matrices = [n for n, shape in shapes.items() if len(shape) > 1]
        chosen = tuple(matrices) if self.where is None else select(shapes, self.where)
        flat = [n for n in chosen if len(shapes[n]) < 2]
        if flat and self.per == "unit":
            raise ValueError(f"per='unit' is for matrices and kernels, got {', '.join(flat)} in where={self.where!r}")
        if not chosen:
            raise ValueError(f"the network has no matrix or kernel among {', '.join(shapes)}: say with where= what has")
        return chosen

    def _log_alpha(self, params: Variational, name: str) -> Tensor:
        log_alpha, theta = params.log_size[name], params.centre[name]
        if self.per == "weight":
            log_alpha = log_alpha - theta.square().clamp(min=torch.finfo(theta.dtype).tiny).log()
        most = 0.0 if self.divergence == "kingma" else MOST
        return log_alpha.clamp(max=most)

    def _scale(self, params: Variational) -> Params:
        """Standard deviations of the weights."""
        if self.per == "weight" and self.divergence != "kingma":
            return {n: (0.5 * x).exp() for n, x in params.log_size.items()}
        return {n: (0.5 * self._log_alpha(params, n)).exp() * params.centre[n].abs() for n in params.log_size}

    def _divergence(self, params: Variational, name: str) -> Tensor:
        """Of each weight."""
        return DIVERGENCES[self.divergence](self._log_alpha(params, name)).expand_as(params.centre[name])

    def _random_part(self, state: Descent) -> Diagonal:
        """The weights with noise, those that are pruned at zero."""
        params, scale = state.params, self._scale(state.params)
        kept = {n: self._kept(params, n) for n in scale}
        centre = {n: torch.where(kept[n], params.centre[n], 0.0) for n in scale}
        scale = {n: torch.where(kept[n], s, FLOOR).clamp(min=FLOOR) for n, s in scale.items()}
        return Diagonal(centre, scale, state.buffers)

    def _kept(self, params: Variational, name: str) -> Tensor:
        theta = params.centre[name]
        if self.prune is None:
            return torch.ones_like(theta, dtype=torch.bool)
        return (self._log_alpha(params, name) <= self.prune).expand_as(theta)

    def _kept_share(self, params: Variational) -> float:
        kept = [self._kept(params, n) for n in params.log_size]
        return sum(int(x.sum()) for x in kept) / sum(x.numel() for x in kept)

    def _warmth(self, clock: Tensor, n: int) -> Tensor | float:
        if not isinstance(self.warm_up, Tensor) and self.warm_up == 0:
            return 1.0
        return ((clock + 1) / (self.warm_up * self.schedule(n).steps)).clamp(max=1.0)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("variational dropout", cls(), 1), Entry("variational dropout ensemble", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        log_alpha = torch.linspace(-8, 8, 33, dtype=torch.float64)
        exact = _quadrature(log_alpha)
        offset = molchanov(log_alpha) - exact
        yield bench.close("molchanov's divergence, ln alpha -8 ... 8", "by quadrature", offset, 0 * offset, 0.0094)
        small = log_alpha <= 0
        offset = (kingma(log_alpha) - exact)[small] + 0.6354
        yield bench.close("kingma's divergence plus .6354, alpha <= 1", "by quadrature", offset, 0 * offset, 0.041)
        known = bench.conjugate(correlation=0.0)
        x, y = known.data.inputs, known.data.targets.reshape(-1)
        precision = x.square().sum(0) / 0.5**2
        best = x.T @ y / x.square().sum(0)  # of each weight alone: the design is orthogonal
        grid = torch.linspace(-8, 8, 16001, dtype=torch.float64)[:, None]
        cost = 0.5 * precision * best.square() * torch.sigmoid(grid) + molchanov(grid)
        least = grid[cost.argmin(0), 0]
        kept = least < MOST  # the third weight is best pruned
        recipe = cls(epochs=500, batch_size=None, warm_up=0.2, optimizer=Adam(lr=Cosine(peak=0.1)))
        family: Any = bench.fit(recipe, known.problem, known.data, 20).parts[0].family
        centre, scale = family.centre["weight"][:, 0], family.scale["weight"][:, 0]  # (members, d)
        measured = (2 * (scale.log() - centre.abs().log())).mean(0)[kept]
        yield bench.close(
            "ln alpha, orthogonal design, 20 runs", "of the least expected loss", measured, least[kept], 0.1
        )
        shrunk = (best / (1 + least.exp()))[kept]
        yield bench.close("weights there", "best / (1 + alpha)", centre.mean(0)[kept], shrunk, 0.01)
        pruned = centre[:, ~kept].abs().max()
        yield bench.close("a weight that is best pruned, in all runs", "0", pruned, torch.zeros_like(pruned), 0.0)


def molchanov(log_alpha: Tensor) -> Tensor:
    """KL(alpha), which goes to zero as alpha grows."""
    return K1 - K1 * torch.sigmoid(K2 + K3 * log_alpha) + 0.5 * torch.log1p((-log_alpha).exp())


def kingma(log_alpha: Tensor) -> Tensor:
    """KL(alpha) up to a constant, for alpha up to 1."""
    alpha = log_alpha.exp()
    return -0.5 * log_alpha - C1 * alpha - C2 * alpha.square() - C3 * alpha.pow(3)


DIVERGENCES = {"molchanov": molchanov, "kingma": kingma}


def _rest(problem: Problem, params: Variational) -> Tensor | float:
    """The energy under the problem's prior of what has no noise."""
    network = problem.split(params.centre)[0]
    points = {n: x for n, x in network.items() if n not in params.log_size}
    if not points or isinstance(problem.prior, LogUniform):
        return 0.0
    zeros = {n: torch.zeros_like(x) for n, x in params.log_size.items()}
    like = {n: zeros[n].expand_as(x) if n in zeros else x for n, x in network.items()}
    return problem.prior.energy(like) / problem.prior_temperature


def _quadrature(log_alpha: Tensor, count: int = 200_000) -> Tensor:
    """KL(alpha), the limit of infinite alpha at zero: -ln(alpha) / 2 + E ln|e| + .63518, e ~ N(1, alpha)."""
    t = (torch.arange(count, dtype=torch.float64) + 0.5) / count * 20 - 10
    weight = (-0.5 * t.square()).exp() * (20 / count / math.sqrt(2 * math.pi))
    expected = torch.stack([((1 + math.exp(0.5 * a) * t).abs().log() * weight).sum() for a in log_alpha.tolist()])
    return -0.5 * log_alpha + expected + 0.5 * (math.log(2) + EULER)
