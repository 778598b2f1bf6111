"""Stochastic gradient Hamiltonian Monte Carlo: momentum with friction, and noise that balances it.

    m' = (1 - a) m - sqrt(lr) g + sqrt(2 a T / N) z,   theta' = theta + sqrt(lr) m'

(Chen et al. 2014, with v = sqrt(lr) m; a is the friction, 1 - a what optimisers call momentum). The spread of m is the
same at every rate, so that a rate which falls does not leave chains faster than it allows. Where U has curvature h the
stationary variance is T / (h (1 - lr h / (2 (2 - a) N))). Batches heat by lr V / (2 a), V the variance of g: unless a
rate is given, it is found such that this is at most 5 % while the chain explores.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..chains.proof import stationary_checks
from ..chains.stochastic import Stochastic, diffused, kinetic
from ..chains.tempo import Tempo
from ..core.tree import Params, Point, tree_map
from ..engine import Step

if TYPE_CHECKING:
    from ..testing import Bench, Check


class Rolling(NamedTuple):
    """Where a chain is, and its momentum."""

    params: Params
    buffers: Params
    momentum: Params
    tempo: Tempo


@dataclass(frozen=True, kw_only=True)
class SGHMC(Stochastic):
    """Momentum with friction and noise on mini-batches; with a cyclical rate over many modes."""

    usual: ClassVar[bool] = True

    friction: float = 0.1
    """Share of the velocity that is lost in a step: 1 - momentum."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.friction <= 1:
            raise ValueError(f"expected a friction of more than 0 and at most 1, got {self.friction}")

    def begun(self, point: Point, tempo: Tempo) -> Rolling:
        return Rolling(*point, tree_map(torch.zeros_like, point.params), tempo)

    def walk(self, state: Rolling, grads: Params, step: Step) -> tuple[Rolling, Tensor]:
        root, (noisy, _) = self.rate(step, state.tempo).sqrt(), self.stage(step.batch.step, step.batch.total)
        heat = self.heat(step) + 0.0 * root
        z = diffused(step.noise.split("friction"), state.params, (2 * self.friction * heat).sqrt() * noisy)
        momentum = {n: (1 - self.friction) * m - root.to(m.dtype) * grads[n] + z[n] for n, m in state.momentum.items()}
        params = {n: x + root.to(x.dtype) * momentum[n] for n, x in state.params.items()}
        tempo = self.heard(state.tempo, grads, step, self.friction * heat)
        return Rolling(params, state.buffers, momentum, tempo), kinetic(momentum, heat, self.friction)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        friction = 0.5

        def law(precision: Tensor, n: int, rate: float) -> Tensor:
            return 1 / (precision * (1 - rate * precision / (2 * (2 - friction) * n)))

        says = "T / (h (1 - lr h / (2 (2 - a) N))), of the discretised chain"
        yield from stationary_checks(
            bench, lambda rate, t: cls(epochs=160, lr=rate, friction=friction, draws=4, temperature=t), law, says
        )
