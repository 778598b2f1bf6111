"""Independent normals: log p = -sum (theta - centre)^2 / (2 scale^2) - log scale - log(2 pi) / 2."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ...core.nearest import did_you_mean
from ...core.noise import Noise
from ...core.tree import Params
from .prior import Prior, constant
from .scales import Scale, check_layers, check_scale, scales_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Normal(Prior):
    """Independent normals: theta ~ N(centre, scale^2).

    `scale` is one standard deviation for all parameters; or one per layer, by the start of the parameter's name
    (`{"features": 0.1, "head": 1.0}`, the longest match wins); or by fan: "xavier" sqrt(2 / (fan_in + fan_out)),
    "lecun" sqrt(1 / fan_in), "he" sqrt(2 / fan_in), where vectors (biases, norm layers) keep 1. Mean-loss weight
    decay lambda is scale = 1 / sqrt(lambda N).
    """

    scale: Scale = 1.0
    """Standard deviation: a number, one per layer, or a rule by fan."""
    centre: Params | None = None
    """The mean; None: zero. Parameters that it does not name have mean zero."""

    def __post_init__(self) -> None:
        check_scale(self.scale, "standard deviation")
        if self.centre is not None and not isinstance(self.centre, Mapping):
            raise TypeError(f"expected centre as tensors by the names of parameters, or None, got {self.centre!r}")

    def energy(self, params: Params) -> Tensor:
        return torch.stack(list(self.energies(params).values())).sum()

    def energies(self, params: Params) -> Params:
        """The energy of each tensor, ()."""
        scales = self.scales(params)
        return {n: self._centred(n, x).square().sum() * (0.5 / scales[n] ** 2) for n, x in params.items()}

    def log_normaliser(self, params: Params) -> Tensor:
        scales = self.scales(params)
        each = (x.numel() * (math.log(scales[n]) + 0.5 * math.log(2 * math.pi)) for n, x in params.items())
        return constant(sum(each), params)

    def sample(self, like: Params, noise: Noise) -> Params:
        scales, z = self.scales(like), noise.normal_params(like)
        return {n: self._mean(n, x) + scales[n] * z[n] for n, x in like.items()}

    def precision(self, params: Params) -> dict[str, float] | None:
        return None if self.centre else {n: s**-2 for n, s in self.scales(params).items()}

    def scales(self, params: Params) -> dict[str, float]:
        """The standard deviation of each parameter tensor."""
        return scales_of(self.scale, params)

    def check(self, params: Params) -> None:
        check_layers(self.scale, params)
        for name, mean in (self.centre or {}).items():
            if name not in params:
                raise ValueError(
                    f"the prior is centred on {name!r}, which the model does not have.{did_you_mean(name, params)}"
                )
            if mean.shape != params[name].shape:
                raise ValueError(
                    f"the prior's centre for {name} is {tuple(mean.shape)}, expected {tuple(params[name].shape)}"
                )

    def _mean(self, name: str, like: Tensor) -> Tensor | float:
        mean = (self.centre or {}).get(name)
        return 0.0 if mean is None else mean.to(like)

    def _centred(self, name: str, x: Tensor) -> Tensor:
        mean = self._mean(name, x)
        return x - mean if isinstance(mean, Tensor) else x
