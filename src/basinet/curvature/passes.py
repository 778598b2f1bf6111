"""One pass over the data, in batches, with what the curvature of each batch is made of.

A parameter is followed through the layers that are called with it, or by differentiating examples one by one
(follow.py). What a few examples tell holds for most networks; those that pick rows inside are looked at in each batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, Concatenate, Literal, ParamSpec, TypeVar

import torch
from torch import Tensor

from ..core.lift import at_once_or
from ..core.noise import Noise
from ..core.tree import Params, Point, take, tree_map
from ..data import Data, Piece, Stream, pieces, some
from ..layers import Taps
from ..problem import Problem
from . import roots
from .calls import layers_of
from .follow import Followed, Unfollowed, follow, is_head
from .singly import one_by_one

P = ParamSpec("P")
T = TypeVar("T")
Kind = Literal["ggn", "fisher", "hessian"]
ELEMENTS = 2**24  # numbers in what is made for a batch beside its activations
WIDTH = 2**26  # numbers that go into all layers, for a batch: patches of convolutions are many; on a GPU a sixteenth of
# its free memory, where that is more
FEW = 4  # examples on which layers are tried


@dataclass(frozen=True, kw_only=True, eq=False)
class Passes:
    """Passes over the data of a problem at a point. `names` are the params that the curvature is about.

    ggn: generalised Gauss-Newton, sum_n J' H J with the expected Hessian H of the likelihood in the outputs. fisher:
    the empirical Fisher information, from the gradients of the targets. hessian: the exact Hessian, of parameters in
    which the outputs are linear: a last layer. For classes, and normal targets of known noise, it is the ggn.
    """

    problem: Problem
    point: Point
    data: Data | Stream
    names: tuple[str, ...]
    noise: Noise  # the key of drawn labels and of the subset
    kind: Kind = "ggn"
    labels: int | None = None  # labels drawn per example in place of an exact H
    subset: int | None = None  # examples that stand for all N
    batch_size: int | None = 256  # examples at a time; None: all at once. The result does not depend on it
    alone: frozenset[str] = frozenset()  # params that are differentiated one by one in any case

    @property
    def params(self) -> Params:
        """Those the curvature is about, in their own order."""
        return {n: x for n, x in self.point.params.items() if n in self.names}

    @property
    def power(self) -> int:
        """With r times the precision of normal noise, the curvature is r to this power times what it is: the empirical
        Fisher information is made of squared residuals over sigma^4."""
        return 2 if self.kind == "fisher" else 1

    def run(self, limit: int | None = None) -> Pass:
        """A pass, of at most `limit` examples at a time."""
        return Pass(self, limit)

    def few(self, count: int = FEW) -> Any:
        """A few inputs."""
        return tree_map(lambda x: x[:count], some(self.data).inputs)

    def free(self) -> tuple[Params, Params, Params]:
        """The params that are followed, as leaves of a graph; the buffers; all other params."""
        params, buffers = self.point
        free = {n: params[n].detach().clone().requires_grad_() for n in self.names}
        return free, buffers, {n: x.detach() for n, x in params.items() if n not in free}

    def follow(self) -> Followed:
        """How the parameters are followed, as a few inputs tell."""
        return follow(self, self.few())


def tried_again(structure: Callable[Concatenate[Passes, P], T]) -> Callable[Concatenate[Passes, P], T]:
    """A structure that restarts where a batch shows that parameters cannot be followed through their layers, as in
    networks that pick rows inside: those are then differentiated one by one."""

    @wraps(structure)
    def until_followed(passes: Passes, *args: P.args, **kwargs: P.kwargs) -> T:
        while True:
            try:
                return structure(passes, *args, **kwargs)
            except Unfollowed as lost:
                passes = replace(passes, alone=passes.alone | lost.names)

    return until_followed


class Pass:
    """Iterates over batches; counts what they hold."""

    def __init__(self, passes: Passes, limit: int | None) -> None:
        self.passes, self.limit = passes, limit
        self.seen = 0  # examples
        self.log_likelihood = 0.0  # their weighted sum, of all N in the end
        self.elements = 0.0  # of the targets, weighted, of all N in the end

    def __iter__(self) -> Iterator[Chunk]:
        passes, followed = self.passes, self.passes.follow()
        learned = passes.problem.split(passes.point.params)[1]
        for number, piece in enumerate(self._pieces(max(1, _width(passes.point) // followed.width))):
            chunk = Chunk(passes, piece, followed, number)
            self.seen += len(piece.targets)
            with torch.no_grad():
                each = passes.problem.likelihood.log_density(chunk.outputs, piece.targets, learned)
                weights = torch.ones_like(each) if piece.weights is None else piece.weights.to(each)
                weights = weights.reshape(weights.shape + (1,) * (each.dim() - weights.dim())).expand(each.shape)
                self.log_likelihood += float((weights * each).double().sum())
                self.elements += float(weights.double().sum())
            yield chunk
        self.scale = passes.data.n / self.seen  # N over the examples seen
        self.log_likelihood *= self.scale
        self.elements *= self.scale

    def _pieces(self, most: int) -> Iterator[Piece]:
        """Batches, cut where they are too long, of the subset."""
        passes, data = self.passes, self.passes.data
        left = passes.subset or data.n
        if isinstance(data, Data) and left < data.n:
            order = passes.noise.split("subset").permutation(data.n)[:left].to(data.targets.device)
            data = data.take(order.sort().values)
        size = min(passes.batch_size or data.n, self.limit or data.n, most)
        for piece in pieces(data, size):
            count = min(len(piece.targets), left)
            for begin in range(0, count, size):
                here = slice(begin, min(begin + size, count))
                weights = None if piece.weights is None else piece.weights[here]
                yield Piece(take(piece.inputs, here), piece.targets[here], weights)
            left -= count
            if left == 0:
                return


class Chunk:
    """A batch: its outputs, their curvature, and gradients of single examples."""

    def __init__(self, passes: Passes, piece: Piece, followed: Followed, number: int) -> None:
        self.passes, self.piece, self.others = passes, piece, followed.others
        free, buffers, fixed = passes.free()
        with Taps(free, len(piece.targets)) as taps:
            self._outputs = passes.problem.outputs(fixed | free, buffers, piece.inputs)[0]
        self.outputs = self._outputs.detach()
        if lost := followed.lost(self._outputs, taps):
            raise Unfollowed(lost)
        layers = [layer for layer in layers_of(taps.calls) if layer.key in followed.layers]
        self.head = next((layer for layer in layers if is_head(layer, self._outputs)), None)
        self.layers = [layer for layer in layers if layer is not self.head]  # all but the head
        if passes.kind == "hessian" and (self.layers or self.others or self.head is None):
            names = ", ".join(passes.names)
            raise ValueError(
                f"the exact Hessian is for a linear last layer, in which the outputs are linear, got {names}: use "
                "where='last', or curvature='ggn'"
            )
        self.root = _root(passes, self.outputs, piece, number)

    @property
    def masked(self) -> bool:
        """Whether elements of the targets have weights of their own."""
        return self.piece.weights is not None and self.piece.weights.dim() > 1

    def gradients(self) -> Iterator[list[Tensor]]:
        """For some columns of the root at a time, their gradients in the outputs of `layers`, each (K, B, T, groups,
        o)."""
        if not self.layers:
            return
        calls = [tap.output for layer in self.layers for tap in layer.taps]
        linear = all(tap.channels_last for layer in self.layers for tap in layer.taps)
        most = max(1, ELEMENTS // sum(x.numel() for x in calls)) if linear else 1  # convolutions are slow when stacked
        for begin in range(0, self.root.count, most):
            columns = self.root.columns(begin, min(begin + most, self.root.count))
            grads = self._back(calls, columns.reshape(-1, *self._outputs.shape))
            yield [layer.gradients([grads.pop(0) for _ in layer.taps]) for layer in self.layers]

    def _back(self, calls: list[Tensor], along: Tensor) -> list[Tensor]:
        """The gradients in `calls` of several vectors (K, *outputs), leaves (K, ...)."""
        if not self._outputs.requires_grad:  # the outputs of this batch come from none of them
            return [x.new_zeros(len(along), *x.shape) for x in calls]
        how = {"retain_graph": True, "allow_unused": True, "materialize_grads": True}

        def at_once() -> list[Tensor]:
            return list(torch.autograd.grad(self._outputs, calls, along, is_grads_batched=True, **how))

        def one_by_one() -> list[Tensor]:
            each = [torch.autograd.grad(self._outputs, calls, v, **how) for v in along]
            return [torch.stack(xs) for xs in zip(*each)]

        return at_once_or(at_once, one_by_one) if len(along) > 1 else one_by_one()

    def singly(self) -> Iterator[Params]:
        """The gradients of each example in the other parameters, leaves (B, *shape), of column after column."""
        if not self.others:
            return
        count = sum(self.passes.params[n].numel() for n in self.others)
        most = max(1, ELEMENTS // (count * len(self.outputs)))
        for begin in range(0, self.root.count, most):
            end = min(begin + most, self.root.count)
            along = self.root.columns(begin, end).transpose(0, 1)  # (B, K, E)
            rows = one_by_one(self.passes.problem, self.passes.point, self.others, self.piece.inputs, along)
            yield from (take(tree_map(lambda x: x.transpose(0, 1), rows), k) for k in range(end - begin))


def _width(point: Point) -> int:
    """How many numbers may go into layers."""
    like = next(iter(point.params.values()))
    if like.device.type != "cuda":
        return WIDTH
    return max(WIDTH, torch.cuda.mem_get_info(like.device)[0] // (16 * like.element_size()))


def _root(passes: Passes, outputs: Tensor, piece: Piece, number: int) -> roots.Root:
    likelihood, learned = passes.problem.likelihood, passes.problem.split(passes.point.params)[1]
    if passes.kind == "ggn" and passes.labels is not None:
        noise = passes.noise.split("labels").split(number)
        return roots.sampled(likelihood, outputs, piece.weights, learned, passes.labels, noise)
    root_of = {"ggn": roots.expected, "fisher": roots.empirical, "hessian": roots.exact}[passes.kind]
    return root_of(likelihood, outputs, piece.targets, piece.weights, learned)
