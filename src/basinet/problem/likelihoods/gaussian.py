"""Real numbers with normal noise: -log p = (y - f)^2 / (2 sigma^2) + log sigma + log(2 pi) / 2."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from torch.distributions import Distribution

from ...core.tree import Params
from ..distributions import Normal
from .blocks import diagonal
from .fitting import check_real
from .likelihood import RealLikelihood
from .scales import Scale, check_scale_fits, checked_scale, log_scale, scale_like


@dataclass(frozen=True, kw_only=True)
class Gaussian(RealLikelihood):
    """y = outputs + noise of one standard deviation, or one for each output; known, or learned with the weights (its
    logarithm, flat prior)."""

    noise: Scale = 1.0
    """Standard deviation of the noise in units of the target: a number, or one per output; the start if learned."""
    learned: bool = False
    """Whether it is learned, as an entry likelihood.log_noise of the params."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "noise", checked_scale(self.noise, "noise standard deviation"))

    def init(self) -> Params:
        return {"log_noise": log_scale(self.noise)} if self.learned else {}

    @property
    def spread(self) -> str | None:
        return "log_noise" if self.learned else None

    def distribution(self, outputs: Tensor, learned: Params) -> Distribution:
        return Normal(outputs, self._scale(outputs, learned), validate_args=False)

    def hessian(self, outputs: Tensor, targets: Tensor | None, learned: Params) -> Tensor:
        return diagonal(self._scale(outputs, learned) ** -2)

    def check(self, outputs: Tensor, targets: Tensor) -> None:
        check_real(self, outputs, targets)
        check_scale_fits("Gaussian", self.noise, outputs)

    def _scale(self, outputs: Tensor, learned: Params) -> Tensor:
        return scale_like(outputs, self.noise, learned["log_noise"] if self.learned else None)
