"""Variational Bayesian last layer: features are points, the last layer is normal, and its likelihood in closed form.

    rows of the last layer w_c ~ N(m_c, L_c L_c'),   z = means m_c'a,   v = variances |L_c'a|^2 at features a
    real numbers   E log N(y | w'a, s^2) = log N(y | z, s^2) - v / (2 s^2)                              exactly
    classes        E log softmax_y >= z_y - log sum_c exp(z_c + v_c / 2)                                (Jensen)
    loss = -sum_n of that / T + KL to the prior, as E_q[prior energy] / T_prior - H[q]

(Harrison et al. 2024). Nothing is drawn, in training or, for real numbers, in prediction: one pass gives mean and
variance. In a linear model the posterior is exact and the ELBO is the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from ..core.noise import Noise
from ..core.tree import Params, Point, leaves, nbytes, take, tree_map
from ..cost.prediction import predicting
from ..data import Data, Stream, some
from ..engine import Demand, Descent, Finished, GradientMethod, Info, Method, Predicting, Schedule, Step
from ..engine.method import Entry
from ..families import Delta, Partial, Rows
from ..layers.altered import Altered
from ..layers.widened import FACTOR, Widened
from ..optim import Adam, Cosine, Optimizer
from ..predict import Via, default_via
from ..problem import Batch, Problem
from ..problem.likelihoods import Categorical, Gaussian
from ..variational import judged
from ..variational import prior as priors

if TYPE_CHECKING:
    from ..testing import Bench, Check


class Variational(NamedTuple):
    """What descent moves."""

    centre: Params  # all parameters; those of the last layer are means
    log_scale: Tensor  # (C, D), logarithms of the diagonals of L
    lower: Tensor  # (C, D, D), of which the part below the diagonal counts; (0,) where rows are diagonal


@dataclass(frozen=True, kw_only=True)
class VBLL(GradientMethod):
    """A normal distribution over the last layer, learned with the features under it, in closed form (VBLL).

    For Gaussian and Categorical likelihoods and networks that end in a linear layer; all other parameters are points.
    """

    terms: ClassVar[bool] = False

    epochs: int | None = None
    """Passes through the data; None: until done, as in MAP."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))
    """How a gradient becomes a step."""
    patience: int | None = None
    """Reports without a lower validation NLL (of draws) until a member stops, at its best; None: 60 where epochs is
    None, else never."""
    layer: str | None = None
    """The name of the last layer; None: the last linear layer of the network."""
    structure: Literal["full", "diagonal"] = "full"
    """Structure of the covariance of a row."""
    scale: float = 0.05
    """Standard deviations at the start."""
    via: Via = "linear"
    """How it predicts: the network is linear in its last layer, so this is exact; or sample, probit."""

    def __post_init__(self) -> None:
        if self.structure not in ("full", "diagonal"):
            raise ValueError(f"expected structure 'full' or 'diagonal', got {self.structure!r}")
        if not 0 < self.scale < math.inf:
            raise ValueError(f"expected a positive, finite scale to start from, got {self.scale}")

    def adapt(self, problem: Problem) -> Problem:
        if type(problem.likelihood) not in (Gaussian, Categorical):
            raise ValueError(
                f"VBLL has a closed form for Gaussian and Categorical likelihoods, got "
                f"{type(problem.likelihood).__name__}: use GaussianVI(where='LAST.*') for the last layer"
            )
        if priors.gaussian(problem.prior, {n: torch.zeros(s) for n, s in problem.network.params.items()}) is None:
            raise ValueError(
                f"VBLL has a closed form for a normal prior, got {type(problem.prior).__name__}: use "
                "bn.priors.Normal, or GaussianVI(where='LAST.*') for the last layer"
            )
        last = self._last(problem)

        def make(name: str, layer: nn.Module) -> nn.Module:
            return Widened(layer) if name == last and isinstance(layer, nn.Linear) else layer

        return problem.through(Altered(problem.network, None, make, ("train",)))

    def context(self, problem: Problem, data: Data | Stream) -> Any:
        """Nothing; a network that goes on after its last linear layer is refused."""
        inputs = take(some(data).inputs, slice(0, 2))
        network = problem.network.alone()
        like = next(x for x in leaves(inputs))
        point = tree_map(lambda x: x.to(like.device), network.init(Noise.seed(0)))
        dtype = like.dtype if like.is_floating_point() else None
        point = tree_map(lambda x: x.to(dtype) if dtype and x.is_floating_point() else x, point)
        log_scale = self.init(problem.complete(point), problem, Noise.seed(0)).params.log_scale
        factor = torch.ones_like(log_scale).diag_embed()
        assert isinstance(problem.network, Altered)
        name, inside = self._buffer(problem), problem.network.inside
        with torch.no_grad():
            plain = network(point.params, point.buffers, inputs)[0]
            try:  # the means are the outputs, and variances grow with the square of the factor
                wide, wider = (
                    inside(point.params, point.buffers | {name: times * factor}, inputs)[0].chunk(2, -1)
                    for times in (1, 2)
                )
                ends = torch.allclose(wide[0], plain, atol=1e-4) and torch.allclose(wider[1], 4 * wide[1], rtol=1e-3)
            except RuntimeError:  # a layer behind it takes no outputs of twice the width
                ends = False
        if not ends:
            raise ValueError(
                f"expected a network whose output is that of its last linear layer {self._last(problem)!r}, got one "
                "that goes on after it: name the layer with layer=, or leave out what follows it (a softmax belongs to "
                "the likelihood)"
            )
        return ()

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        rows = [point.params[n] for n in self._names(problem)]
        outputs, width = len(rows[0]), sum(x[0].numel() for x in rows)
        log_scale = rows[0].new_full((outputs, width), math.log(self.scale))
        lower = rows[0].new_zeros((outputs, width, width) if self.structure == "full" else (0,))
        params = Variational(point.params, log_scale, lower)
        return Descent(params, point.buffers, self.optimizer.init(params))

    def loss(self, params: Variational, state: Descent, step: Step) -> Info:
        problem, factor = step.problem, self._factor(params)
        network, name = problem.split(params.centre)[0], self._buffer(problem)
        given = state.buffers | {name: factor}
        outputs, after = problem.network(network, given, step.batch.inputs, step.noise, "train")
        mean, variance = outputs.chunk(2, -1)
        energy = expected_potential(problem, mean, variance, params.centre, step.batch)
        spread = self._spread(factor, network, problem)
        prior = priors.expected_energy(problem.prior, network, spread, step.noise) / problem.prior_temperature
        entropy = params.log_scale.sum() + 0.5 * params.log_scale.numel() * (1 + math.log(2 * math.pi))
        buffers = {n: x for n, x in after.items() if n in state.buffers}
        return Info((energy + prior - entropy) / step.scale, buffers=buffers)

    def point(self, state: Descent) -> Point:
        return Point(state.params.centre, state.buffers)

    def judged(self, state: Descent, problem: Problem, n: int) -> Sequence[Point]:
        return judged.draws(self._part(state, problem), state.params.centre, state.buffers)

    def fault(self, state: Descent, problem: Problem) -> str:
        """The parameters whose part of the divergence is not finite, where there are such."""
        centre = state.params.centre
        spread = self._spread(self._factor(state.params), problem.split(centre)[0], problem)
        return priors.in_words(priors.not_finite(problem, centre, spread))

    def finish(
        self, state: Descent, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        part = self._part(state, problem)
        points = judged.draws(part, state.params.centre, state.buffers)
        centre, curves = judged.settled(problem, state.params.centre, points, val)
        rest = {n: x for n, x in centre.items() if n not in part.centre}
        return Finished(Partial(Delta(rest, state.buffers), part), curves)

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        rows = [point.params[n] for n in self._names(problem)]
        outputs, width = len(rows[0]), sum(x[0].numel() for x in rows)
        factor = outputs * width**2 * rows[0].element_size()
        draw = Predicting(self.samples, self.samples, outputs * width, 2.0 * outputs * width**2)
        takes = predicting(
            default_via(self.via, problem.likelihood), problem.likelihood, outputs, self.samples, True, draw
        )
        what = f"{outputs} covariances of {width:,} weights"
        return Demand(nbytes(point) + factor, factor, what=what, predict=takes)

    def variants(self) -> Iterable[Method]:
        return (self,) if self.structure == "diagonal" else (self, replace(self, structure="diagonal"))

    def _last(self, problem: Problem) -> str:
        """The name of the last layer."""
        modules = dict(problem.network.module.named_modules())
        linear = [n for n, m in modules.items() if type(m) is nn.Linear]
        if self.layer is not None and self.layer not in linear:
            raise ValueError(f"expected layer= as the name of a linear layer, {', '.join(linear)}, got {self.layer!r}")
        if not linear:
            raise ValueError(f"expected a network that ends in nn.Linear, got none in {', '.join(modules)}")
        return linear[-1] if self.layer is None else self.layer

    def _names(self, problem: Problem) -> tuple[str, ...]:
        last = self._last(problem)
        prefix = f"{last}." if last else ""
        return tuple(n for n in (f"{prefix}weight", f"{prefix}bias") if n in problem.network.params)

    def _part(self, state: Descent, problem: Problem) -> Rows:
        """The last layer."""
        centre = {n: state.params.centre[n] for n in self._names(problem)}
        return Rows(centre, self._factor(state.params), state.buffers)

    def _buffer(self, problem: Problem) -> str:
        last = self._last(problem)
        return f"{last}.{FACTOR}" if last else FACTOR

    def _factor(self, params: Variational) -> Tensor:
        diagonal = params.log_scale.exp().diag_embed()
        return diagonal if self.structure == "diagonal" else params.lower.tril(-1) + diagonal

    def _spread(self, factor: Tensor, network: Params, problem: Problem) -> Params:
        """Standard deviations of the elements of the last layer."""
        names = self._names(problem)
        sds, widths = factor.square().sum(-1).sqrt(), [network[n][0].numel() for n in names]
        return {n: x.reshape(network[n].shape) for n, x in zip(names, sds.split(widths, -1))}

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("VBLL", cls(), 1), Entry("VBLL ensemble", cls(), 10))

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        recipe = cls(epochs=600, batch_size=None, scale=0.1, optimizer=Adam(lr=Cosine(peak=0.1)))
        for exact, suffix in ((bench.conjugate(), ""), (bench.conjugate(temperature=0.3), ", temperature 0.3")):
            posterior = bench.fit(recipe, exact.problem, exact.data)
            yield bench.close(f"mean{suffix}", "mu", posterior.mean(), exact.mean, 1e-6)
            yield bench.close(f"covariance{suffix}", "Lambda^-1", bench.covariance(posterior), exact.covariance, 1e-6)
            if not suffix:
                elbo = -exact.data.n * posterior.info["curves"]["loss"][0][-1]
                gap = torch.tensor(exact.log_evidence - elbo, dtype=torch.float64)
                yield bench.close("log evidence less the ELBO", "0", gap, torch.zeros_like(gap), 1e-6)
                predictive, (mean, variance) = posterior.predict(exact.data.inputs), exact.predictive(exact.data.inputs)
                both = torch.stack((predictive.mean.reshape(-1) - mean, predictive.variance.reshape(-1) - variance))
                says = "x'mu and x' Lambda^-1 x + sigma^2"
                yield bench.close("mean and variance of one pass", says, both, torch.zeros_like(both), 1e-6)


def expected_potential(problem: Problem, mean: Tensor, variance: Tensor, params: Params, batch: Batch) -> Tensor:
    """-E log likelihood, scaled and tempered, of outputs that are normal: exact for real numbers, a bound for
    classes."""
    if isinstance(problem.likelihood, Gaussian):  # quadratic: its mean over one standard deviation up and down
        root = variance.clamp(min=torch.finfo(variance.dtype).tiny).sqrt()
        up, down = (problem.likelihood_potential(mean + sign * root, params, batch) for sign in (1.0, -1.0))
        return 0.5 * (up + down)
    bound = problem.likelihood_potential(mean + 0.5 * variance, params, batch)
    own = variance.gather(-1, batch.targets.long().unsqueeze(-1)).squeeze(-1)
    own = own if batch.weights is None else own * batch.weights.reshape(own.shape)
    return bound + 0.5 * own.sum() * (batch.total / batch.targets.shape[0]) / problem.temperature
