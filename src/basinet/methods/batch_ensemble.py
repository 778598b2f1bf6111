"""Ensembles of shared weights: members that differ by factors of rank one (Wen et al. 2020; for tables TabM, Gorishniy
et al. 2025).

    W_k = s_k r_k^T * W,   k = 1 ... K;   minimised: the mean over k of U(theta_k), theta_k = (W_k, b_k)

W is shared, r_k and s_k are factors for the inputs and outputs of a layer, and vectors (biases, norm layers, the noise)
are each point's own. All points see the same batches, and a gradient of W is the mean of theirs. What comes out is K
plain networks, in one member: they stand on the sample axis.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.lift import lift
from ..core.noise import Noise
from ..core.tree import Params, Point, nbytes, ravel, stack, take
from ..data import Data, Stream
from ..engine import Demand, Descent, Finished, GradientMethod, Info, Predicting, Schedule, Step
from ..engine.method import Entry
from ..families import Empirical, Family
from ..optim import SGD, Adam, Cosine, Optimizer
from ..problem import Problem
from ..problem.spread import set_noise

if TYPE_CHECKING:
    from ..testing import Bench, Check


class Shared(NamedTuple):
    """What is learned, by the names of the network's parameters."""

    weights: Params  # of two axes or more, shared by all points
    outputs: Params  # (K, rows), the factors s of those
    inputs: Params  # (K, columns), the factors r
    own: Params  # (K, ...), all other parameters


@dataclass(frozen=True, kw_only=True)
class BatchEnsemble(GradientMethod):
    """K networks that share their weights except for factors on the inputs and outputs of each layer, trained as one.

    Factors start at random around one, which is all that makes points differ. Convolutions have them for channels.
    Validation follows the first point.
    """

    usual: ClassVar[bool] = True

    epochs: int | None = None
    """Passes through the data; None: until done, within 3,000 to 6,000 steps, or 10 passes if that is more."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    count: int = 8
    """Points that share the weights."""
    sd: float = 0.5
    """Standard deviation of the factors around one, in the beginning."""
    fixed: bool = False
    """Whether the factors stay as they begin."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))
    """How a gradient becomes a step."""
    patience: int | None = None
    """Reports without a lower validation NLL until a member stops, at its best; None: 60 where epochs is None, else
    never."""

    def __post_init__(self) -> None:
        if not (isinstance(self.count, int) and self.count >= 1):
            raise ValueError(f"expected a count of at least 1 point, got {self.count!r}")
        if not 0 <= self.sd < math.inf:
            raise ValueError(f"expected a finite sd of at least 0, got {self.sd}")

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        return Demand(self.count * nbytes(point), predict=Predicting(self.count, self.count))

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        weights = {n: x for n, x in point.params.items() if x.dim() > 1}

        def factors(axis: int, name: str) -> Params:
            rows = {n: x.new_zeros(self.count, x.shape[axis]) for n, x in weights.items()}
            return {n: 1 + self.sd * noise.split(name).split(n).normal(x) for n, x in rows.items()}

        own = {n: self._copies(x) for n, x in point.params.items() if n not in weights}
        params = Shared(weights, factors(0, "outputs"), factors(1, "inputs"), own)
        buffers = {n: self._copies(x) for n, x in point.buffers.items()}
        return Descent(params, buffers, self.optimizer.init(params))

    def loss(self, params: Shared, state: Descent, step: Step) -> Info:
        problem = step.problem
        keys = step.noise.split(torch.arange(self.count, device=step.noise.key.device)).key  # (K, 2)

        def energy(params: Params, buffers: Params, key: Tensor) -> tuple[Tensor, Params]:
            return problem.potential(params, buffers, step.batch, Noise(key), "train")

        energies, buffers = lift(energy)(self._points(params), state.buffers, keys)
        return Info(energies.mean() / step.scale, buffers=buffers)

    def point(self, state: Descent) -> Point:
        return take(Point(self._points(state.params), state.buffers), 0)

    def finish(
        self, state: Descent, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Family | Finished:
        """The points, each with the noise set by validation data."""
        points = Point(self._points(state.params), state.buffers)
        if val is None or problem.likelihood.spread is None:
            return Empirical(points.params, points.buffers, self.count)
        each = [set_noise(problem, take(points, k), val) for k in range(self.count)]
        points = stack([one.point for one in each])
        factors = [one.factor for one in each]
        return Finished(Empirical(points.params, points.buffers, self.count), {"noise_factor": factors})

    def _points(self, shared: Shared) -> Params:
        """The parameters of all points, leaves (K, ...)."""
        params = dict(shared.own)
        for name, weight in shared.weights.items():
            s, r = shared.outputs[name], shared.inputs[name]
            s, r = (s.detach(), r.detach()) if self.fixed else (s, r)
            rest = (1,) * (weight.dim() - 2)
            params[name] = s.reshape(*s.shape, 1, *rest) * r.reshape(len(r), 1, -1, *rest) * weight
        return params

    def _copies(self, x: Tensor) -> Tensor:
        return x.expand(self.count, *x.shape).clone()

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("shared weights", cls(), 1),)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact = bench.conjugate()

        def points(recipe: BatchEnsemble) -> Tensor:
            family = take(bench.fit(recipe, exact.problem, exact.data).parts[0].family, 0)
            assert isinstance(family, Empirical)
            return ravel(family.params, 1)  # (K, d)

        descent = SGD(lr=0.05, momentum=0.9)
        plain = points(cls(epochs=1000, batch_size=None, count=3, sd=0.0, fixed=True, optimizer=descent))
        yield bench.close("points whose factors stay at one", "mu", plain, exact.mean.expand_as(plain), 1e-10)
        free = points(cls(epochs=4000, batch_size=None, count=3, optimizer=descent))
        yield bench.close("points with factors of their own", "mu", free, exact.mean.expand_as(free), 1e-3)
