"""Counts: -log p = exp(f) - y f + log y!, of second derivative exp(f)."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution

from ...core.tree import Params
from .. import distributions
from .blocks import diagonal
from .fitting import aligned, check_whole
from .likelihood import CountLikelihood


@dataclass(frozen=True, kw_only=True)
class Poisson(CountLikelihood):
    """Counts 0, 1, 2, ... with rate exp(outputs): the network's outputs are log-rates. Targets may be integers or
    floating numbers that are whole."""

    def distribution(self, outputs: Tensor, learned: Params) -> Distribution:
        return distributions.Poisson(outputs, validate_args=False)

    def hessian(self, outputs: Tensor, targets: Tensor | None, learned: Params) -> Tensor:
        return diagonal(outputs.exp())

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        aligned(outputs, targets)
        check_whole(self, targets, math.inf, "counts are neither scaled nor centred")
