"""What layers multiplied and what they gave, noted while a network runs: the parts of which its Jacobian is made.

The gradient of an output in a weight matrix is g' a: the gradient g in what the layer gave times what it was given, a,
summed over places (steps of a sequence, pixels) and over uses. So nothing of the size of all parameters times all
outputs is ever needed. Layers are found by the functions they call and by the tensors they call them with, so that it
does not matter how a module is written; a parameter that is used in any other way is not tapped.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..core.patches import patches
from ..core.tree import Params, Point, leaves, tree_map
from ..problem import Problem

_CONVOLUTIONS: dict[Any, int] = {torch.conv1d: 1, torch.conv2d: 2}
_NORMS: tuple[Any, ...] = (F.batch_norm, F.group_norm, F.layer_norm)

Kind = Literal["matrix", "scale", "shift"]


class Use(NamedTuple):
    """One call of a layer."""

    kind: Kind
    given: Tensor | None  # what a matrix (B, groups, places, i) or a scale (B, 1, places, o) multiplied; None: a shift
    gave: Tensor  # what came out, as the graph has it
    spread: Callable[[Tensor], Tensor]  # a gradient (..., B, *shape of gave) on axes (..., B, groups, places, o)


class Taps(TorchFunctionMode):
    """Notes the uses of some parameters on inputs of B examples."""

    def __init__(self, params: Params, examples: int) -> None:
        super().__init__()
        self.names = {id(x): n for n, x in params.items()}
        self.examples = examples
        self.uses: dict[str, list[Use]] = {n: [] for n in params}
        self.others: set[str] = set()  # used in a way that is not understood
        self.last: tuple[str, Tensor] | None = None  # the last linear layer, and what it handed on

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = {self.names[id(x)] for x in leaves((args, kwargs)) if id(x) in self.names}
        if not found:
            return func(*args, **kwargs)
        made = None
        if func is F.linear:
            made = self._linear(*args, **kwargs)
        elif func in _CONVOLUTIONS:
            made = self._convolution(func, *args, **kwargs)
        elif func in _NORMS and {"weight", "bias"} <= kwargs.keys() and not kwargs.get("training"):
            made = self._norm(func, args, kwargs)
        if made is None:
            made = func(*args, **kwargs)
            if any(isinstance(x, Tensor) for x in leaves(made)):
                self.others |= found
        return made

    def _linear(self, input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor | None:
        if input.dim() < 2 or input.shape[0] != self.examples:
            return None
        out = self._open(F.linear(input, weight, bias))

        def spread(g: Tensor) -> Tensor:
            lead = g.dim() - out.dim()
            return g.reshape(*g.shape[: lead + 1], 1, -1, g.shape[-1])

        rows = input.detach().reshape(self.examples, 1, -1, input.shape[-1])
        self._note(weight, Use("matrix", rows, out, spread))
        self._note(bias, Use("shift", None, out, spread))
        handed = out.clone()  # what follows may write into it
        if id(weight) in self.names:
            self.last = (self.names[id(weight)], handed)
        return handed

    def _convolution(
        self,
        func: Any,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
    ) -> Tensor | None:
        d = _CONVOLUTIONS[func]
        if isinstance(padding, str) or input.dim() != d + 2 or input.shape[0] != self.examples:
            return None
        out = self._open(func(input, weight, bias, stride, padding, dilation, groups))

        def spread(g: Tensor) -> Tensor:
            lead = g.dim() - out.dim()
            return g.flatten(lead + 2).unflatten(lead + 1, (groups, -1)).transpose(-1, -2)

        if id(weight) in self.names:
            seen = patches(input.detach(), weight.shape[2:], stride, dilation, padding)
            given = seen.unflatten(1, (groups, -1)).transpose(2, 3)  # from (B, groups * i, places)
            self._note(weight, Use("matrix", given, out, spread))
        self._note(bias, Use("shift", None, out, spread))
        return out.clone()

    def _norm(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
        if args[0].dim() < 2 or args[0].shape[0] != self.examples:
            return None
        if func is F.batch_norm:
            bare, out = _affine(*args, **{name: kwargs[name] for name in ("weight", "bias", "eps")})
        else:
            bare, out = func(*args, **(kwargs | {"weight": None, "bias": None})), func(*args, **kwargs)
        bare, out = bare.detach(), self._open(out)

        def spread(g: Tensor) -> Tensor:
            lead = g.dim() - out.dim()
            if func is F.layer_norm:  # the last axes; those of the others are channels, the second
                own = 1 if kwargs["weight"] is None else kwargs["weight"].numel()
                return g.reshape(*g.shape[: lead + 1], 1, -1, own)
            return g.flatten(lead + 2).unsqueeze(lead + 1).transpose(-1, -2) if out.dim() > 2 else g[..., None, None, :]

        self._note(kwargs["weight"], Use("scale", spread(bare), out, spread))
        self._note(kwargs["bias"], Use("shift", None, out, spread))
        return out.clone()

    def _open(self, out: Tensor) -> Tensor:
        """From here on the graph is kept, where one is kept at all."""
        return out if out.requires_grad or not torch.is_grad_enabled() else out.requires_grad_()

    def _note(self, parameter: Tensor | None, use: Use) -> None:
        if parameter is not None and id(parameter) in self.names:
            self.uses[self.names[id(parameter)]].append(use)


def _affine(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor]:
    """What a batch norm gives with its running statistics, bare and with scale and shift: a product and a sum, through
    which many gradients go back at once in one product."""
    shape = (1, -1, *(1,) * (x.dim() - 2))
    root = (variance + eps).rsqrt()
    scale = root if weight is None else root * weight
    shift = -mean * scale if bias is None else bias - mean * scale
    bare = (x.detach() - mean.reshape(shape)) * root.reshape(shape)
    return bare, torch.addcmul(shift.reshape(shape), x, scale.reshape(shape))


class Layer(NamedTuple):
    """The size of a tapped parameter's Jacobian."""

    kind: Kind
    groups: int
    places: int  # over all uses
    inputs: int  # i, of a group
    outputs: int  # o, of a group


def tapped(problem: Problem, point: Point, inputs: Any, names: Collection[str]) -> dict[str, Layer]:
    """Those of the parameters that can be tapped, with their sizes: their layers' first axis is that of the examples,
    and nothing else uses them. Runs the network on two and on three examples."""
    wanted = {n: point.params[n] for n in names}
    found = []
    for count in (2, 3):
        rows = tree_map(lambda x, count=count: torch.cat([x[:1]] * count), inputs)
        with torch.no_grad(), Taps(wanted, count) as taps:
            problem.outputs(point.params, point.buffers, rows)
        found.append({n: _size(u) for n, u in taps.uses.items() if u and n not in taps.others})
    return {n: layer for n, layer in found[0].items() if found[1].get(n) == layer}


def _size(uses: list[Use]) -> Layer:
    shapes = [u.spread(u.gave).shape for u in uses]  # (B, groups, places, o)
    given = uses[0].given
    inputs = given.shape[-1] if uses[0].kind == "matrix" and given is not None else 1
    return Layer(uses[0].kind, shapes[0][1], sum(s[2] for s in shapes), inputs, shapes[0][3])
