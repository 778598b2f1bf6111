"""Derivatives of functions of one member, or of many that were lifted: by torch's own tape, or by transforms."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core.lift import apart, gradient, together
from ..core.tree import leaves, tree_map

if TYPE_CHECKING:
    from .step import Info, Loss, Step

Back = Callable[[Any], Any]
"""From the derivatives of something with respect to outputs, leaves (M, ...), to those with respect to params."""


class Descended:
    """The gradient of a loss with its quadratic part, of one member, by a transform. Equal for equal losses."""

    def __init__(self, loss: Loss) -> None:
        self.loss = loss

    def __call__(self, state: Any, step: Step) -> tuple[Any, Info]:
        grads, info = gradient(self.loss, lambda info: info.loss)(state.params, state, step)
        return with_energy(dense(grads), info, state.params)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Descended) and plain(self.loss) is plain(other.loss)

    def __hash__(self) -> int:
        return hash(plain(self.loss))


def with_energy(grads: Any, info: Info, params: Any) -> tuple[Any, Info]:
    """The loss with the quadratic part that it named, the sum of d/2 |x|^2, of one member or of a stack, where losses
    are (M,). Its gradient d x is left to the optimiser's step where d is a number; other gradients have it added."""
    if not info.quadratic:
        return grads, info
    numbers = {n: d for n, d in info.quadratic.items() if not isinstance(d, Tensor)}
    terms = [(d, [params[n] for n in numbers if numbers[n] == d]) for d in dict.fromkeys(numbers.values())]
    pulled = {}
    for name, d in info.quadratic.items():
        if name not in numbers:
            x = params[name]
            terms.append((d, [x]))
            pulled[name] = grads[name] + d.reshape(d.shape + (1,) * (x.dim() - d.dim())) * x
    energies = [_norms(xs, info.loss.dim()).square().sum(0) * (0.5 * d) for d, xs in terms]
    return dict(grads) | pulled if pulled else grads, info._replace(loss=sum(energies, info.loss), quadratic=numbers)


def _norms(xs: list[Tensor], dims: int) -> Tensor:
    """The norm of each tensor, (P,), or of each member of it, (P, M): of one member by one kernel for many tensors,
    since hundreds of small ones take longer than what they read."""
    plain = not torch.compiler.is_compiling() and not torch._C._functorch.is_functorch_wrapped_tensor(xs[0])
    if dims == 0 and plain:
        return torch.stack(torch._foreach_norm(xs))
    return torch.stack([torch.linalg.vector_norm(x.reshape(*x.shape[:dims], -1), dim=-1) for x in xs])


def vjp(called: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any, Back]:
    """The outputs and aux of `called(*args)`, and the way back to its first argument: by torch's own tape, outside of
    what is lifted, which on a CPU is cheaper than transforms inside of it."""
    flat, structure = on_tape(args[0])
    with torch.enable_grad():
        outputs, aux = called(pytree.tree_unflatten(flat, structure), *args[1:])

    def back(cotangents: Any) -> Any:
        pairs = [(o, c) for o, c in zip(leaves(outputs), leaves(cotangents)) if o.requires_grad]
        with torch.enable_grad():  # of a number: torch imports its compiler's algebra to check other cotangents
            along = torch.stack([(o * c).sum() for o, c in pairs]).sum()
        slopes = torch.autograd.grad(along, flat, materialize_grads=True)
        return pytree.tree_unflatten(list(slopes), structure)

    return detached(outputs), detached(aux), back


def traced_vjp(called: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any, Back]:
    """The same by a transform, which a compiler can follow."""
    rest: Any = None

    def with_tensors(params: Any) -> tuple[Any, tuple[Tensor, ...]]:
        nonlocal rest
        outputs, aux = called(params, *args[1:])
        tensors, rest = apart(aux)
        return outputs, tensors

    outputs, pull, tensors = torch.func.vjp(with_tensors, args[0], has_aux=True)  # type: ignore[misc]
    return outputs, together(tensors, rest), lambda cotangents: pull(cotangents)[0]


def on_tape(tree: Any) -> tuple[list[Tensor], Any]:
    """The leaves of a tree as the first of a graph, and its structure."""
    flat, structure = pytree.tree_flatten(tree)
    return [x.detach().requires_grad_() for x in flat], structure


def detached(tree: Any) -> Any:
    """The tree without its graph."""
    return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, tree)


def dense(tree: Any) -> Any:
    """The tree with leaves in plain order, which a checkpoint gives back: kernels then give the same bits."""
    if all(not isinstance(x, Tensor) or x.is_contiguous() for x in leaves(tree)):
        return tree
    return tree_map(lambda x: x.contiguous() if isinstance(x, Tensor) else x, tree)


def plain(function: Any) -> Any:
    """What a bound method and its function have in common."""
    return getattr(function, "__func__", function)
