"""Real numbers of which a function is normal: p(y) = N(g(y); mu, sigma^2) g'(y), mu and sigma of another likelihood.

Outputs and noise are those of w = g(y). g' does not depend on the outputs, so that second derivatives are those of the
likelihood of w.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution

from ...core.tree import Params
from ..distributions import Normal
from ..warps import Warp, WarpedNormal
from .fitting import in_shape
from .likelihood import RealLikelihood


@dataclass(frozen=True, kw_only=True)
class Warped(RealLikelihood):
    """y = g^-1(w), where w has normal noise."""

    of: RealLikelihood
    """The likelihood of w: Gaussian or Heteroscedastic."""
    warp: Warp
    """The map g."""

    def __post_init__(self) -> None:
        if not isinstance(self.of, RealLikelihood) or not isinstance(self.warp, Warp):
            raise ValueError(f"expected a likelihood of real numbers and a warp, got {self.of!r} and {self.warp!r}")

    def init(self) -> Params:
        return self.of.init()

    @property
    def spread(self) -> str | None:
        return self.of.spread

    def distribution(self, outputs: Tensor, learned: Params) -> Distribution:
        inner = self.of.distribution(outputs, learned)
        if not isinstance(inner, Normal):
            raise TypeError(f"expected a likelihood with normal noise to warp, got {type(self.of).__name__}")
        return WarpedNormal(inner.loc, inner.scale, self.warp, validate_args=False)

    def hessian(self, outputs: Tensor, targets: Tensor | None, learned: Params) -> Tensor:
        if targets is None:
            return self.of.hessian(outputs, None, learned)
        shape = self.of.distribution(outputs, learned).batch_shape
        return self.of.hessian(outputs, self.warp.forward(in_shape(targets, shape)), learned)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        self.of.check(outputs, targets)
