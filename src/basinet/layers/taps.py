"""Layers read while a network runs: what goes into each call of a linear layer, convolution or norm, and comes out.

Calls are found by the functions they go through and by the tensors they are made with, so that it does not matter how a
module is written. An output z of a layer with weight W and input a has, for an example with places t (pixels, steps;
also all calls of a layer that is called several times),

    d(outputs) / dW = sum_t g_t a_t',   d(outputs) / db = sum_t g_t

with g = d(outputs) / dz by backpropagation: no Jacobian is ever formed. That holds where a call has one row for each
example, in their order (rows.py); a parameter that is used in any other way is among `others`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..core.tree import Params, leaves
from .patches import patches
from .rows import misaligned, selects_rows

Kind = Literal["matrix", "scale"]


@dataclass(frozen=True, eq=False)
class Tap:
    """One call of one layer, whose examples are on the first axis."""

    weight: str | None  # the name of its weight, where that is among the params asked for
    bias: str | None  # the name of its bias
    kind: Kind  # matrix: z_t = W a_t + b; scale: z_t = w * a_t + b, elementwise
    read: Callable[[], Tensor]  # a, (B, T, groups, i); of a scale (B, T, 1, o)
    output: Tensor  # z, with its graph
    handed: Tensor  # the copy of it that the network goes on with, and may write into
    width: int  # o, of all groups
    groups: int  # of a convolution; 1 for other layers
    channels_last: bool  # whether z is (B, ..., o) or (B, o, ...)
    version: tuple[Tensor, int]  # what the layer was given, and how often that had been written into

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters of the layer that were asked for."""
        return tuple(n for n in (self.weight, self.bias) if n is not None)

    @property
    def stale(self) -> bool:
        """Whether what the layer was given has been written into since."""
        return written(self.version[0]) != self.version[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes of the places in z; of a layer norm over several axes, those before them."""
        if not self.channels_last:
            return tuple(self.output.shape[2:])
        axes = list(self.output.shape[1:])
        inside = axes.pop()
        while inside < self.width:
            inside *= axes.pop()
        return tuple(axes)

    def places(self, gradient: Tensor) -> Tensor:
        """A gradient in z as (B, T, groups, o / groups)."""
        if self.channels_last:
            flat = gradient.reshape(gradient.shape[0], -1, self.width)
        else:
            flat = gradient.flatten(2).mT if gradient.dim() > 2 else gradient.unsqueeze(1)
        return flat.unflatten(-1, (self.groups, -1))


def written(x: Tensor) -> int:
    """How often a tensor has been written into, where that is counted."""
    return 0 if x.is_inference() else x._version


class Taps(TorchFunctionMode):
    """Notes the calls of layers that have one of `params`, while a network runs on `examples` examples."""

    def __init__(self, params: Params, examples: int) -> None:
        super().__init__()
        self.names = {id(x): n for n, x in params.items()}
        self.examples = examples
        self.calls: list[Tap] = []
        self.others: set[str] = set()  # used in a way that is not understood
        self.selects = False  # whether rows may have been picked, moved or put back on the way
        self.matrices: list[tuple[tuple[str, ...], Any]] = []  # names, and the graph's node, of all calls of matrices

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        self.selects = self.selects or selects_rows(func, args, self.examples)
        used = {self.names[id(x)] for x in leaves((args, kwargs)) if id(x) in self.names}
        if not used:
            return func(*args, **kwargs)
        layer = _LAYERS.get(func)
        output = None if layer is None else layer(self, *args, **kwargs)
        if output is None:
            output = func(*args, **kwargs)
            if any(isinstance(x, Tensor) for x in leaves(output)):
                self.others |= used
        return output

    def note(
        self,
        kind: Kind,
        given: Tensor,
        parameters: tuple[Tensor | None, Tensor | None],
        output: Tensor,
        read: Callable[[], Tensor],
        width: int,
        groups: int = 1,
        channels_last: bool = False,
    ) -> Tensor:
        """Keeps a call whose examples are in front; what the network goes on with."""
        weight, bias = (None if p is None else self.names.get(id(p)) for p in parameters)
        names = tuple(n for n in (weight, bias) if n is not None)
        if kind == "matrix" and weight is not None:
            self.matrices.append((names, output.grad_fn))
        if given.dim() < 2 or given.shape[0] != self.examples:
            self.others |= set(names)
            return output
        if torch.is_grad_enabled() and not output.requires_grad:
            output.requires_grad_()  # the graph begins at the first layer that is asked for
        handed = output.clone()
        self.calls.append(
            Tap(weight, bias, kind, read, output, handed, width, groups, channels_last, (given, written(given)))
        )
        return handed

    def lost(self, outputs: Tensor) -> set[str]:
        """The parameters whose gradients do not follow from their calls: used otherwise, or on what was written into
        since, or on rows that are not the examples'."""
        stale = {n for tap in self.calls if tap.stale for n in tap.names}
        return self.others | stale | (misaligned(outputs, self.calls) if self.selects else set())


def _linear(taps: Taps, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    a = input.detach()
    return taps.note(
        "matrix",
        input,
        (weight, bias),
        F.linear(input, weight, bias),
        read=lambda: a.reshape(len(a), -1, 1, a.shape[-1]),
        width=len(weight),
        channels_last=True,
    )


def _convolution(dims: int, function: Callable[..., Tensor]) -> Callable[..., Tensor | None]:
    def noted(
        taps: Taps,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor | None:
        if input.dim() != dims + 2:
            return None
        a, kernel = input.detach(), weight.shape[2:]

        def read() -> Tensor:
            return patches(a, kernel, stride, dilation, padding).mT.unflatten(-1, (groups, -1))

        output = function(input, weight, bias, stride, padding, dilation, groups)
        return taps.note("matrix", input, (weight, bias), output, read, width=len(weight), groups=groups)

    return noted


def _scale(
    taps: Taps,
    given: Tensor,
    parameters: tuple[Tensor | None, Tensor | None],
    bare: Tensor,
    output: Tensor,
    width: int,
    channels_last: bool,
) -> Tensor:
    """A norm layer: `bare` is what it makes without scale and shift."""
    a = bare.detach()

    def read() -> Tensor:
        flat = a.reshape(len(a), -1, width) if channels_last else a.reshape(len(a), width, -1).mT
        return flat.unsqueeze(2)

    return taps.note("scale", given, parameters, output, read, width, channels_last=channels_last)


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
) -> Tensor | None:
    """With running statistics it is a product and a sum, through which many gradients go back at once in one product;
    with those of the batch, examples are not apart."""
    if training or running_mean is None or running_var is None:
        return None
    shape = (1, -1, *(1,) * (input.dim() - 2))
    root = (running_var + eps).rsqrt()
    scale = root if weight is None else root * weight
    shift = -running_mean * scale if bias is None else bias - running_mean * scale
    bare = (input.detach() - running_mean.reshape(shape)) * root.reshape(shape)
    output = torch.addcmul(shift.reshape(shape), input, scale.reshape(shape))
    return _scale(taps, input, (weight, bias), bare, output, input.shape[1], channels_last=False)


def _layer_norm(
    taps: Taps,
    input: Tensor,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    bare = F.layer_norm(input, normalized_shape, None, None, eps)
    output = _affine(bare, weight, bias, tuple(normalized_shape))
    return _scale(taps, input, (weight, bias), bare, output, math.prod(normalized_shape), channels_last=True)


def _group_norm(
    taps: Taps,
    input: Tensor,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
) -> Tensor:
    bare = F.group_norm(input, num_groups, None, None, eps)
    output = _affine(bare, weight, bias, (-1, *(1,) * (input.dim() - 2)))
    return _scale(taps, input, (weight, bias), bare, output, input.shape[1], channels_last=False)


def _affine(bare: Tensor, weight: Tensor | None, bias: Tensor | None, shape: tuple[int, ...]) -> Tensor:
    output = bare if weight is None else bare * weight.reshape(shape)
    return output if bias is None else output + bias.reshape(shape)


_LAYERS: dict[Any, Callable[..., Tensor | None]] = {
    F.linear: _linear,
    F.conv1d: _convolution(1, F.conv1d),
    F.conv2d: _convolution(2, F.conv2d),
    F.conv3d: _convolution(3, F.conv3d),
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
}
