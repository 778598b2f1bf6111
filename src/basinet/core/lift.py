"""Functions written for one member, over all of them: in one vectorised call, or one by one where that cannot be."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from .keyed import seen_by_compiler
from .tree import leaves, take, tree_map

T = TypeVar("T")

# Of an operator without a batching rule vmap warns at every call. A stack is timed before it is chosen, and nobody here
# could write that rule: there is nothing for users to do.
torch._C._functorch._set_vmap_fallback_warning_enabled(False)  # type: ignore[attr-defined]


def lift(function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
    """`function` over a leading axis of its arguments, as one vectorised call.

    `in_dims` is as in torch.func.vmap: 0 where an argument has the member axis, None where members share it. The
    result may hold None and plain numbers beside tensors. Randomness that nobody keyed is an error.
    """

    def lifted(*args: Any) -> Any:
        rest: Any = None

        def tensors_of(*member: Any) -> tuple[Tensor, ...]:
            nonlocal rest
            tensors, rest = apart(function(*member))
            return tensors

        return together(torch.func.vmap(tensors_of, in_dims=in_dims, randomness="error")(*args), rest)

    return lifted


def apart(tree: Any) -> tuple[tuple[Tensor, ...], Any]:
    """The tensors of a tree, as torch's transforms want them, and the rest: its shape, and what stands beside them."""
    values, structure = pytree.tree_flatten(tree)
    fixed = [None if isinstance(x, Tensor) else (x,) for x in values]
    return tuple(x for x in values if isinstance(x, Tensor)), (fixed, structure)


def together(tensors: Any, rest: Any) -> Any:
    """The inverse of `apart`."""
    left, (fixed, structure) = list(tensors), rest
    return pytree.tree_unflatten([left.pop(0) if f is None else f[0] for f in fixed], structure)


def gradient(function: Callable[..., Any], pick: Callable[[Any], Tensor]) -> Callable[..., tuple[Any, Any]]:
    """Of a function of params and more: the gradient of `pick(result)` with respect to params, and the result. By a
    transform, so that it can be lifted and compiled."""

    def both(params: Any, *others: Any) -> tuple[Any, Any]:
        rest: Any = None

        def picked(params: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
            nonlocal rest
            result = function(params, *others)
            tensors, rest = apart(result)
            return pick(result), tensors

        grads, tensors = torch.func.grad(picked, has_aux=True)(params)
        return grads, together(tensors, rest)

    return both


def lift_or_loop(function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
    """`lift(function)`, or one call after another where the function cannot be vectorised: found out at the first call,
    and kept. A mistake of the function's own is raised by the calls one by one; memory that runs out is raised."""
    vectorised = True

    def all_members(*args: Any) -> Any:
        nonlocal vectorised
        dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
        count = next(leaves(a)[0].shape[0] for a, d in zip(args, dims) if d is not None)
        if vectorised and count > 1:
            try:
                return lift(function, in_dims)(*args)
            except Exception as error:
                if not may_run_alone(error):
                    raise
                vectorised = False
        parts = [function(*(take(a, i) if d is not None else a for a, d in zip(args, dims))) for i in range(count)]
        return tree_map(lambda *xs: torch.stack(xs) if isinstance(xs[0], Tensor) else xs[0], *parts)

    return all_members


def at_once_or(at_once: Callable[[], T], otherwise: Callable[[], T]) -> T:
    """What a vectorised computation gives, or another way to the same where torch has no rule to do several at once.
    Memory that runs out is raised, and so is a mistake of the user's network, by the second way."""
    try:
        return at_once()
    except Exception as error:
        if not may_run_alone(error):
            raise
        return otherwise()


def may_run_alone(error: BaseException) -> bool:
    """Whether what failed vectorised is worth a try member by member: not where memory ran out, nor where random
    numbers are drawn that nobody keyed."""
    return not is_out_of_memory(error) and "randomness error mode" not in str(error)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory ran out, on a GPU or a CPU."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def compiled(
    function: Callable[..., Any], *, whole: bool = False, code: types.CodeType | None = None
) -> Callable[..., Any]:
    """`function` compiled for fixed shapes; `whole`: as one graph, or an error.

    The compiler counts by code how often it had to compile, and stops at eight: one function here serves many kernels
    in a process, so each gets a copy of the code; `code` is a copy that was made before, whose compilations are found
    again for functions that are defined again at each call.
    """
    plain = getattr(function, "__func__", function)
    copy = types.FunctionType(
        code or plain.__code__.replace(), plain.__globals__, plain.__name__, plain.__defaults__, plain.__closure__
    )
    own = types.MethodType(copy, function.__self__) if hasattr(function, "__self__") else copy
    with warnings.catch_warnings():  # the compiler's own modules, as they are imported
        warnings.filterwarnings("ignore", r"`torch\.jit\.", DeprecationWarning)
        seen_by_compiler()
        return torch.compile(own, dynamic=False, fullgraph=whole)
