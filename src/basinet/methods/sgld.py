"""Stochastic gradient Langevin dynamics: descent with noise of the size that makes it sample.

    theta' = theta - lr g + sqrt(2 lr T / N) z,   g the gradient of the loss per example on a batch

(Welling & Teh 2011, with e = 2 lr / N). Where U has curvature h the stationary variance is T / (h (1 - lr h / (2 N))):
nothing is rejected, and the error falls with the step. Noise of the batches comes on top; it falls faster than the
step's own.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..chains.proof import stationary_checks
from ..chains.stochastic import Stochastic, diffused
from ..core.tree import Params, Point
from ..engine import Step

if TYPE_CHECKING:
    import torch

    from ..testing import Bench, Check


@dataclass(frozen=True, kw_only=True)
class SGLD(Stochastic):
    """Descent with noise on mini-batches; with a cyclical rate, `lr=Cyclic(peak=..., cycles=...)`, over many modes."""

    def walk(self, state: Point, grads: Params, step: Step) -> tuple[Point, None]:
        rate = self.rate(step.batch.step, step.batch.total)
        noisy, _ = self.stage(step.batch.step, step.batch.total)
        z = diffused(step.noise.split("langevin"), state.params, (2 * rate * self.heat(step)).sqrt() * noisy)
        params = {n: x - rate.to(x.dtype) * grads[n] + z[n] for n, x in state.params.items()}
        return Point(params, state.buffers), None

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        def law(precision: torch.Tensor, n: int, rate: float) -> torch.Tensor:
            return 1 / (precision * (1 - rate * precision / (2 * n)))

        says = "T / (h (1 - lr h / (2 N))), of the discretised chain"
        yield from stationary_checks(bench, lambda rate, t: cls(epochs=120, lr=rate, draws=4, temperature=t), law, says)
