"""Stochastic gradient Hamiltonian Monte Carlo: momentum with friction, and noise that balances it.

    v' = (1 - a) v - lr g + sqrt(2 a lr T / N) z,   theta' = theta + v'

(Chen et al. 2014; a is the friction, 1 - a what optimisers call momentum). Where U has curvature h the stationary
variance is T / (h (1 - lr h / (2 (2 - a) N))).
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
from ..core.tree import Params, Point, tree_map
from ..engine import Step
from ..optim.schedules import Rate
from ..problem import Problem

if TYPE_CHECKING:
    from ..testing import Bench, Check


class Rolling(NamedTuple):
    """Where a chain is, and how fast."""

    params: Params
    buffers: Params
    velocity: Params


@dataclass(frozen=True, kw_only=True)
class SGHMC(Stochastic):
    """Momentum with friction and noise on mini-batches; with a cyclical rate over many modes."""

    lr: float | Rate = 2e-3  # what multiplies the gradient of the loss per example; a number or a rate, such as Cyclic
    friction: float = 0.1  # share of the velocity that is lost in a step: 1 - momentum

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.friction <= 1:
            raise ValueError(f"expected a friction of more than 0 and at most 1, got {self.friction}")

    def init(self, point: Point, problem: Problem, noise: Noise) -> Rolling:
        return Rolling(*point, tree_map(torch.zeros_like, point.params))

    def walk(self, state: Rolling, grads: Params, step: Step) -> tuple[Rolling, Tensor]:
        rate = self.rate(step.batch.step, step.batch.total)
        noisy, _ = self.stage(step.batch.step, step.batch.total)
        heat = rate * self.heat(step)
        z = diffused(step.noise.split("friction"), state.params, (2 * self.friction * heat).sqrt() * noisy)
        velocity = {n: (1 - self.friction) * v - rate.to(v.dtype) * grads[n] + z[n] for n, v in state.velocity.items()}
        params = {n: x + velocity[n] for n, x in state.params.items()}
        return Rolling(params, state.buffers, velocity), kinetic(velocity, heat, self.friction)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        friction = 0.5

        def law(precision: Tensor, n: int, rate: float) -> Tensor:
            return 1 / (precision * (1 - rate * precision / (2 * (2 - friction) * n)))

        says = "T / (h (1 - lr h / (2 (2 - a) N))), of the discretised chain"
        yield from stationary_checks(
            bench, lambda rate, t: cls(epochs=160, lr=rate, friction=friction, draws=4, temperature=t), law, says
        )


def kinetic(velocity: Params, heat: Tensor, friction: float) -> Tensor:
    """v'v N / (lr T), which has d degrees of freedom: times (2 - a) / 2, since Euler steps of this kind raise it by
    the inverse, however small they are."""
    squares = torch.stack([v.double().square().sum() for v in velocity.values()]).sum()
    return squares / heat.clamp(min=1e-300) * (2 - friction) / 2
