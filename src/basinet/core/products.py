"""Linear layers of many members at once, as batched matrix products.

Vectorised by torch, `F.linear` adds its bias in a pass of its own, and the gradient of its weights comes transposed and
is copied into order before an optimiser takes it. Inside `with StackedProducts()` the same layer is one product with
its bias, and three in order for its gradients; in half precision the weights' gradient is summed and returned in the
precision that the weights have.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_batched = torch._C._functorch.is_batchedtensor
_wrapped = torch._C._functorch.is_functorch_wrapped_tensor
_inside = torch._C._functorch.get_unwrapped


class StackedProducts(TorchFunctionMode):
    """Answers `F.linear` where input and weight have a member axis each, and nothing else is transformed."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.linear and not kwargs and _stacked(*args[:2]) and args[0].dim() > 1:
            return _Linear.apply(*args) if len(args) == 3 else _Linear.apply(*args, None)
        return func(*args, **(kwargs or {}))


class OrderedProducts(TorchFunctionMode):
    """Answers `F.linear` by products that a compiler can follow, whose gradients of weights are in order, too."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.linear or kwargs or args[0].dim() < 2:
            return func(*args, **(kwargs or {}))
        x, weight, *bias = args
        y = (weight @ x.reshape(-1, x.shape[-1]).mT).mT.reshape(*x.shape[:-1], weight.shape[0])
        return y + bias[0] if bias and bias[0] is not None else y


def _stacked(*tensors: Tensor) -> bool:
    return all(_batched(x) and not _wrapped(_inside(x)) for x in tensors)


class _Linear(torch.autograd.Function):
    """One member's layer, which is only ever called under vmap."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x, weight, bias)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing is kept: derivatives are those of `_StackedLinear`."""

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, int]:
        if bias is not None and in_dims[2] is None:
            bias = bias.expand(info.batch_size, -1)
        elif bias is not None:
            bias = bias.movedim(in_dims[2] or 0, 0)
        x, weight = x.movedim(in_dims[0] or 0, 0), weight.movedim(in_dims[1] or 0, 0)
        y = _StackedLinear.apply(x.flatten(1, -2), weight, bias)
        return y.unflatten(1, x.shape[1:-1]), 0


class _StackedLinear(torch.autograd.Function):
    """y = x w' + b of each member: x (M, B, in), w (M, out, in), b (M, out) or None."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        kind, device = torch.result_type(x, weight), x.device.type
        if torch.is_autocast_enabled(device):
            kind = torch.get_autocast_dtype(device)
        ctx.kinds = (x.dtype, weight.dtype, None if bias is None else bias.dtype)
        x, weight = x.to(kind), weight.to(kind)
        ctx.save_for_backward(x, weight)
        with torch.autocast(device, enabled=False):
            if bias is None:
                return torch.bmm(x, weight.mT)
            return torch.baddbmm(bias.to(kind).unsqueeze(1), x, weight.mT)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.kinds
        needs_x, needs_weight, needs_bias = ctx.needs_input_grad
        return (
            torch.bmm(slope, weight).to(of_x) if needs_x else None,
            _product(slope.mT, x, of_weight) if needs_weight else None,
            slope.sum(1, dtype=of_bias) if needs_bias else None,
        )


def _product(a: Tensor, b: Tensor, kind: torch.dtype) -> Tensor:
    """a b of each member in a precision of its own, which a GPU returns directly."""
    if kind == a.dtype or a.device.type != "cuda" or kind != torch.float32:
        return torch.bmm(a, b).to(kind)
    return torch.bmm(a, b, out_dtype=kind)
