"""Predictions of real numbers, and their spread recalibrated."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution

from ..core.noise import Noise
from ..problem.distributions import parameters_of, with_parameters
from ..problem.warps import WarpedNormal
from .numbers import NumberPredictive
from .predictive import weighted


@dataclass(frozen=True, eq=False, repr=False)
class RealPredictive(NumberPredictive):
    """The mixture of the samples' densities. Its quantiles are found by bisection of the distribution function.

    With a `stretch` every deviation from a centre is multiplied by a factor, that of samples' means and that of their
    noise: around the mean of the mixture, or of each member around its own. Means stay as they are. Under `Warped` all
    of that is said of what the network sees, g(y), and its mean.
    """

    stretch: Tensor | None = field(default=None, kw_only=True)  # () of the mixture, (M,) of members; 1 where None

    def search(self, q: float, low: Tensor, high: Tensor) -> Tensor:
        for _ in range(100):
            middle = (low + high) / 2
            right = self.cdf(middle) < q
            low, high = torch.where(right, middle, low), torch.where(right, high, middle)
            if bool(((high - low) <= 4 * torch.finfo(low.dtype).eps * middle.abs()).all()):
                break
        return (low + high) / 2

    def calibrated(self, parts: Distribution) -> Distribution:
        if self.stretch is None:
            return parts
        if not {"loc", "scale"} <= set(parts.arg_constraints):
            raise TypeError(
                f"a factor on the spread is for distributions with a location and a scale, got {type(parts).__name__}"
            )
        given = parameters_of(parts)
        loc, factor = given["loc"], self.factor.to(given["loc"])
        centre = self.centre.to(loc)
        moved = {"loc": centre + factor * (loc - centre), "scale": factor * given["scale"]}
        return with_parameters(parts, given | moved)

    @cached_property
    def factor(self) -> Tensor:
        """What deviations are multiplied by, on the axes of what is predicted: (M or 1, 1, ...)."""
        axes = len(self.plain(self.outputs.dtype).batch_shape)
        given = torch.ones(()) if self.stretch is None else self.stretch
        return given.to(self.outputs.device, torch.float64).reshape(-1, *[1] * (axes - 1))

    @cached_property
    def centre(self) -> Tensor:
        """What deviations are measured from, (M or 1, 1, B, *event)."""
        member, inside = self.member_mass()
        plain = self.plain(torch.float64)
        means = plain.loc if isinstance(plain, WarpedNormal) else plain.mean
        own = torch.einsum("ms,ms...->m...", inside.to(means), means)
        around = own if self.factor.shape[0] > 1 or len(own) == 1 else weighted(member, own).unsqueeze(0)
        return around.unsqueeze(1)

    def drawn(self, m: Tensor, s: Tensor, b: Tensor, noise: Noise) -> Tensor:
        return self.moved(super().drawn(m, s, b, noise), m, b)

    def moved(self, targets: Tensor, m: Tensor, b: Tensor) -> Tensor:
        """Draws from components of members `m` on inputs `b`, stretched."""
        if self.stretch is None:
            return targets
        plain = self.plain(self.outputs.dtype)
        if isinstance(plain, WarpedNormal):
            return plain.warp.inverse(self._stretched(plain.warp.forward(targets.double()), m, b)).to(targets)
        return self._stretched(targets, m, b)

    def _stretched(self, targets: Tensor, m: Tensor, b: Tensor) -> Tensor:
        shape = self.plain(self.outputs.dtype).batch_shape
        centre = self.centre.expand(shape[0], 1, *shape[2:])[m, 0, b].to(targets)
        factor = self.factor.flatten().expand(shape[0])[m].to(targets)
        return centre + factor.reshape(*m.shape, *[1] * (targets.dim() - m.dim())) * (targets - centre)

    def some(self, index: Any) -> dict[str, Any]:
        stretch = self.stretch if self.stretch is None or self.stretch.dim() == 0 else self.stretch[index]
        return super().some(index) | {"stretch": stretch}
