"""What samplers with mini-batches share: steps and their sizes, cycles, which draws are kept, and the noise.

    g = d (U T / N) / d theta on a batch, the gradient of the loss per example;  lr multiplies it, so that a Langevin
    step is e = 2 lr / N in units of U, and its noise has variance 2 lr T / N

Chains are members that do not see each other, and start from trained networks. With a cyclical rate each cycle first
descends without noise, to find another mode, and then samples (Zhang et al. 2020). The network is the one that
predicts: dropout off, norm statistics as at the start. N comes from the data, the temperature is a factor on that of
the problem.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core.lift import gradient
from ..core.noise import Noise
from ..core.tree import Params, Point, nbytes, size, where
from ..data import Data, Stream
from ..engine import Based, Demand, Finished, Info, Method, Predicting, Schedule, Step
from ..engine.method import Entry
from ..families import Empirical
from ..optim import Constant, Cyclic
from ..optim.schedules import Rate
from ..problem import Problem
from .energy import check_gradient
from .tempo import Tempo

LOOKS = 20  # at a run, and at most one in SELDOM steps
SELDOM = 50


@dataclass(frozen=True, kw_only=True)
class Stochastic(Based, kind="method"):
    """A sampler with mini-batches, without rejection: exact as steps become small."""

    norm: ClassVar[Literal["train", "frozen", "refresh"]] = "frozen"
    order: ClassVar[Literal["shuffled", "independent"]] = "shuffled"  # in passes noise comes back with the other sign:
    #                                                                   batches heat less
    grows: ClassVar[str | None] = "more"

    base: Method | None = None
    """The training that chains start from; None: MAP(). Not run where start= is given."""
    epochs: int | None = None
    """Passes through the data; None: what makes 3,000 steps, up to 6,000 where data are many."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    lr: float | Rate | None = None
    """Step size for the gradient of the loss per example, a number or a rate (Cyclic); None: found while the chain
    explores."""
    explore: float = 0.5
    """Share of the run, or of each cycle, before draws are kept."""
    quiet: bool = True
    """Whether cycles explore without noise, by descent alone."""
    draws: int = 20
    """Draws kept from each chain, evenly spread over the rest."""
    more: int = 0
    """Draws beyond those, with the same spacing: with the pool of a run that has ended, its chains continue."""
    temperature: float = 1.0
    """A factor on the problem's temperature: 1 is Bayes, below 1 is cold."""

    def __post_init__(self) -> None:
        if self.lr is not None and not isinstance(self.lr, Rate) and not 0 < self.lr < math.inf:
            raise ValueError(f"expected a finite lr of more than 0, or a rate, got {self.lr!r}")
        if not 0 <= self.explore < 1:
            raise ValueError(f"expected explore of at least 0 and below 1, got {self.explore}")
        if self.lr is None and self.explore == 0:
            raise ValueError("lr is found while the chain explores: give explore above 0, or lr as a number")
        if not 0 < self.temperature < math.inf:
            raise ValueError(f"expected a positive, finite temperature, got {self.temperature}")
        if self.draws < self.cycles or self.draws % self.cycles:
            raise ValueError(
                f"expected draws as a multiple of the {self.cycles} cycles, each of which keeps the same number, got "
                f"{self.draws}"
            )

        self._check_more()

    def _check_more(self) -> None:
        """Refuses further draws at a step size that has ended, or of a part of a cycle."""
        if self.more < 0:
            raise ValueError(f"expected more draws as a number of at least 0, got {self.more}")
        if self.more and isinstance(self.lr, Rate) and not isinstance(self.lr, (Cyclic, Constant)):
            raise ValueError(
                f"{type(self.lr).__name__} ends with the planned steps: more draws need an lr that continues, a "
                "number or Cyclic"
            )
        each = self.draws // self.cycles
        if self.cycles > 1 and self.more % each:
            raise ValueError(f"expected more draws in whole cycles, each of which keeps {each}, got {self.more}")

    @property
    def cycles(self) -> int:
        """Of the rate."""
        return self.lr.cycles if isinstance(self.lr, Cyclic) else 1

    def schedule(self, n: int) -> Schedule:
        planned = self.planned(n)
        begin, each = int(self.explore * planned.steps), self.draws // self.cycles
        length = planned.steps // self.cycles
        gap = max(1, (planned.steps - begin) // each)
        further = gap * self.more if self.cycles == 1 else length * (self.more // each)
        return planned._replace(steps=planned.steps + further, bank=self.draws + self.more)

    def planned(self, n: int) -> Schedule:
        """That of the draws, without any more."""
        planned = Schedule.of_epochs(self.epochs, self.batch_size, n)
        length = -(-planned.steps // self.cycles)
        each = self.draws // self.cycles
        length = max(length, math.ceil(each / (1 - self.explore)))  # a step for each draw at least
        steps = length * self.cycles
        return Schedule(steps, planned.batch_size, self.draws, max(SELDOM, steps // LOOKS), self.order)

    def context(self, problem: Problem, data: Data | Stream) -> Any:
        """Nothing; raises where the energy has no gradient."""
        if isinstance(data, Data):
            check_gradient(self.label, problem, data)
        return ()

    def rate(self, step: Step, tempo: Tempo) -> Tensor:
        """lr at a step, (), float64."""
        if self.lr is None:
            return tempo.log_rate.exp()
        if isinstance(self.lr, Rate):
            return torch.as_tensor(self.lr(step.batch.step, self.planned(step.batch.total).steps))
        return self.lr + 0.0 * step.batch.step.double()

    def heard(self, tempo: Tempo, grads: Params, step: Step, heat: Any, scale: Params | None = None) -> Tempo:
        """What is known of the rate after a step; nothing new where it is given."""
        if self.lr is not None:
            return tempo
        explored = int(self.explore * self.planned(step.batch.total).steps)
        return tempo.heard(grads, scale, heat, step.batch.step, explored)

    def stage(self, clock: Tensor, total: int) -> tuple[Tensor, Tensor]:
        """Whether noise is added at a step, and whether the draw after it is kept."""
        length = self.planned(total).steps // self.cycles
        begin, each = int(self.explore * length), self.draws // self.cycles
        gap = max(1, (length - begin) // each)
        once = self.cycles == 1
        place = clock if once else clock % length
        since = place + 1 - begin
        keep = (since > 0) & (since % gap == 0) & (since // gap <= each + (self.more if once else 0))
        return (place >= begin) | (self.cycles == 1 or not self.quiet), keep

    def heat(self, step: Step) -> Any:
        """T / N, by which the loss per example becomes an energy: the variance of noise is 2 lr times it."""
        return self.temperature / step.scale

    def loss(self, params: Params, state: Any, step: Step) -> Info:
        """U T / N on the batch."""
        energy, _ = step.problem.potential(params, state.buffers, step.batch, None, "eval")
        return Info(energy / step.scale)

    def begun(self, point: Point, tempo: Any) -> Any:
        """The state at a point before the first step."""
        raise TypeError(f"{type(self).__name__} has no state")

    def init(self, point: Point, problem: Problem, noise: Noise) -> Any:
        return self.begun(point, Tempo.first(point.params, self.lr is not None))

    def returned(self, state: Any) -> Any:
        """The state at the point where the chain began, after steps that were not stable."""
        return self.begun(Point(state.tempo.start, state.buffers), state.tempo)

    def walk(self, state: Any, grads: Params, step: Step) -> tuple[Any, Tensor | None]:
        """The state after a step along the gradient, with noise; and p' M^-1 p over T, (), where there are momenta."""
        raise TypeError(f"{type(self).__name__} has no step")

    def update(self, state: Any, step: Step) -> tuple[Any, Info]:
        grads, info = gradient(self.loss, lambda info: info.loss)(state.params, state, step)
        state, kinetic = self.walk(state, grads, step)
        if self.lr is None:  # steps that were not stable are taken back
            back = self.returned(state)._replace(tempo=())
            state = where(state.tempo.fled, back, state._replace(tempo=()))._replace(tempo=state.tempo)
        _, keep = self.stage(step.batch.step, step.batch.total)
        heat = {} if kinetic is None else {"kinetic": kinetic}
        sample = {"params": state.params, "energy": info.loss * step.scale, **heat}
        return state, info._replace(keep=keep, sample=sample)

    def point(self, state: Any) -> Point:
        return Point(state.params, state.buffers)

    def finish(
        self, state: Any, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        count = len(samples["energy"])
        buffers = {name: x.expand(count, *x.shape).clone() for name, x in state.buffers.items()}
        curves = {name: x.double().tolist() for name, x in samples.items() if name != "params"}
        if self.lr is None:
            curves["rate"] = [float(state.tempo.log_rate.exp())]
        return Finished(Empirical(samples["params"], buffers, count), curves)

    def demand(self, point: Point, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> Demand:
        count = self.draws + self.more
        what = f"{count} draws of {size(point.params):,} parameters"
        return Demand(count * nbytes(point), what=what, predict=Predicting(count, count))

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry(cls.__name__, cls(), 1), Entry(f"{cls.__name__} chains", cls(), 10))


def diffused(noise: Noise, params: Params, scale: Any) -> Params:
    """Normal noise in the shapes of params, times a number () or one of each parameter (a dict)."""
    z = noise.normal_params(params)
    each = scale if isinstance(scale, dict) else dict.fromkeys(params, scale)
    return {name: torch.as_tensor(each[name]).to(x.dtype) * x for name, x in z.items()}


def kinetic(momentum: Params, heat: Tensor, friction: float | Tensor) -> Tensor:
    """m'm N / T, which has d degrees of freedom: times (2 - a) / 2, since Euler steps of this kind raise it by the
    inverse, however small they are."""
    squares = torch.stack([m.double().square().sum() for m in momentum.values()]).sum()
    return squares / heat * (2 - friction) / 2
