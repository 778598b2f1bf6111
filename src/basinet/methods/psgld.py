"""Preconditioned SGLD: Langevin steps in units of each parameter's usual gradient.

    v' = .99 v + .01 g^2 from v = 1,   G = 1 / (sqrt(max(v, .01 w)) + 1e-5)
    theta' = theta - lr G g + sqrt(2 lr G T / N) z

(Li et al. 2016, RMSprop's preconditioner). The correction for a G that changes, which the paper drops, is zero here:
G is found while the chain explores, in which draws are not kept, and stays as it is from then on. w, the mean of v over
all parameters, is not in the paper: gradients of a unit that is dead while the chain explores are next to nothing, and
steps in their units would throw the chain off when it comes alive.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from ..chains.proof import small_step_checks
from ..chains.stochastic import Stochastic, diffused
from ..chains.tempo import Tempo
from ..core.tree import Params, Point, size, tree_map
from ..engine import Step

if TYPE_CHECKING:
    from ..testing import Bench, Check

FORGET, FLOOR = 0.99, 1e-5  # as published
LEAST = 0.01  # of v, as a share of its mean


class Scaled(NamedTuple):
    """Where a chain is, and how large its gradients are."""

    params: Params
    buffers: Params
    squares: Params  # running means of squared gradients
    tempo: Tempo


@dataclass(frozen=True, kw_only=True)
class PSGLD(Stochastic):
    """Langevin steps on mini-batches, scaled by the size of each parameter's gradients while the chain explores."""

    def begun(self, point: Point, tempo: Tempo) -> Scaled:
        return Scaled(*point, tree_map(torch.ones_like, point.params), tempo)  # chains start at a mode

    def returned(self, state: Scaled) -> Scaled:
        squares = {n: v.nan_to_num(1.0).clamp(max=1.0) for n, v in state.squares.items()}
        return super().returned(state)._replace(squares=squares)

    def walk(self, state: Scaled, grads: Params, step: Step) -> tuple[Scaled, None]:
        clock, total = step.batch.step, step.batch.total
        rate, (noisy, _) = self.rate(step, state.tempo), self.stage(clock, total)
        length = self.planned(total).steps // self.cycles
        learning = clock < int(self.explore * length)

        def met(v: Tensor, g: Tensor) -> Tensor:
            return torch.where(learning, FORGET * v + (1 - FORGET) * g.square(), v)

        squares = {n: met(v, grads[n]) for n, v in state.squares.items()}
        least = LEAST * torch.stack([v.sum() for v in squares.values()]).sum() / size(squares)
        scale = {n: 1 / (torch.maximum(v, least).sqrt() + FLOOR) for n, v in squares.items()}
        heat = self.heat(step)
        wide = {n: (2 * rate * heat * noisy * s).sqrt() for n, s in scale.items()}
        z = diffused(step.noise.split("langevin"), state.params, wide)
        params = {n: x - rate.to(x.dtype) * scale[n] * grads[n] + z[n] for n, x in state.params.items()}
        return Scaled(params, state.buffers, squares, self.heard(state.tempo, grads, step, heat, scale)), None

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        def recipe(rate: float, temperature: float) -> PSGLD:
            return cls(epochs=600, lr=0.01, draws=4, temperature=temperature)

        yield from small_step_checks(bench, recipe, slack=0.05)
