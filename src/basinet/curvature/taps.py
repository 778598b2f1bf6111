"""What goes into each layer and what comes out of it, noted while a network runs.

A layer is recognised by the parameter it is called with, not by its class: `F.linear`, convolutions and norm layers
are noted wherever they are called, in modules used twice too. For a layer z = W a, the gradient of an example in W is
the sum over places t of g_t a_t', with g = d(outputs) / dz by backpropagation: no Jacobian is ever formed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..core.patches import patches
from ..core.tree import Params


@dataclass(frozen=True, eq=False)
class Tap:
    """One call of one layer, whose examples are on the first axis."""

    weight: str | None  # the name of its weight, where that is among the params asked for
    bias: str | None  # the name of its bias
    kind: str  # "matrix": z_t = W a_t + b; "scale": z_t = w * a_t + b, elementwise
    read: Callable[[], Tensor]  # a, (B, T, groups, i); of a scale (B, T, 1, C)
    output: Tensor  # z, with its graph
    handed: Tensor  # the copy of it that the network goes on with, and may write into
    groups: int  # of a convolution; 1 for other layers
    channels_last: bool  # whether z is (B, ..., o) or (B, o, ...)

    def places(self, gradient: Tensor) -> Tensor:
        """A gradient in z as (B, T, groups, o / groups)."""
        if self.channels_last:
            width = self.output.shape[-1] if self.kind == "matrix" else self.read().shape[-1]
            flat = gradient.reshape(gradient.shape[0], -1, width)
        else:
            flat = gradient.flatten(2).mT if gradient.dim() > 2 else gradient.unsqueeze(1)
        return flat.unflatten(-1, (self.groups, -1))


class Layer:
    """All calls of one weight in a pass, as one layer that is used at all their places."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self.taps = list(taps)
        first = taps[0]
        self.weight, self.bias, self.kind, self.groups = first.weight, first.bias, first.kind, first.groups

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters of the layer that were asked for."""
        return tuple(n for n in (self.weight, self.bias) if n is not None)

    @property
    def dense(self) -> bool:
        """Whether it is a matrix for which Kronecker factors exist."""
        return self.kind == "matrix" and self.groups == 1

    def inputs(self) -> Tensor:
        """a, (B, T, groups, i), over the places of all calls."""
        return _joined([tap.read() for tap in self.taps])

    def gradients(self, each: Sequence[Tensor]) -> Tensor:
        """g, (K, B, T, groups, o / groups), from K gradients for each call, (K, *shape of z)."""
        k = len(each[0])
        return _joined([tap.places(g.flatten(0, 1)) for tap, g in zip(self.taps, each)]).unflatten(0, (k, -1))

    def rows(self, inputs: Tensor, gradients: Tensor, params: Params) -> Params:
        """The gradient of each example, leaves (B, *shape)."""
        made = {}
        if self.weight is not None:
            formula = "btgi,btgo->bgoi" if self.kind == "matrix" else "btgi,btgi->bgi"
            made[self.weight] = torch.einsum(formula, inputs, gradients).reshape(-1, *params[self.weight].shape)
        if self.bias is not None:
            made[self.bias] = gradients.sum(1).reshape(-1, *params[self.bias].shape)
        return made


class Taps(TorchFunctionMode):
    """Notes the calls of layers that have one of `params`, while a network runs on `examples` examples."""

    def __init__(self, params: Params, examples: int) -> None:
        super().__init__()
        self.names = {id(x): n for n, x in params.items()}
        self.examples = examples
        self.found: list[Tap] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        noted = _LAYERS.get(func)
        return func(*args, **(kwargs or {})) if noted is None else noted(self, *args, **(kwargs or {}))

    def note(
        self, kind: str, x: Tensor, weight: Tensor | None, bias: Tensor | None, made: Tensor, **how: Any
    ) -> Tensor:
        """Keeps a call, where its parameters are asked for and its examples are in front."""
        names = [None if p is None else self.names.get(id(p)) for p in (weight, bias)]
        if any(names) and x.dim() > 1 and x.shape[0] == self.examples:
            how = {"groups": 1, "channels_last": False} | how
            handed = made.clone()
            self.found.append(Tap(names[0], names[1], kind, output=made, handed=handed, **how))
            return handed
        return made

    def layers(self) -> list[Layer]:
        """The layers, in the order in which they are first called."""
        calls: dict[Any, list[Tap]] = {}
        for tap in self.found:
            calls.setdefault((tap.weight, tap.bias), []).append(tap)
        return [Layer(taps) for taps in calls.values()]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)


def _linear(taps: Taps, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    a = input.detach()
    made = F.linear(input, weight, bias)
    return taps.note(
        "matrix", input, weight, bias, made, channels_last=True, read=lambda: a.reshape(len(a), -1, 1, a.shape[-1])
    )


def _convolution(dims: int, function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def noted(
        taps: Taps,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor:
        made = function(input, weight, bias, stride, padding, dilation, groups)
        if input.dim() != dims + 2:
            return made
        a, kernel = input.detach(), weight.shape[2:]

        def read() -> Tensor:
            return patches(a, kernel, stride, dilation, padding).mT.unflatten(-1, (groups, -1))

        return taps.note("matrix", input, weight, bias, made, groups=groups, read=read)

    return noted


def _scale(
    taps: Taps, x: Tensor, weight: Tensor | None, bias: Tensor | None, plain: Tensor, channels: int, last: bool
) -> Tensor:
    """A norm layer: `plain` is what it makes without scale and shift, which are applied here."""
    a = plain.detach()
    shape = (1, -1, *(1,) * (x.dim() - 2)) if not last else None
    made = plain if weight is None else plain * (weight if shape is None else weight.reshape(shape))
    made = made if bias is None else made + (bias if shape is None else bias.reshape(shape))

    def read() -> Tensor:
        flat = a.reshape(len(a), -1, channels) if last else a.reshape(len(a), channels, -1).mT
        return flat.unsqueeze(2)

    return taps.note("scale", x, weight, bias, made, channels_last=last, read=read)


def _batch_norm(
    taps: Taps,
    input: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    plain = F.batch_norm(input, running_mean, running_var, None, None, training, momentum, eps)
    return _scale(taps, input, weight, bias, plain, input.shape[1], last=False)


def _layer_norm(
    taps: Taps,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    plain = F.layer_norm(input, normalized_shape, None, None, eps)
    return _scale(taps, input, weight, bias, plain, math.prod(normalized_shape), last=True)


def _group_norm(
    taps: Taps,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    plain = F.group_norm(input, num_groups, None, None, eps)
    return _scale(taps, input, weight, bias, plain, input.shape[1], last=False)


_LAYERS: dict[Any, Callable[..., Tensor]] = {
    F.linear: _linear,
    F.conv1d: _convolution(1, F.conv1d),
    F.conv2d: _convolution(2, F.conv2d),
    F.conv3d: _convolution(3, F.conv3d),
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
}
