"""Microcanonical Langevin Monte Carlo: chains of constant speed that the gradient turns, and noise turns a little.

    dx = u dt,   du = -(1 - u u') dU/dx dt / (d - 1),   |u| = 1;   after each step u + nu z, to length 1 again

(Robnik, De Luca, Silverstein & Seljak 2023). Leapfrog steps of one gradient each, in units of each parameter's spread.
Nothing is rejected; the error of the energy in a step says how large the bias is. The warm-up finds the step size at
which its variance per dimension is `tolerance`, and the spreads; u forgets its direction after a length of sqrt(d), the
size of the posterior in those units: nu^2 = (exp(2 e / L) - 1) / d. For networks: started from an ensemble.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..chains import Chain
from ..chains.chain import sample_of
from ..chains.energy import energies, normals, split
from ..chains.ledger import DIVERGENT, Ledger, astray, donors
from ..chains.metropolis import WINDOWS
from ..chains.pace import Pace
from ..chains.pace import pick as pick_pace
from ..chains.proof import close_checks
from ..chains.scales import Scales
from ..core.noise import Noise
from ..core.tree import Params, Point, ravel
from ..data import Data
from ..engine import Finished, Info, Step
from ..problem import Problem

if TYPE_CHECKING:
    from ..testing import Bench, Check

ORDER = 6  # the squared energy error of a step falls with this power of its size
MOST = 1.0  # by which the logarithm of the step size changes at once
FORGET = 0.75  # of the average of step sizes, as in dual averaging


class Gliding(NamedTuple):
    """The state of a chain."""

    params: Params
    buffers: Params
    energy: Tensor  # (), U; infinite before the first gradient
    slopes: Tensor  # (d,), dU
    direction: Tensor  # (d,), of length 1, in units of the spreads
    window: Tensor  # (), windows of the warm-up that have ended
    variance: Tensor  # (d,), squared spreads
    pace: Pace
    scales: Scales
    ledger: Ledger


@dataclass(frozen=True, kw_only=True)
class MCLMC(Chain):
    """Microcanonical Langevin chains with full batches, which warm up together, from trained networks.

    Draws have a small bias, which `tolerance` bounds; `bn.diagnose` measures it by the configurational temperature.
    """

    enough: ClassVar[int] = 6000

    step_size: float | None = None  # in units of the spreads; None: found in the warm-up
    length: float | None = None  # after which a chain forgets its direction, in those units; None: sqrt(d)
    tolerance: float = 5e-4  # variance of the energy error of a step, per dimension; less is slower and closer

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("step_size", "length"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"expected a finite {name} of more than 0, or None to find it, got {value}")
        if not 0 < self.tolerance < 1:
            raise ValueError(f"expected a tolerance between 0 and 1, got {self.tolerance}")

    def init(self, point: Point, problem: Problem, noise: Noise) -> Gliding:
        x = ravel(point.params)
        number = torch.zeros((), dtype=torch.float64, device=x.device)
        direction = unit(noise.split("direction").normal(x))
        pace, scales, ledger = Pace.at(self.step_size, x), Scales.none(x), Ledger.empty(x)
        return Gliding(
            *point,
            number + math.inf,
            torch.zeros_like(x),
            direction,
            number.long(),
            torch.ones_like(x),
            pace,
            scales,
            ledger,
        )

    def update(self, state: Gliding, step: Step) -> tuple[Gliding, Info]:
        return step.lift.whole(self.moved)(state, step)

    def moved(self, state: Gliding, step: Step) -> tuple[Gliding, Info]:
        """One step of all chains."""
        begun = state.ledger.gradients > 0
        x, d = ravel(state.params, 1), state.direction.shape[1]
        spread, e = state.variance.sqrt(), state.pace.log_size.exp().to(x.dtype)[:, None]
        u, first = turned(state.direction, state.slopes * spread, e / 2)
        place = torch.where(begun[:, None], x + e * spread * u, x)
        energy, slopes = energies(split(place, state.params), state.buffers, step, self.chunk, True)
        u, second = turned(u, slopes * spread, e / 2)
        error = energy - state.energy + first + second
        good = (error.abs() < DIVERGENT) | ~begun  # NaN is not
        length = math.sqrt(d) if self.length is None else self.length
        z = normals(step, x, torch.ones_like(begun))
        share = (torch.expm1(2 * e / length) / d).sqrt()
        u = torch.where(
            good[:, None], unit(u + share * z), unit(z)
        )  # a step that failed is not made: another direction
        u = torch.where(begun[:, None], u, state.direction)
        new = state._replace(
            params=split(torch.where(good[:, None], place, x), state.params),
            energy=torch.where(good, energy, state.energy),
            slopes=torch.where(good[:, None], slopes, state.slopes),
            direction=u,
        )
        ledger, keep = state.ledger.transition(begun, torch.ones_like(error), error, self.draws)
        away = astray(new.energy, d)
        new = new._replace(ledger=ledger._replace(gradients=ledger.gradients + 1, astray=away))
        new = self._adapted(new, error, good, begun)
        return new, Info(new.energy / step.scale, keep=keep, sample=sample_of(new.params, new.energy))

    def _adapted(self, state: Gliding, error: Tensor, good: Tensor, begun: Tensor) -> Gliding:
        """What the warm-up learns from a step."""
        ledger, pace, x = state.ledger, state.pace, ravel(state.params, 1)
        warming = begun & ~ledger.frozen
        if self.step_size is None:
            pace = pick_pace(warming, self._heard(pace, error, good, x.shape[1]), pace)
        scales = state.scales.add(x, warming)
        share = ledger.gradients / max(1, self.warm)
        passed = torch.stack([(share >= w).long() for w in WINDOWS]).sum(0)
        closes = warming & (passed > state.window)
        over = begun & (ledger.gradients >= self.warm) & ~ledger.frozen
        state = gathered(state, closes | over)
        variance = torch.where(closes[:, None], scales.variance(), state.variance)
        none = Scales.none(x)
        scales = Scales(
            torch.where(closes[:, None], none.mean, scales.mean),
            torch.where(closes[:, None], none.squares, scales.squares),
            torch.where(closes, none.seen, scales.seen),
        )
        if self.step_size is None:
            stretch = 0.5 * (state.variance / variance).log().double().mean(1)
            moved = pace._replace(log_size=pace.log_size + stretch)
            pace = pick_pace(closes, moved.anew(), pace)
            pace = pick_pace(over, pace.settled(), pace)
        ledger = state.ledger
        thin = torch.full_like(ledger.thin, max(1, (self.total - self.warm - 1) // self.draws))
        ledger = ledger._replace(frozen=ledger.frozen | over, thin=torch.where(over, thin, ledger.thin))
        window = torch.where(closes, passed, state.window)
        return state._replace(variance=variance, pace=pace, scales=scales, window=window, ledger=ledger)

    def _heard(self, pace: Pace, error: Tensor, good: Tensor, d: int) -> Pace:
        """The step size after a step with these errors (M,): by the mean of their squares over chains."""
        squares = torch.where(good, error.square() / d, torch.full_like(error, 1e6 * self.tolerance))
        over = (squares.mean().clamp(min=1e-12) / self.tolerance).log() / ORDER
        t = pace.rounds + 1
        log_size = pace.log_size - over.clamp(-MOST, MOST) / t.sqrt()
        share = t**-FORGET
        return pace._replace(log_size=log_size, log_average=share * log_size + (1 - share) * pace.log_average, rounds=t)

    def finish(
        self, state: Any, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        done = super().finish(state, samples, problem, data, val, noise)
        curves = {name: value for name, value in done.curves.items() if name != "acceptance"}  # nothing is rejected
        return done._replace(curves=curves)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        yield from close_checks(bench, cls(steps=1000, warmup=500, draws=20), 32, bias=0.08)


def turned(u: Tensor, slopes: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
    """Directions (M, d) after the gradient has turned them for a time e (M, 1), and the change of the kinetic energy
    (d - 1) log |p| that goes with it, (M,), float64."""
    d = u.shape[1]
    norm = torch.linalg.vector_norm(slopes, dim=1, keepdim=True)
    down = -slopes / norm.clamp(min=torch.finfo(u.dtype).tiny)
    turn = e * norm / max(1, d - 1)
    along = (u * down).sum(1, keepdim=True)
    decay = torch.exp(-2 * turn)  # cosh and sinh over exp(turn) / 2, which may be beyond all numbers
    new = 2 * torch.exp(-turn) * u + down * (1 - decay + along * (1 - torch.exp(-turn)) ** 2)
    grown = 1 + along + (1 - along) * decay  # 2 exp(-turn) (cosh turn + along sinh turn)
    change = (d - 1) * (turn + (grown / 2).log()).double()[:, 0]
    return unit(new), change


def unit(x: Tensor) -> Tensor:
    """Vectors to length 1, along the last axis."""
    return x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)


def gathered(state: Gliding, when: Tensor) -> Gliding:
    """Chains that went astray are put where the one of median energy is."""
    lost, best = state.ledger.astray & when, donors(state.energy)

    def taken(x: Tensor) -> Tensor:
        there = x.index_select(0, best.reshape(1)).expand_as(x)
        return torch.where(lost.reshape(-1, *[1] * (x.dim() - 1)), there, x)

    params = {name: taken(x) for name, x in state.params.items()}
    ledger = state.ledger._replace(restarted=state.ledger.restarted + lost, astray=state.ledger.astray & ~lost)
    return state._replace(params=params, energy=taken(state.energy), slopes=taken(state.slopes), ledger=ledger)
