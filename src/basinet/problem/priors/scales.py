"""The scale of each parameter tensor: one for all, one per layer, or by fan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from ...core.nearest import did_you_mean
from ...core.tree import Params

RULES = ("xavier", "lecun", "he")
Scale = float | Mapping[str, float] | Literal["xavier", "lecun", "he"]


def check_scale(scale: Scale, what: str) -> None:
    """Raises where the scale is no positive number, no layers of such, and no rule."""
    if isinstance(scale, str):
        if scale not in RULES:
            raise ValueError(f"unknown prior scale {scale!r}.{did_you_mean(scale, RULES)}")
        return
    for s in scale.values() if isinstance(scale, Mapping) else (scale,):
        if not (s > 0 and math.isfinite(s)):
            raise ValueError(f"expected a positive, finite prior {what}, got {s}")


def scales_of(scale: Scale, params: Params) -> dict[str, float]:
    """The scale of each parameter tensor.

    Per layer, by the start of the parameter's name (`{"features": 0.1, "head": 1.0}`), the longest match wins. By fan:
    "xavier" sqrt(2 / (fan_in + fan_out)), "lecun" sqrt(1 / fan_in), "he" sqrt(2 / fan_in), where vectors (biases, norm
    layers) keep 1.
    """
    if isinstance(scale, str):
        return {n: _fan_scale(scale, tuple(x.shape)) for n, x in params.items()}
    if isinstance(scale, Mapping):
        return {n: _layer_scale(scale, n) for n in params}
    return dict.fromkeys(params, float(scale))


def check_layers(scale: Scale, params: Params) -> None:
    """Raises where a parameter has no scale, or a layer that is named does not exist."""
    scales_of(scale, params)
    for name in scale if isinstance(scale, Mapping) else ():
        if not any(_starts(n, name) for n in params):
            raise ValueError(
                f"the prior names a layer {name!r} that the model does not have.{did_you_mean(name, params)}"
            )


def _layer_scale(scale: Mapping[str, float], name: str) -> float:
    matches = [layer for layer in scale if _starts(name, layer)]
    if not matches:
        raise ValueError(
            f"the prior gives no scale for {name!r}: its layers are {', '.join(scale)}. Add one, or '' for all others"
        )
    return scale[max(matches, key=len)]


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
