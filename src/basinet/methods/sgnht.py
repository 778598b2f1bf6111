"""The stochastic gradient Nose-Hoover thermostat: friction that adapts until the temperature is right.

    v' = (1 - a) v - lr g + sqrt(2 A lr T / N) z,   theta' = theta + v',   a' = a + r (v'v N / (d lr T) - 1)

(Ding et al. 2014). Batches add noise of an unknown size, which heats SGHMC; here the friction a rises above A by what
takes that heat away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..chains.proof import stationary_checks
from ..chains.stochastic import Stochastic, diffused
from ..core.noise import Noise
from ..core.tree import Params, Point, size, tree_map
from ..engine import Step
from ..optim.schedules import Rate
from ..problem import Problem

if TYPE_CHECKING:
    from ..testing import Bench, Check


class Regulated(NamedTuple):
    """Where a chain is, how fast, and with how much friction."""

    params: Params
    buffers: Params
    velocity: Params
    friction: Tensor  # (), float64


@dataclass(frozen=True, kw_only=True)
class SGNHT(Stochastic):
    """Momentum on mini-batches with a friction that a thermostat adapts, so that the batches' noise does not heat."""

    lr: float | Rate = 2e-3  # what multiplies the gradient of the loss per example; a number or a rate, such as Cyclic
    friction: float = 0.1  # A, of the noise that is added, and where the thermostat begins
    response: float = 0.01  # r, how soon the thermostat answers

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.friction <= 1:
            raise ValueError(f"expected a friction of more than 0 and at most 1, got {self.friction}")
        if not 0 < self.response <= 1:
            raise ValueError(f"expected a response of more than 0 and at most 1, got {self.response}")

    def init(self, point: Point, problem: Problem, noise: Noise) -> Regulated:
        velocity = tree_map(torch.zeros_like, point.params)
        first = next(iter(point.params.values()))
        friction = torch.zeros((), dtype=torch.float64, device=first.device) + self.friction
        return Regulated(*point, velocity, friction)

    def walk(self, state: Regulated, grads: Params, step: Step) -> tuple[Regulated, Tensor]:
        rate = self.rate(step.batch.step, step.batch.total)
        noisy, _ = self.stage(step.batch.step, step.batch.total)
        heat = rate * self.heat(step)
        z = diffused(step.noise.split("friction"), state.params, (2 * self.friction * heat).sqrt() * noisy)
        velocity = {
            n: (1 - state.friction).to(v.dtype) * v - rate.to(v.dtype) * grads[n] + z[n]
            for n, v in state.velocity.items()
        }
        params = {n: x + velocity[n] for n, x in state.params.items()}
        squares = torch.stack([v.double().square().sum() for v in velocity.values()]).sum()
        reads = squares / heat.clamp(min=1e-300)  # of d degrees of freedom, where the temperature is right
        change = self.response * (reads / size(state.params) - 1)
        friction = torch.where(noisy, (state.friction + change).clamp(-0.5, 1.0), state.friction)
        return Regulated(params, state.buffers, velocity, friction), reads

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        def law(precision: Tensor, n: int, rate: float) -> Tensor:
            return 1 / precision  # steps are small

        says = "T / h, to first order in the step"
        yield from stationary_checks(
            bench, lambda _, t: cls(epochs=800, lr=0.01, friction=0.3, draws=4, temperature=t), law, says, slack=0.06
        )
