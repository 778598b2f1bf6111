"""An equation that the network's function satisfies at collocation points, as far as `scale` says.

    sum_m |r(f, x_m)|^2 / (2 scale^2),   r(f, x) = 0 where f satisfies the equation at x

Minus the log density of residuals that are normal with standard deviation `scale`, at M points of their own (Raissi et
al. 2019; with a posterior over the weights, Yang et al. 2021).
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core.lift import lift
from ...core.noise import Noise
from ...core.tree import Params, Point, leaves, move, take, tree_map
from ...data.checks import as_tensor, check_finite, check_lengths
from .term import Outputs, Term, check_batch

if TYPE_CHECKING:
    from ..problem import Problem


@dataclass(frozen=True, eq=False)
class Equation(Term, kind="term"):
    """A residual that is zero where the equation holds, written for ONE point. u' = -rate u, for instance:

        @dataclass(frozen=True, eq=False)
        class Decay(bn.terms.Equation):
            rate: float = 1.0

            def residual(self, u, x):
                return torch.func.jacrev(u)(x)[:, 0] + self.rate * u(x)

        bn.Problem(network, likelihood, terms=[Decay(torch.linspace(0, 5, 100)[:, None], scale=0.01, rate=0.5)])

    Derivatives are those of torch.func. Norm layers that mix the points of a batch have none of a point.
    """

    inputs: Any
    """Collocation points: any tree of tensors, each (M, ...)."""
    scale: float = 1.0
    """Standard deviation of the residual at a point, in its units."""
    batch_size: int | None = None
    """Points per step, drawn again each time; None: all."""

    def __post_init__(self) -> None:
        if not 0 < self.scale < math.inf:
            raise ValueError(f"expected a positive, finite scale of the residual, got {self.scale!r}")
        check_batch(self.batch_size)
        inputs = tree_map(lambda x: as_tensor(x, "inputs"), self.inputs)
        named = {f"inputs[{i}]": x for i, x in enumerate(leaves(inputs))}
        check_lengths(named)
        for name, x in named.items():
            check_finite(x, name)
        object.__setattr__(self, "inputs", inputs)

    @abstractmethod
    def residual(self, u: Callable[[Any], Tensor], x: Any) -> Tensor:
        """What is zero where the equation holds, of any shape, at the inputs x of one point; u(x) are the network's
        outputs there, and `torch.func.jacrev(u)(x)` and the like their derivatives."""

    @property
    def points(self) -> Any:
        return self.inputs

    def energies(self, outputs: Outputs, points: Any, learned: Params, noise: Noise | None) -> Tensor:
        if noise is None:
            return lift(lambda x: self._energy(outputs, x, None))(points)
        keys = noise.spread(len(leaves(points)[0])).key
        return lift(lambda x, key: self._energy(outputs, x, Noise(key)))(points, keys)

    def check(self, problem: Problem, point: Point) -> None:
        if problem.network.norms:
            raise ValueError(
                f"{type(self).__name__} differentiates the network at one point, and its norm layers "
                f"({', '.join(problem.network.norms)}) mix the points of a batch: use layer or group norm"
            )
        like = next(iter(point.params.values()))
        x = move(take(self.inputs, 0), like.device, like.dtype)
        try:
            with torch.no_grad():
                residual = self.residual(lambda x: problem.outputs(*point, tree_map(lambda y: y[None], x))[0][0], x)
        except (RuntimeError, TypeError, IndexError, ValueError) as error:
            raise ValueError(f"the residual of {type(self).__name__} does not run at a point: {error}") from error
        if not isinstance(residual, Tensor) or not bool(residual.isfinite().all()):
            raise ValueError(f"expected a residual of finite numbers as a tensor, got {residual!r}")

    def _energy(self, outputs: Outputs, x: Any, noise: Noise | None) -> Tensor:
        residual = self.residual(lambda x: outputs(tree_map(lambda y: y.unsqueeze(0), x), noise)[0], x)
        return residual.square().sum() / (2 * self.scale**2)
