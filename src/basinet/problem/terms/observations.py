"""Targets of another kind than the data's: a few precise measurements beside many cheap ones, say.

sum_m -log p'(y_m | f(x_m)),   over M examples of their own, with a likelihood p' of their own
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from ...core.noise import Noise
from ...core.tree import Params, Point
from ...data import Data
from ..likelihoods import Likelihood
from ..likelihoods.fitting import weighted
from .term import Outputs, Term, check_batch

if TYPE_CHECKING:
    from ..problem import Problem


@dataclass(frozen=True, eq=False)
class Observations(Term):
    """Examples with a likelihood of their own, for the same network. They do not count in the data's N, and norm
    statistics are those of the data: in training, these examples are a batch of their own."""

    inputs: Any
    """Any tree of tensors, each (M, ...)."""
    targets: Tensor  # (M, ...)
    likelihood: Likelihood
    """How these targets follow from outputs."""
    weights: Tensor | None = None  # (M,), or like targets: multiply the log likelihood; 0 masks
    batch_size: int | None = None
    """Examples per step, drawn again each time; None: all."""

    def __post_init__(self) -> None:
        if not isinstance(self.likelihood, Likelihood):
            raise TypeError(f"expected a likelihood such as bn.likelihoods.Gaussian(), got {self.likelihood!r}")
        check_batch(self.batch_size)
        checked = Data(self.inputs, self.targets, self.weights)
        for name in ("inputs", "targets", "weights"):
            object.__setattr__(self, name, getattr(checked, name))

    @property
    def points(self) -> Any:
        own = {"inputs": self.inputs, "targets": self.targets}
        return own if self.weights is None else own | {"weights": self.weights}

    def init(self) -> Params:
        return self.likelihood.init()

    def energies(self, outputs: Outputs, points: Any, learned: Params, noise: Noise | None) -> Tensor:
        given = outputs(points["inputs"], noise)
        return -weighted(self.likelihood.log_density(given, points["targets"], learned), points.get("weights"))

    def check(self, problem: Problem, point: Point) -> None:
        self.likelihood.check(problem.tried(self.inputs, point), self.targets)
