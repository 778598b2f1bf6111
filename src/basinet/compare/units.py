"""From what networks see back to the units of the target."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from ..tables.targets import scores_in_units


class Unit(NamedTuple):
    """Targets are (original - mean) / sd. Means go back by mean + sd z, errors by sd, variances by its square, and the
    NLL, minus the logarithm of a density, grows by log sd."""

    mean: float = 0.0
    sd: float = 1.0

    def back(self, z: Tensor) -> Tensor:
        """Values of the target."""
        return self.mean + self.sd * z

    def power(self, x: Tensor, k: int) -> Tensor:
        """What is in the k-th power of the unit."""
        return x * self.sd**k if self.sd != 1 else x

    def nll(self, value: float) -> float:
        """A negative log likelihood."""
        return value + math.log(self.sd)

    def scores(self, scores: Mapping[str, float]) -> dict[str, float]:
        """What `bn.score` gives."""
        return scores_in_units(scores, self.sd) if self.sd != 1 else dict(scores)


def unit_in(name: str) -> str | None:
    """The unit that a column's name ends with, in square brackets: EUR of "rent [EUR]"."""
    match = re.search(r"\[([^\[\]]+)\]\s*$", name)
    return match[1].strip() or None if match else None
