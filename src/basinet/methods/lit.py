"""Local independence training: members are asked for input gradients at right angles.

    loss = sum_i U(theta_i) T / N + strength x sum_{i<j} mean_b cos^2(g_ib, g_jb)
    g_ib = gradient of log p(y_b | x_b, theta_i) with respect to x_b

(Ross et al. 2018, "Learning qualitatively diverse and interpretable rules for classification"). A simple relative of
FoRDE: a loss that all members descend together, with no kernel, and no posterior behind it. One forward pass of a
member gives loss and gradients; what members exchange is the directions of these, F numbers per example.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, take
from ..data import Data, Stream, some
from ..engine import Descent, GradientMethod, Info, Schedule, Step
from ..engine.method import Entry
from ..optim import SGD, Adam, Cosine, Optimizer
from ..problem import Problem
from ..repulsion.input_gradients import counting, differentiable, input_gradients, unit
from ..repulsion.prior import with_prior
from ..testing.exact import conjugate

if TYPE_CHECKING:
    from ..testing import Bench, Check


@dataclass(frozen=True, kw_only=True)
class LIT(GradientMethod):
    """An ensemble with a penalty on the squared cosine between the input gradients of its members.

    Gradients are of the log probability of the target, whatever the likelihood. With one single input all cosines are
    one, and the penalty does nothing. One member is MAP.
    """

    coupled: ClassVar[bool] = True

    epochs: int | None = None
    """Passes through the data; None: as many as make 3,000 to 6,000 steps, or 10 if that is more."""
    batch_size: int | None = 128
    """Examples per step, the same for all members; None: all."""
    strength: float = 0.1
    """Strength of the penalty, in units of the loss of one example, for each pair; 0 is a deep ensemble."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))
    """How a gradient becomes a step."""

    def __post_init__(self) -> None:
        if not 0 <= self.strength < math.inf:
            raise ValueError(f"expected a finite strength of at least 0, got {self.strength}")

    def context(self, problem: Problem, data: Data | Stream) -> Any:
        """Nothing; raises where the inputs take no gradients."""
        differentiable(take(some(data).inputs, slice(0, 1)))
        return ()

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def gradient(self, state: Descent, step: Step) -> tuple[Any, Info]:
        batch, problem = step.batch, step.problem

        def member(params: Params, buffers: Params, key: Tensor) -> tuple[tuple[Tensor, Tensor], Params]:
            def values(outputs: Tensor) -> Tensor:
                return problem.log_densities(outputs, params, batch).reshape(1, len(outputs), -1).sum(-1)

            seen = input_gradients(problem, params, buffers, batch.inputs, values, Noise(key), "train")
            loss = problem.data_potential_of(seen.outputs, params, buffers, batch, Noise(key)) / step.scale
            return (loss, unit(seen.gradients)), seen.buffers

        (loss, directions), buffers, back = step.lift.pull(member)(state.params, state.buffers, step.noise.key)
        push = self.strength * slope(directions, counting(batch.weights, directions[0]))
        grads = back((torch.ones_like(loss), push))
        grads, loss = with_prior(grads, loss, state.params, step)
        return grads, Info(loss, buffers=buffers)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("LIT", cls(), 10),)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact = conjugate(d=2, correlation=0.0, lengths=(3.0, 3.0))
        pull = exact.precision[0, 0] * exact.mean.square().sum() / exact.data.n
        for strength in (0.1, 0.5, 1.0):
            recipe = cls(epochs=300, batch_size=None, strength=strength * float(pull), optimizer=SGD(lr=0.3))
            w = bench.fit(recipe, exact.problem, exact.data, 2).sample(1)["weight"].reshape(2, -1)
            sines = 1 - torch.cosine_similarity(w, exact.mean.unsqueeze(0)).square()
            sine = torch.full((2,), max(0.0, 0.5 - 1 / (8 * strength)), dtype=torch.float64)
            name = f"members=2, strength {strength:g} precision |mu|^2 / N: squared sine of the angle to the mode"
            yield bench.close(name, "max(0, 1/2 - 1 / (8 strength))", sines, sine, 1e-6)


def slope(directions: Tensor, weights: Tensor) -> Tensor:
    """The derivative of sum_{i<j} mean_b cos^2 in all directions (M, E, B, F), which have length one. How much a
    direction counts in the mean is in `weights` (E, B)."""
    with torch.autocast(directions.device.type, enabled=False):
        s = directions.movedim(0, -2)  # (E, B, M, F)
        others = 1 - torch.eye(s.shape[-2], dtype=s.dtype, device=s.device)
        share = (weights / weights.sum().clamp(min=torch.finfo(s.dtype).tiny))[..., None, None]
        return ((2 * share * others * (s @ s.mT)) @ s).movedim(-2, 0)
