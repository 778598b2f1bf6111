"""Proposals along trajectories, accepted or rejected: the step of random walks, Langevin and Hamiltonian chains.

    p ~ N(0, M);   p -= e/2 dU(q),  q += e M^-1 p,  p -= e/2 dU(q),  L times;   accepted with min(1, exp(H_0 - H))

H = U + p' M^-1 p / 2. One update is one gradient, and all chains are at the same place of their trajectories. L = 1 is
the Metropolis-adjusted Langevin algorithm; L = 1 without the kicks of the gradient is a random walk.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, ravel
from ..engine import Info, Step
from ..problem import Problem
from .chain import Chain, sample_of
from .energy import idle, normals, split, uniforms
from .ledger import Ledger, astray, gathered
from .length import JITTER, Length, chees_slope
from .pace import Pace
from .pace import pick as pick_pace
from .scales import Scales

SHORT = 4.0  # leapfrog steps of the first trajectories whose length is adapted
WINDOWS = (0.05, 0.15, 0.3, 0.6)  # shares of the warm-up after which scales are taken anew


class Moving(NamedTuple):
    """The state of a chain in the middle of a trajectory."""

    params: Params  # where it is: the trajectory's beginning
    buffers: Params
    energy: Tensor  # (), U there; infinite before the first gradient
    slopes: Tensor  # (d,), dU there
    place: Tensor  # (d,), where the trajectory is
    momentum: Tensor  # (d,)
    pull: Tensor  # (d,), dU at its place
    start: Tensor  # (), H at its beginning
    done: Tensor  # (), leapfrog steps made
    planned: Tensor  # (), those that the trajectory has
    factor: Tensor  # (), by which this trajectory's length was jittered
    size: Tensor  # (), of its steps
    window: Tensor  # (), windows of the warm-up that have ended
    variance: Tensor  # (d,), M^-1
    pace: Pace
    scales: Scales
    length: Length
    ledger: Ledger


@dataclass(frozen=True, kw_only=True)
class Metropolis(Chain, kind="method"):
    """A chain of proposals along trajectories."""

    target: ClassVar[float] = 0.8  # acceptance that the step size is found for
    adapts: ClassVar[bool] = False  # whether the length of trajectories is found across chains

    step_size: float | None = None
    """Size of a leapfrog step; None: found in the warm-up, for the acceptance aimed for."""
    scaled: bool = True
    """Whether the warm-up finds how far each parameter spreads; False: all alike."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_size is not None and not 0 < self.step_size < math.inf:
            raise ValueError(f"expected a finite step_size of more than 0, or None to find it, got {self.step_size}")

    def first_length(self, problem: Problem, params: Params) -> float:
        """Of a trajectory, before any is adapted; 0: one step."""
        return 0.0

    @property
    def most(self) -> int:
        """Leapfrog steps of a trajectory at most."""
        return 1

    @property
    def jitters(self) -> bool:
        """Whether lengths vary."""
        return False

    def init(self, point: Point, problem: Problem, noise: Noise) -> Moving:
        x = ravel(point.params)
        zero, number = torch.zeros_like(x), torch.zeros((), dtype=torch.float64, device=x.device)
        one, none = torch.ones_like(number), number.long()
        length = Length.at(max(self.first_length(problem, point.params), 1e-30), x)
        pace, scales, ledger = Pace.at(self.step_size, x), Scales.none(x), Ledger.empty(x)
        moving = (zero, x.clone(), zero.clone(), zero.clone(), number.clone(), none, none.clone() + 1, one, one.clone())
        variance = torch.ones_like(x)
        return Moving(*point, number + math.inf, *moving, none.clone(), variance, pace, scales, length, ledger)

    def update(self, state: Moving, step: Step) -> tuple[Moving, Info]:
        return step.lift.whole(self.moved)(state, step)

    def moved(self, state: Moving, step: Step) -> tuple[Moving, Info]:
        """One leapfrog step of all chains, and what follows at the end of a trajectory."""
        begun, fresh = state.ledger.gradients > 0, state.done == 0
        x = ravel(state.params, 1)
        state = self._begin(state, step, x, fresh & begun)
        e, half = state.size.to(x.dtype)[:, None], state.momentum
        half = half - e / 2 * state.pull if self.slopes else half
        place = torch.where(begun[:, None], state.place + e * state.variance * half, x)
        energy, pull = self.energies(split(place, state.params), state.buffers, step)
        momentum = torch.where(begun[:, None], half - e / 2 * pull if self.slopes else half, state.momentum)
        done = state.done + begun.long()
        ended = begun & (done >= state.planned)
        along = state._replace(place=place, momentum=momentum, pull=pull, done=done)
        if idle(ended | ~begun):
            ledger = state.ledger._replace(gradients=state.ledger.gradients + 1)
            sample = sample_of(state.params, state.energy, state.energy if self.slopes else None)
            return along._replace(ledger=ledger), Info(self.loss_of(state.energy, step), keep=ended, sample=sample)
        return self._ended(along, step, x, energy, ended)

    def _ended(self, state: Moving, step: Step, x: Tensor, energy: Tensor, ended: Tensor) -> tuple[Moving, Info]:
        """What follows for chains at the end of their trajectories, or after the very first gradient."""
        begun, place, momentum = state.ledger.gradients > 0, state.place, state.momentum
        error = energy + kinetic(momentum, state.variance) - state.start
        chance = (-error).clamp(max=0.0).exp().nan_to_num(0.0)
        accepted = (ended & (uniforms(step, "accept", ended) < chance)) | ~begun
        motion = torch.where(
            accepted & begun, kinetic(momentum, state.variance), state.start - state.energy
        )  # of the pair that the transition ends with
        new = state._replace(
            params=split(torch.where(accepted[:, None], place, x), state.params),
            energy=torch.where(accepted, energy, state.energy),
            slopes=torch.where(accepted[:, None], state.pull, state.slopes),
            done=torch.where(ended, 0, state.done),
        )
        ledger = state.ledger.counted(ended, state.done.double(), self.warm)
        ledger, keep = ledger.transition(ended, chance, error, self.wanted)
        away = astray(new.energy, x.shape[1])
        new = new._replace(ledger=ledger._replace(gradients=ledger.gradients + 1, astray=away))
        new = self._adapted(new, x, place, momentum, ended, chance)
        sample = sample_of(new.params, new.energy, motion if self.slopes else None)
        return new, Info(self.loss_of(new.energy, step), keep=keep, sample=sample)

    def _begin(self, state: Moving, step: Step, x: Tensor, fresh: Tensor) -> Moving:
        """A momentum, a length and a step size, for chains that begin a trajectory."""
        if idle(fresh):
            return state
        z = normals(step, x, fresh)
        p = torch.where(fresh[:, None], z * state.variance.rsqrt(), state.momentum)
        size = torch.where(fresh, state.pace.log_size.exp(), state.size)
        factor = torch.ones_like(state.factor)
        if self.jitters:
            u = Noise(step.noise.key[0]).split("length").uniform(state.factor[:1])  # the same for all chains
            factor = 1 + JITTER * (2 * u - 1).expand_as(factor)
        searching = state.pace.direction != 2 if self.step_size is None else torch.zeros_like(fresh)
        steps = (factor * state.length.log.exp() / size).round().clamp(1, self.most).long()
        steps = torch.where(searching & ~state.ledger.frozen, 1, steps)  # the first sizes are tried in single steps
        return state._replace(
            place=torch.where(fresh[:, None], x, state.place),
            momentum=p,
            pull=torch.where(fresh[:, None], state.slopes, state.pull),
            start=torch.where(fresh, state.energy + kinetic(p, state.variance), state.start),
            size=size,
            factor=torch.where(fresh, factor, state.factor),
            planned=torch.where(fresh, steps, state.planned),
        )

    def _adapted(
        self, state: Moving, x: Tensor, place: Tensor, momentum: Tensor, ended: Tensor, chance: Tensor
    ) -> Moving:
        """What the warm-up learns from the trajectories that just ended."""
        ledger = state.ledger
        warming = ended & ~ledger.frozen
        pace, length = state.pace, state.length
        if self.step_size is None:
            heard = pace.heard(chance.mean().expand_as(chance), self.target)
            pace = pick_pace(warming, heard, pace)
        if self.adapts:
            root = state.variance.sqrt()
            origin = state.scales.mean if len(x) == 1 else torch.zeros_like(x)
            before, after = (x - origin) / root, (place - origin) / root
            slope = chees_slope(before, after, momentum * root, chance, state.factor)
            searched = warming & (pace.direction == 2)
            most = pace.log_size + math.log(self.most)
            length = length.raised(slope * length.log.exp(), searched & (state.pace.direction == 2), most)
            first = searched & (state.pace.direction != 2)  # the search for a step size has just ended
            length = length._replace(log=torch.where(first, pace.log_size + math.log(SHORT), length.log))
        scales = state.scales.add(ravel(state.params, 1), warming)
        share = ledger.gradients / max(1, self.warm)
        passed = sum((share >= w).long() for w in WINDOWS)
        closes = warming & (passed > state.window)
        over = ended & (ledger.gradients >= self.warm) & ~ledger.frozen
        state = gathered(state, closes | over)
        if self.scaled:
            variance = torch.where(closes[:, None], scales.variance(), state.variance)
            stretch = 0.5 * (state.variance / variance).log().double().mean(1)  # of time, to go as far as before
            if self.adapts:
                length = length._replace(log=length.log + stretch)
            pace = pace._replace(log_size=pace.log_size + stretch) if self.step_size is None else pace
            scales = Scales(*(torch.where(_like(closes, a), b, a) for a, b in zip(scales, Scales.none(x))))
            pace = pick_pace(closes, pace.anew(), pace) if self.step_size is None else pace
            state = state._replace(variance=variance)
        pace = pick_pace(over, pace.settled(), pace) if self.step_size is None else pace
        ledger = state.ledger
        thinned = ledger.thinned(self.total - self.warm, self.draws)
        ledger = ledger._replace(frozen=ledger.frozen | over, thin=torch.where(over, thinned.thin, ledger.thin))
        window = torch.where(closes, passed, state.window)
        return state._replace(pace=pace, scales=scales, length=length, window=window, ledger=ledger)


def kinetic(momentum: Tensor, variance: Tensor) -> Tensor:
    """p' M^-1 p / 2 of each chain, (M,), float64."""
    return 0.5 * (momentum.square() * variance).double().sum(1)


def _like(mask: Tensor, x: Tensor) -> Tensor:
    return mask.reshape(-1, *[1] * (x.dim() - 1))
