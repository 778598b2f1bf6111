"""The stochastic gradient Nose-Hoover thermostat: friction that adapts until the temperature is right.

    m' = (1 - a) m - sqrt(lr) g + sqrt(2 A T / N) z,   theta' = theta + sqrt(lr) m',
    a = A + x s,   x' = x + r s (t - 1),   t = (1 - a / 2) m'm N / (d T)

(Ding et al. 2014, with v = sqrt(lr) m). Batches add noise of an unknown size, which heats SGHMC; here the friction a
rises above A by what takes that heat away. The heat is in proportion to the rate: s, the rate over the largest so far,
lets the answer fall with a rate that falls, and is 1 where the rate is constant or found. Steps of this kind raise the
mean of m'm by 1 / (1 - a / 2) over that of small steps, whatever their noise: E <theta, g> = (1 - a / 2) E m'm. So t is
what the thermostat reads, where the paper has no factor, and the configurational temperature is T at any step size that
is stable. Batches are drawn independently: in shuffled passes their noise comes back with the other sign, and a
friction against what never was there would cool.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from ..chains.proof import small_step_checks
from ..chains.stochastic import Stochastic, diffused, kinetic
from ..chains.tempo import Tempo
from ..core.tree import Params, Point, size, tree_map
from ..engine import Step

if TYPE_CHECKING:
    from ..testing import Bench, Check


LEAST, MOST = -0.5, 1.0  # of the friction


class Regulated(NamedTuple):
    """Where a chain is, its momentum, and how much friction it has beyond that of its noise."""

    params: Params
    buffers: Params
    momentum: Params
    beyond: Tensor  # (), float64, x
    largest: Tensor  # (), float64, the largest rate so far
    tempo: Tempo


@dataclass(frozen=True, kw_only=True)
class SGNHT(Stochastic):
    """Momentum on mini-batches with a friction that a thermostat adapts, so that the batches' noise does not heat."""

    order: ClassVar[Literal["shuffled", "independent"]] = "independent"

    friction: float = 0.1
    """A, the friction of the noise that is added, where the thermostat begins."""
    response: float = 0.01
    """R, how soon the thermostat answers."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.friction <= 1:
            raise ValueError(f"expected a friction of more than 0 and at most 1, got {self.friction}")
        if not 0 < self.response <= 1:
            raise ValueError(f"expected a response of more than 0 and at most 1, got {self.response}")

    def begun(self, point: Point, tempo: Tempo) -> Regulated:
        momentum = tree_map(torch.zeros_like, point.params)
        none = torch.zeros((), dtype=torch.float64, device=next(iter(point.params.values())).device)
        return Regulated(*point, momentum, none, none.clone(), tempo)

    def walk(self, state: Regulated, grads: Params, step: Step) -> tuple[Regulated, Tensor]:
        rate = self.rate(step, state.tempo)
        noisy, _ = self.stage(step.batch.step, step.batch.total)
        largest, root = rate if self.lr is None else torch.maximum(state.largest, rate), rate.sqrt()
        share = rate / largest.clamp(min=torch.finfo(torch.float64).tiny)
        friction, heat = self.friction + state.beyond * share, self.heat(step) + 0.0 * rate
        z = diffused(step.noise.split("friction"), state.params, (2 * self.friction * heat).sqrt() * noisy)
        momentum = {
            n: (1 - friction).to(m.dtype) * m - root.to(m.dtype) * grads[n] + z[n] for n, m in state.momentum.items()
        }
        params = {n: x + root.to(x.dtype) * momentum[n] for n, x in state.params.items()}
        reads = kinetic(momentum, heat, friction)  # of d degrees of freedom, where the temperature is right
        change = self.response * share * (reads / size(state.params) - 1)
        bounded = (self.friction + state.beyond + change).clamp(LEAST, MOST) - self.friction
        beyond = torch.where(noisy, bounded, state.beyond)
        tempo = self.heard(state.tempo, grads, step, self.friction * heat)
        return Regulated(params, state.buffers, momentum, beyond, largest, tempo), reads

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        def recipe(rate: float, temperature: float) -> SGNHT:
            return cls(epochs=800, lr=0.01, friction=0.3, draws=4, temperature=temperature)

        yield from small_step_checks(bench, recipe, slack=0.06)
