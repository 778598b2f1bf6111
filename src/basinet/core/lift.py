"""Lifts a function of one member to many: the one place where `vmap` over members stands. And compiles functions."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def lift(function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
    """`function` over a leading axis of its arguments, as one vectorised call.

    `in_dims` is as in torch.func.vmap: 0 where an argument has the member axis, None where members share it. The
    result may hold None and plain numbers beside tensors. Randomness that nobody keyed is an error.
    """

    def lifted(*args: Any) -> Any:
        structure: Any = None
        fixed: list[Any] = []

        def tensors_of(*member: Any) -> tuple[Tensor, ...]:
            nonlocal structure, fixed
            flat, structure = pytree.tree_flatten(function(*member))
            fixed = [None if isinstance(x, Tensor) else (x,) for x in flat]
            return tuple(x for x in flat if isinstance(x, Tensor))

        out = list(torch.func.vmap(tensors_of, in_dims=in_dims, randomness="error")(*args))
        return pytree.tree_unflatten([out.pop(0) if f is None else f[0] for f in fixed], structure)

    return lifted


def compiled(
    function: Callable[..., Any], *, whole: bool = False, code: types.CodeType | None = None
) -> Callable[..., Any]:
    """`function` compiled for fixed shapes; `whole`: as one graph, or an error.

    The compiler counts by code how often it had to compile, and stops at eight: one function here serves many kernels
    in a process, so each gets a copy of the code; `code` is a copy that was made before, whose compilations are found
    again for functions that are defined anew at each call.
    """
    plain = getattr(function, "__func__", function)
    copy = types.FunctionType(
        code or plain.__code__.replace(), plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__
    )
    own = types.MethodType(copy, function.__self__) if hasattr(function, "__self__") else copy
    return torch.compile(own, dynamic=False, fullgraph=whole)
