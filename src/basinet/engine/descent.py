"""Methods that descend a loss with an optimiser: everything but the loss is written here once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point
from ..data import Data
from ..families import Delta, Family
from ..optim import Optimizer
from ..predict import settled
from ..problem import Problem
from ..problem.spread import set_noise
from .method import Finished, Method, Report, Review, patience_of
from .step import Info, Step


class Sample(NamedTuple):
    """What the bank may keep of a step."""

    keep: Tensor  # (), bool: it does
    tree: Any


class Descent(NamedTuple):
    """The state of a gradient method."""

    params: Any  # the tree the optimiser moves: the member's params, or variational parameters
    buffers: Params
    moments: Any  # the optimiser's own state
    memory: Any = ()  # what else the method carries from step to step


@dataclass(frozen=True, kw_only=True)
class GradientMethod(Method, kind="method"):
    """A method that descends a loss with an elementwise optimiser: it writes `loss`, and has an `optimizer`.

    Coupled ones write `gradient` in place of it: the directions of all members, leaves (M, ...), from which
    `step.lift` computes functions of one member. Everything else is the same for all of them, and written here once.
    """

    optimizer: Optimizer
    """How a gradient becomes a step; final classes give it a default."""

    @property
    def best(self) -> bool:
        """Where it has patience, it ends at the lowest validation NLL."""
        return patience_of(self) is not None

    def review(self, state: Any, report: Report) -> Review:
        """Stops a member whose validation has not improved for as long as patience lasts."""
        patience = patience_of(self)
        return Review(state, patience is not None and report.waited >= patience)

    def loss(self, params: Any, state: Descent, step: Step) -> Info:
        """What is descended, at `params`, and the buffers after it: by default the potential per example, U T / N,
        where `params` are the network's. A normal prior is its quadratic part."""
        problem, batch = step.problem, step.batch
        energy, buffers = problem.data_potential(params, state.buffers, batch, step.noise, "train")
        decay = problem.decay(params)
        if decay is None:
            energy = energy + problem.prior_energy(params)
        quadratic = {n: d / step.scale for n, d in (decay or {}).items()}
        return Info(energy / step.scale, buffers=buffers, quadratic=quadratic)

    def gradient(self, state: Descent, step: Step) -> tuple[Any, Info]:
        """The directions that are descended, of the members at hand, and Info with losses and buffers."""
        return step.lift.gradient(self.loss, state, step)

    def absorb(self, state: Descent, step: Step) -> tuple[Descent, Sample | None]:
        """What the method does after the optimiser's step, for one member: what it carries, and the sample to keep."""
        return state, None

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        return Descent(point.params, point.buffers, self.optimizer.init(point.params))

    def update(self, state: Descent, step: Step) -> tuple[Descent, Info]:
        """One step of one member, or of all members of a stack: `step.lift` says which, and how."""
        lift = step.lift
        grads, info = (lift.whole(self.gradient) if self.coupled else self.gradient)(state, step)
        steps = self.schedule(step.batch.total).steps
        params, moments = lift.move(self.optimizer, state, grads, info.quadratic, step.batch.step, steps)
        buffers = state.buffers if info.buffers is None else info.buffers
        state, info = Descent(params, buffers, moments, state.memory), info._replace(buffers=None, quadratic={})
        if type(self).absorb is GradientMethod.absorb:
            return state, info
        state, sample = lift.each(self.absorb)(state, step)
        return state, info if sample is None else info._replace(keep=sample.keep, sample=sample.tree)

    def point(self, state: Descent) -> Point:
        return Point(state.params, state.buffers)

    def finish(
        self, state: Descent, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Family | Finished:
        """The point where descent ended, with norm statistics of its own where it was never visited, and with the noise
        that validation data give; methods that keep more than a point say so."""
        point = self.point(state)
        if self.norm == "refresh":
            point = settled(problem, point, data, noise.split("refresh"))
        if val is None or problem.likelihood.spread is None:
            return Delta(point.params, point.buffers)
        point, factor = set_noise(problem, point, val)
        return Finished(Delta(point.params, point.buffers), {"noise_factor": [factor]})
