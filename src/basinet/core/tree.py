"""Trees of tensors: what parameters, buffers, states and inputs are made of.

A tree is any nesting of dicts, tuples, NamedTuples and registered dataclasses with tensors at its leaves.
Members and samples are leading axes that all leaves share: `stack` makes such an axis, `take` indexes it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

Params = dict[str, Tensor]
T = TypeVar("T")


class Point(NamedTuple):
    """One place in weight space: what the posterior is over, and the buffers that belong to it."""

    params: Params  # those of named_parameters() that take gradients, and likelihood.*
    buffers: Params  # named_buffers(), and the parameters that take no gradient


pytree._register_namedtuple(Point, serialized_type_name="basinet.Point")  # so that its structure can be written down


def tree_map(function: Callable[..., Any], tree: T, *rest: T) -> T:
    """The tree of `function(leaf, ...)`, leaf by leaf."""
    return pytree.tree_map(function, tree, *rest) if rest else _mapped(function, tree)


def leaves(tree: Any) -> list[Any]:
    """The leaves, in a fixed order."""
    gathered: list[Any] = []
    _mapped(gathered.append, tree)
    return gathered


def _mapped(function: Callable[[Any], Any], tree: Any) -> Any:
    """`tree_map` of one tree. Steps of small networks take as long as torch's own way through their trees."""
    kind = type(tree)
    if kind is Tensor:
        return function(tree)
    if kind is dict:
        return {key: _mapped(function, value) for key, value in tree.items()}
    if kind is tuple or kind is list:
        return kind([_mapped(function, value) for value in tree])
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return kind(*[_mapped(function, value) for value in tree])
    return pytree.tree_map(function, tree)


def stack(trees: Sequence[T]) -> T:
    """One tree whose leaves have a new leading axis over `trees`."""
    return tree_map(lambda *xs: torch.stack(xs), trees[0], *trees[1:])


def concatenate(trees: Sequence[T]) -> T:
    """One tree whose leaves are joined along the leading axis they have."""
    return tree_map(lambda *xs: torch.cat(xs), trees[0], *trees[1:])


def take(tree: T, index: int | slice | Tensor) -> T:
    """`leaf[index]` for every leaf: a member, or some members, of a stacked tree."""
    return tree_map(lambda x: x[index], tree)


def where(mask: Tensor, yes: T, no: T) -> T:
    """Per leaf `yes` where the mask over the leading axes is true, else `no`."""

    def pick(a: Tensor, b: Tensor) -> Tensor:
        return torch.where(mask.reshape(mask.shape + (1,) * (a.dim() - mask.dim())), a, b)

    return tree_map(pick, yes, no)


def move(tree: T, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> T:
    """The tree on a device; floating leaves in `dtype`, integer and boolean ones as they are."""

    def to(x: Any) -> Any:
        if not isinstance(x, Tensor):
            return x
        return x.to(device=device, dtype=dtype if x.is_floating_point() else None)

    return tree_map(to, tree)


def size(tree: Any) -> int:
    """The number of tensor elements in the tree."""
    return sum(x.numel() for x in leaves(tree) if isinstance(x, Tensor))


def nbytes(tree: Any) -> int:
    """The number of bytes the tree's tensors take."""
    return sum(x.numel() * x.element_size() for x in leaves(tree) if isinstance(x, Tensor))


def ravel(params: Params, batch_dims: int = 0) -> Tensor:
    """All parameters as one vector, in the dict's order, after `batch_dims` leading axes they share."""
    return torch.cat([x.reshape(x.shape[:batch_dims] + (-1,)) for x in params.values()], -1)


def unravel(vector: Tensor, like: Params) -> Params:
    """The inverse of `ravel`: the vector (P,) cut into the shapes of `like`."""
    parts = vector.split([x.numel() for x in like.values()])
    return {name: part.reshape(x.shape) for (name, x), part in zip(like.items(), parts)}
