"""Stochastic gradient Langevin dynamics: descent with noise of the size that makes it sample.

    theta' = theta - lr g + sqrt(2 lr T / N) z,   g the gradient of the loss per example on a batch

(Welling & Teh 2011, with e = 2 lr / N). Where U has curvature h the stationary variance is T / (h (1 - lr h / (2 N))):
nothing is rejected, and the error falls with the step. Noise of the batches comes on top; it falls faster than the
step's own. Unless a rate is given, it is found such that the batches add at most 5 % to the noise of a step, and the
square of lr h / N is at most .1 in the mean over parameters.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ..chains.proof import stationary_checks
from ..chains.stochastic import Stochastic, diffused
from ..chains.tempo import Tempo
from ..core.tree import Params, Point
from ..engine import Step

if TYPE_CHECKING:
    import torch

    from ..testing import Bench, Check


class Walking(NamedTuple):
    """Where a chain is, and how fast it goes."""

    params: Params
    buffers: Params
    tempo: Tempo


@dataclass(frozen=True, kw_only=True)
class SGLD(Stochastic):
    """Descent with noise on mini-batches; with a cyclical rate, `lr=Cyclic(peak=..., cycles=...)`, over many modes."""

    def begun(self, point: Point, tempo: Tempo) -> Walking:
        return Walking(*point, tempo)

    def walk(self, state: Walking, grads: Params, step: Step) -> tuple[Walking, None]:
        rate, (noisy, _) = self.rate(step, state.tempo), self.stage(step.batch.step, step.batch.total)
        heat = self.heat(step)
        z = diffused(step.noise.split("langevin"), state.params, (2 * rate * heat).sqrt() * noisy)
        params = {n: x - rate.to(x.dtype) * grads[n] + z[n] for n, x in state.params.items()}
        return Walking(params, state.buffers, self.heard(state.tempo, grads, step, heat)), None

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        def law(precision: torch.Tensor, n: int, rate: float) -> torch.Tensor:
            return 1 / (precision * (1 - rate * precision / (2 * n)))

        says = "T / (h (1 - lr h / (2 N))), of the discretised chain"
        yield from stationary_checks(bench, lambda rate, t: cls(epochs=120, lr=rate, draws=4, temperature=t), law, says)
