"""Labels that are present or not, by sigmoid: -log p = log(1 + exp(-(2y - 1) f)), of second derivative p (1 - p)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...core.tree import Params
from .blocks import diagonal
from .fitting import aligned, check_whole
from .likelihood import LabelLikelihood


@dataclass(frozen=True, kw_only=True)
class Bernoulli(LabelLikelihood):
    """Independent labels from logits, one per output: multi-label, or two classes from one output. Targets are 0 or 1
    (or booleans), in the shape of the outputs."""

    def logits(self, outputs: Tensor, learned: Params) -> Tensor:
        return outputs

    def hessian(self, outputs: Tensor, targets: Tensor | None, learned: Params) -> Tensor:
        return diagonal(outputs.sigmoid() * (-outputs).sigmoid())

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        aligned(outputs, targets)
        check_whole(self, targets, 1, "one output per label; for class indices use Categorical")
