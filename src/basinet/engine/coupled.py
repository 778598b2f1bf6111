"""How members that see each other at every step are computed: all in one vectorised call, in chunks, one by one, or,
on a GPU, each on a stream of its own.

A coupled method writes functions of one member and hands them to a `Lift`, which gives their results for all members.
What members exchange is only what these functions return: losses, and the outputs, features or input gradients that a
kernel compares. So the result does not depend on the chunks, and memory for activations is that of one chunk.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from ..core.lift import compiled, lift
from ..core.tree import leaves, take, tree_map

Back = Callable[[Any], Any]
"""From the derivatives of something with respect to outputs, leaves (M, ...), to those with respect to params."""


class Lift:
    """Functions of one member, over all: `size` members a call (None: all; 1: a plain call each).

    With `recompute`, derivatives hold the activations of one chunk at a time, and the forward pass is made again for
    them; without, all that a backward pass needs is kept. `traced` says that a compiler is looking on.
    """

    def __init__(self, size: int | None = None, *, recompute: bool = False, traced: bool = False) -> None:
        self.size, self.recompute, self.traced = size, recompute, traced

    def __call__(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., Any]:
        """`function` over the leading axis of its arguments; `in_dims` as in `core.lift.lift`."""

        def all_members(*args: Any) -> Any:
            dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
            called = self._call(function, dims)
            return self._joined(self._each([partial(called, *part) for part in self._parts(args, dims)]))

        return all_members

    def pull(self, function: Callable[..., Any], in_dims: Any = 0) -> Callable[..., tuple[Any, Any, Back]]:
        """For `function(params, *rest) -> (outputs, aux)` of one member: the outputs and aux of all members, and a
        function from cotangents of the outputs to gradients with respect to params. Aux is carried, not derived."""

        def all_members(params: Any, *rest: Any) -> tuple[Any, Any, Back]:
            args = (params, *rest)
            dims = in_dims if isinstance(in_dims, tuple) else (in_dims,) * len(args)
            called, parts = self._call(function, dims), self._parts(args, dims)
            vjp = _traced_vjp if self.traced else _vjp
            if self.recompute and len(parts) > 1:
                with torch.no_grad():
                    found = self._each([partial(called, *part) for part in parts])
                kept: list[Back] | None = None
            else:
                made = self._each([partial(vjp, called, part) for part in parts])
                found, kept = [(outputs, aux) for outputs, aux, _ in made], [back for _, _, back in made]
            outputs, aux = self._joined(found)

            def back(cotangents: Any) -> Any:
                pieces = [piece for (piece,) in self._parts((cotangents,), (0,))]
                if kept is not None:
                    return self._joined(self._each([partial(pull, piece) for pull, piece in zip(kept, pieces)]))

                def again(part: tuple[Any, ...], piece: Any) -> Any:
                    return vjp(called, part)[2](piece)

                return self._joined(self._each([partial(again, part, piece) for part, piece in zip(parts, pieces)]))

            return outputs, aux, back

        return all_members

    def _each(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        """What each chunk gives."""
        return [call() for call in calls]

    def _call(self, function: Callable[..., Any], dims: tuple[Any, ...]) -> Callable[..., Any]:
        """`function` on a part: vectorised, or plain where a part is one member, without the axis."""
        return function if self.size == 1 else lift(function, dims)

    def _parts(self, args: tuple[Any, ...], dims: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        """The arguments of each call."""
        members = next(leaves(a)[0].shape[0] for a, d in zip(args, dims) if d == 0)
        if self.size == 1:
            return [tuple(take(a, i) if d == 0 else a for a, d in zip(args, dims)) for i in range(members)]
        size = members if self.size is None else min(self.size, members)
        cuts = [slice(i, min(i + size, members)) for i in range(0, members, size)]
        return [tuple(take(a, cut) if d == 0 else a for a, d in zip(args, dims)) for cut in cuts]

    def _joined(self, parts: list[Any]) -> Any:
        """Results of chunks as one tree; what is no tensor is the same in all."""
        if self.size != 1 and len(parts) == 1:
            return parts[0]
        join = torch.stack if self.size == 1 else torch.cat
        return tree_map(lambda *xs: join(xs) if isinstance(xs[0], Tensor) else xs[0], *parts)


class Streams(Lift):
    """On a GPU: one compiled call a member, each on a stream of its own, to be recorded in a CUDA graph.

    Convolutions of many members in one call are grouped ones, whose second derivatives are slow; here they stay plain.
    With `recompute`, `at_once` members have activations in memory at a time.
    """

    def __init__(self, at_once: int | None = None, *, recompute: bool = False) -> None:
        super().__init__(1, recompute=recompute)
        self.at_once = at_once
        self.streams: list[torch.cuda.Stream] = []  # none: one member after another, to warm up
        self._codes: dict[types.CodeType, types.CodeType] = {}

    def spread(self, members: int) -> None:
        """Takes streams for so many members."""
        self.streams = [torch.cuda.Stream() for _ in range(min(self.at_once or members, members))]

    def _call(self, function: Callable[..., Any], dims: tuple[Any, ...]) -> Callable[..., Any]:
        code = self._codes.setdefault(function.__code__, function.__code__.replace())
        return super()._call(compiled(function, whole=True, code=code), dims)

    def _each(self, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        if not self.streams:
            return super()._each(calls)
        current, found = torch.cuda.current_stream(), []
        for stream in self.streams:
            stream.wait_stream(current)
        for i, call in enumerate(calls):
            with torch.cuda.stream(self.streams[i % len(self.streams)]):
                found.append(call())
        for stream in self.streams:  # after all have been sent off
            current.wait_stream(stream)
        return found


def _vjp(called: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any, Back]:
    """By torch's own tape, outside of what is lifted: on a CPU cheaper than transforms inside of it."""
    flat, structure = pytree.tree_flatten(args[0])
    flat = [x.detach().requires_grad_() for x in flat]
    with torch.enable_grad():
        outputs, aux = called(pytree.tree_unflatten(flat, structure), *args[1:])

    def back(cotangents: Any) -> Any:
        pairs = [(o, c) for o, c in zip(leaves(outputs), leaves(cotangents)) if o.requires_grad]
        found = torch.autograd.grad([o for o, _ in pairs], flat, [c for _, c in pairs], materialize_grads=True)
        return pytree.tree_unflatten(list(found), structure)

    return _detached(outputs), _detached(aux), back


def _traced_vjp(called: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any, Back]:
    """The same by a transform, which a compiler can follow."""
    structure: Any = None
    fixed: list[Any] = []

    def with_tensors(params: Any) -> tuple[Any, tuple[Tensor, ...]]:
        nonlocal structure, fixed
        outputs, aux = called(params, *args[1:])
        flat, structure = pytree.tree_flatten(aux)
        fixed = [None if isinstance(x, Tensor) else (x,) for x in flat]
        return outputs, tuple(x for x in flat if isinstance(x, Tensor))

    outputs, pull, tensors = torch.func.vjp(with_tensors, args[0], has_aux=True)  # type: ignore[misc]
    rest = list(tensors)
    aux = pytree.tree_unflatten([rest.pop(0) if f is None else f[0] for f in fixed], structure)
    return outputs, aux, lambda cotangents: pull(cotangents)[0]


def _detached(tree: Any) -> Any:
    return tree_map(lambda x: x.detach() if isinstance(x, Tensor) else x, tree)
