"""Microcanonical Langevin Monte Carlo: chains of constant speed that the gradient turns, and noise turns a little.

    dx = u dt,   du = -(1 - u u') dU/dx dt / (d - 1),   |u| = 1;   after each step u + nu z, to length 1 again

(Robnik, De Luca, Silverstein & Seljak 2023). Leapfrog steps of one gradient each, in units of each parameter's spread.
Nothing is rejected; the error of the energy in a step says how large the bias is. u forgets its direction after a
length L: nu^2 = (exp(2 e / L) - 1) / d. The warm-up finds the spreads; the step size e at which the variance of the
error per dimension is `tolerance`; and last L: of sqrt(d), the size of the posterior in those units, and multiples, the
shortest with which parameters vary nearly as much in a given number of steps as with any. A network's posterior is long
and bent, and takes lengths at which a Gaussian's would no longer gain. For networks: started from an ensemble.
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
from ..chains.energy import normals, split
from ..chains.ledger import DIVERGENT, Ledger, astray, gathered
from ..chains.metropolis import WINDOWS
from ..chains.proof import close_checks
from ..chains.scales import Scales
from ..chains.stride import Stride, pick
from ..chains.tree import mask
from ..core.noise import Noise
from ..core.tree import Params, Point, ravel
from ..data import Data
from ..engine import Finished, Info, Step
from ..problem import Problem

if TYPE_CHECKING:
    from ..testing import Bench, Check

MULTIPLES = (1.0, 3.0, 9.0, 27.0)  # of sqrt(d), that are tried for L
TRIES = 0.6  # share of the warm-up after which they are, one after another, the rest long
NEARLY = 0.95  # of the largest spread that is met: shorter lengths are preferred
FEWEST = 20  # steps of a try, with fewer L stays sqrt(d)


class Gliding(NamedTuple):
    """The state of a chain."""

    params: Params
    buffers: Params
    energy: Tensor  # (), U; infinite before the first gradient
    slopes: Tensor  # (d,), dU
    direction: Tensor  # (d,), of length 1, in units of the spreads
    window: Tensor  # (), windows of the warm-up that have ended
    variance: Tensor  # (d,), squared spreads
    length: Tensor  # (), L
    tried: Tensor  # (4,), spread of parameters that each multiple reached
    piece: Scales  # positions in the present try
    pace: Stride
    scales: Scales
    ledger: Ledger


@dataclass(frozen=True, kw_only=True)
class MCLMC(Chain):
    """Microcanonical Langevin chains with full batches, which warm up together, from trained networks.

    Draws have a small bias, which `tolerance` bounds; `bn.diagnose` measures it by the configurational temperature.
    """

    enough: ClassVar[int] = 6000

    step_size: float | None = None
    """Step size in units of the spreads; None: found in the warm-up."""
    length: float | None = None
    """Length after which a chain forgets its direction, in those units; None: found in the warm-up."""
    tolerance: float = 5e-4
    """Variance of the energy error of a step, per dimension; less is slower and closer."""

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
        length = number + (math.sqrt(len(x)) if self.length is None else self.length)
        start = (number + math.inf, torch.zeros_like(x), direction, number.long(), torch.ones_like(x), length)
        tries = (number + torch.zeros(len(MULTIPLES), dtype=torch.float64, device=x.device), Scales.none(x))
        return Gliding(*point, *start, *tries, Stride.at(self.step_size, x), Scales.none(x), Ledger.empty(x))

    def update(self, state: Gliding, step: Step) -> tuple[Gliding, Info]:
        return step.lift.whole(self.moved)(state, step)

    def moved(self, state: Gliding, step: Step) -> tuple[Gliding, Info]:
        """One step of all chains."""
        begun = state.ledger.gradients > 0
        x, d = ravel(state.params, 1), state.direction.shape[1]
        spread, e = state.variance.sqrt(), state.pace.log_size.exp().to(x.dtype)[:, None]
        u, first = turned(state.direction, state.slopes * spread, e / 2)
        place = torch.where(begun[:, None], x + e * spread * u, x)
        energy, slopes = self.energies(split(place, state.params), state.buffers, step)
        u, second = turned(u, slopes * spread, e / 2)
        error = energy - state.energy + first + second
        good = (error.abs() < DIVERGENT) | ~begun  # NaN is not
        z = normals(step, x, torch.ones_like(begun))
        share = (torch.expm1(2 * e / state.length.to(x.dtype)[:, None]) / d).sqrt()
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
        ledger, keep = state.ledger.transition(begun, good.to(error), error, self.wanted)
        away = astray(new.energy, d)
        new = new._replace(ledger=ledger._replace(gradients=ledger.gradients + 1, astray=away))
        new = self._adapted(new, error, good, begun)
        return new, Info(self.loss_of(new.energy, step), keep=keep, sample=sample_of(new.params, new.energy))

    def _adapted(self, state: Gliding, error: Tensor, good: Tensor, begun: Tensor) -> Gliding:
        """What the warm-up learns from a step."""
        ledger, pace, x = state.ledger, state.pace, ravel(state.params, 1)
        warming = begun & ~ledger.frozen
        if self.step_size is None:
            squares = error.square() / (x.shape[1] * self.tolerance)
            pace = pick(warming, pace.heard(squares, good), pace)
        scales = state.scales.add(x, warming)
        share = ledger.gradients / max(1, self.warm)
        passed = torch.stack([(share >= w).long() for w in WINDOWS]).sum(0)
        closes = warming & (passed > state.window)
        over = begun & (ledger.gradients >= self.warm) & ~ledger.frozen
        state = gathered(state, closes | over)
        variance = torch.where(closes[:, None], scales.variance(), state.variance)
        scales = Scales(*(torch.where(mask(closes, a), b, a) for a, b in zip(scales, Scales.none(x))))
        if self.step_size is None:
            stretch = 0.5 * (state.variance / variance).log().double().mean(1)
            pace = pick(closes, pace.anew(stretch), pace)
            pace = pick(over, pace.settled(), pace)
        state = self._tried(state, warming) if self.length is None else state
        ledger = state.ledger
        thin = torch.full_like(ledger.thin, max(1, (self.total - self.warm - 1) // self.draws))
        ledger = ledger._replace(frozen=ledger.frozen | over, thin=torch.where(over, thin, ledger.thin))
        window = torch.where(closes, passed, state.window)
        return state._replace(variance=variance, pace=pace, scales=scales, window=window, ledger=ledger)

    def _tried(self, state: Gliding, warming: Tensor) -> Gliding:
        """L for the next step: in the last part of the warm-up one multiple after another, then the best."""
        x, count = ravel(state.params, 1), len(MULTIPLES)
        begin = int(TRIES * self.warm)
        each = (self.warm - begin) // count
        if each < FEWEST:
            return state
        clock = state.ledger.gradients - begin  # (M,), the same in every place
        trying = warming & (clock > 0) & (clock <= each * count)
        piece = state.piece.add(x, trying)
        full = trying & (clock % each == 0)
        reached = (piece.pooled() / state.variance[0]).clamp(max=1.0).double().mean()
        here = (clock - 1).clamp(min=0) // each  # number of the present try
        numbers = torch.arange(count, device=x.device)
        tried = torch.where(full[:, None] & (numbers == here[:, None]), reached, state.tried)
        good = tried >= NEARLY * tried.amax(1, keepdim=True)
        chosen = torch.where(full & (here == count - 1), good.long().argmax(1), clock.clamp(min=0) // each)
        length = state.length
        for k, multiple in enumerate(MULTIPLES):
            length = torch.where(trying & (chosen.clamp(max=count - 1) == k), math.sqrt(x.shape[1]) * multiple, length)
        none = Scales.none(x)
        piece = Scales(*(torch.where(mask(full, a), b, a) for a, b in zip(piece, none)))
        return state._replace(length=length, tried=tried, piece=piece)

    def finish(
        self, state: Any, samples: Any, problem: Problem, data: Data | None, val: Data | None, noise: Noise
    ) -> Finished:
        done = super().finish(state, samples, problem, data, val, noise)
        curves = {name: value for name, value in done.curves.items() if name != "acceptance"}  # nothing is rejected
        return done._replace(curves=curves | {"length": [float(state.length)]})

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
