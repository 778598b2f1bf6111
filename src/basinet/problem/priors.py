"""Priors: what is believed of the parameters before any data."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core.nearest import did_you_mean
from ..core.noise import Noise
from ..core.registry import Saved
from ..core.tree import Params


class Prior(Saved, kind="prior"):
    """A density over params. Parameters that the likelihood learns are not among them: theirs is flat."""

    @abstractmethod
    def energy(self, params: Params) -> Tensor:
        """Minus the log density, up to what does not depend on the params."""

    @abstractmethod
    def log_normaliser(self, params: Params) -> Tensor:
        """What `energy` leaves out: log_prob = -energy - log_normaliser."""

    @abstractmethod
    def sample(self, like: Params, noise: Noise) -> Params:
        """A draw in the shapes of `like`."""

    def check(self, params: Params) -> None:
        """Raises where the prior does not fit parameters of these names and shapes."""

    def log_prob(self, params: Params) -> Tensor:
        """The log density."""
        return -self.energy(params) - self.log_normaliser(params)


@dataclass(frozen=True, kw_only=True, eq=False)
class Normal(Prior):
    """Independent normals: theta ~ N(centre, scale^2).

    `scale` is one standard deviation for all parameters; or one per layer, by the start of the parameter's name
    (`{"features": 0.1, "head": 1.0}`, the longest match wins); or by fan: "xavier" sqrt(2 / (fan_in + fan_out)),
    "lecun" sqrt(1 / fan_in), "he" sqrt(2 / fan_in), where vectors (biases, norm layers) keep 1. Mean-loss weight
    decay lambda is scale = 1 / sqrt(lambda N).
    """

    scale: float | Mapping[str, float] | Literal["xavier", "lecun", "he"] = (
        1.0  # standard deviation: number, per layer, or by fan
    )
    centre: Params | None = None  # the mean; zero where not given. Parameters it does not name have mean zero

    def __post_init__(self) -> None:
        if isinstance(self.scale, str):
            if self.scale not in ("xavier", "lecun", "he"):
                raise ValueError(
                    f"unknown prior scale {self.scale!r}.{did_you_mean(self.scale, ('xavier', 'lecun', 'he'))}"
                )
            return
        for s in self.scale.values() if isinstance(self.scale, Mapping) else (self.scale,):
            if not (s > 0 and math.isfinite(s)):
                raise ValueError(f"expected a positive, finite prior standard deviation, got {s}")

    def energy(self, params: Params) -> Tensor:
        scales = self.scales(params)
        terms = [((x - self._mean(n, x)) / scales[n]).square().sum() for n, x in params.items()]
        return 0.5 * torch.stack(terms).sum()

    def log_normaliser(self, params: Params) -> Tensor:
        scales = self.scales(params)
        total = sum(x.numel() * (math.log(scales[n]) + 0.5 * math.log(2 * math.pi)) for n, x in params.items())
        return next(iter(params.values())).new_tensor(total)

    def sample(self, like: Params, noise: Noise) -> Params:
        scales, z = self.scales(like), noise.normal_params(like)
        return {n: self._mean(n, x) + scales[n] * z[n] for n, x in like.items()}

    def scales(self, params: Params) -> dict[str, float]:
        """The standard deviation of each parameter tensor."""
        if isinstance(self.scale, str):
            return {n: _fan_scale(self.scale, tuple(x.shape)) for n, x in params.items()}
        if isinstance(self.scale, Mapping):
            return {n: self._layer_scale(n) for n in params}
        return dict.fromkeys(params, float(self.scale))

    def check(self, params: Params) -> None:
        self.scales(params)
        for name in self.scale if isinstance(self.scale, Mapping) else ():
            if not any(_starts(n, name) for n in params):
                raise ValueError(
                    f"the prior names a layer {name!r} that the model does not have.{did_you_mean(name, params)}"
                )
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

    def _layer_scale(self, name: str) -> float:
        assert isinstance(self.scale, Mapping)
        matches = [layer for layer in self.scale if _starts(name, layer)]
        if not matches:
            raise ValueError(
                f"the prior gives no scale for {name!r}: its layers are {', '.join(self.scale)}. Add one, or '' for "
                f"all others"
            )
        return self.scale[max(matches, key=len)]


def _starts(name: str, layer: str) -> bool:
    return layer in ("", name) or name.startswith(layer + ".")


def _fan_scale(rule: str, shape: tuple[int, ...]) -> float:
    if len(shape) < 2:
        return 1.0
    field = math.prod(shape[2:])
    fan_in, fan_out = shape[1] * field, shape[0] * field
    return {
        "xavier": math.sqrt(2 / (fan_in + fan_out)),
        "lecun": math.sqrt(1 / fan_in),
        "he": math.sqrt(2 / fan_in),
    }[rule]
