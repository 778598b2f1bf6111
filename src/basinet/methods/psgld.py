"""Preconditioned SGLD: Langevin steps in units of each parameter's usual gradient.

    v' = .99 v + .01 g^2 from v = 1,  G = 1 / (sqrt(v) + 1e-5);   theta' = theta - lr G g + sqrt(2 lr G T / N) z

(Li et al. 2016, RMSprop's preconditioner). The correction for a G that changes, which the paper drops, is zero here:
G is found while the chain explores, in which draws are not kept, and stays as it is from then on.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..chains.proof import small_step_checks
from ..chains.stochastic import Stochastic, diffused
from ..core.noise import Noise
from ..core.tree import Params, Point, tree_map
from ..engine import Step
from ..optim.schedules import Rate
from ..problem import Problem

if TYPE_CHECKING:
    from ..testing import Bench, Check

FORGET, FLOOR = 0.99, 1e-5  # as published


class Scaled(NamedTuple):
    """Where a chain is, and how large its gradients are."""

    params: Params
    buffers: Params
    squares: Params  # running means of squared gradients


@dataclass(frozen=True, kw_only=True)
class PSGLD(Stochastic):
    """Langevin steps on mini-batches, scaled by the size of each parameter's gradients while the chain explores."""

    lr: float | Rate | None = 0.01  # what multiplies the scaled gradient; a number or a rate, such as Cyclic

    def init(self, point: Point, problem: Problem, noise: Noise) -> Scaled:
        return Scaled(*point, tree_map(torch.ones_like, point.params))  # a chain may start at a mode

    def walk(self, state: Scaled, grads: Params, step: Step) -> tuple[Scaled, None]:
        clock, total = step.batch.step, step.batch.total
        rate, (noisy, _) = self.rate(clock, total), self.stage(clock, total)
        length = self.planned(total).steps // self.cycles
        learning = clock < int(self.explore * length)

        def met(v: Tensor, g: Tensor) -> Tensor:
            return torch.where(learning, FORGET * v + (1 - FORGET) * g.square(), v)

        squares = {n: met(v, grads[n]) for n, v in state.squares.items()}
        scale = {n: 1 / (v.sqrt() + FLOOR) for n, v in squares.items()}
        heat = 2 * rate * self.heat(step) * noisy
        z = diffused(step.noise.split("langevin"), state.params, {n: (heat * s).sqrt() for n, s in scale.items()})
        params = {n: x - rate.to(x.dtype) * scale[n] * grads[n] + z[n] for n, x in state.params.items()}
        return Scaled(params, state.buffers, squares), None

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        def recipe(rate: float, temperature: float) -> PSGLD:
            return cls(epochs=600, lr=0.01, draws=4, temperature=temperature)

        yield from small_step_checks(bench, recipe, slack=0.05)
