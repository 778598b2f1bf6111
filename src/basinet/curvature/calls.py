"""All calls of one weight in a pass, as one layer that is used at all their places."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

from ..core.tree import Params
from ..layers import Tap

Key = tuple[str | None, str | None]  # the names of a layer's weight and bias


class Layer:
    """Calls of one weight."""

    def __init__(self, taps: Sequence[Tap]) -> None:
        self.taps = list(taps)
        first = taps[0]
        self.weight, self.bias, self.kind, self.groups = first.weight, first.bias, first.kind, first.groups
        self.names = first.names

    @property
    def key(self) -> Key:
        """What tells it from other layers."""
        return self.weight, self.bias

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
        rows = {}
        if self.weight is not None:
            formula = "btgi,btgo->bgoi" if self.kind == "matrix" else "btgi,btgi->bgi"
            rows[self.weight] = torch.einsum(formula, inputs, gradients).reshape(-1, *params[self.weight].shape)
        if self.bias is not None:
            rows[self.bias] = gradients.sum(1).reshape(-1, *params[self.bias].shape)
        return rows

    def counts(self, weights: Tensor, reached: Tensor) -> Tensor:
        """(B, T), how much the input at each place counts, for weights of examples (B,) or of elements of the targets
        (B, ...). `reached` (B, T) says to which places the gradient of any output that counts goes back."""
        parts = reached.split([tap.places(tap.output.detach()).shape[1] for tap in self.taps], 1)
        return _joined([_counts(tap.shape, weights, part) for tap, part in zip(self.taps, parts)])


def layers_of(taps: Iterable[Tap]) -> list[Layer]:
    """The layers, in the order in which they are first called."""
    calls: dict[Key, list[Tap]] = {}
    for tap in taps:
        calls.setdefault((tap.weight, tap.bias), []).append(tap)
    return [Layer(some) for some in calls.values()]


def _counts(places: tuple[int, ...], weights: Tensor, reached: Tensor) -> Tensor:
    """Elements whose axes are those of the places count there, as if the places were examples. Where the layer's places
    are others, or elements of weight zero are no places of their own (attention without a mask), all places of an
    example that are reached count alike."""
    mean = weights.reshape(len(weights), -1).mean(1, keepdim=True)
    if not places or weights.dim() == 1:
        return mean.expand(reached.shape)
    every = mean * reached
    if tuple(weights.shape[1 : 1 + len(places)]) != places:
        return every
    own = weights.reshape(*reached.shape, -1).mean(-1)
    return torch.where((reached & (own == 0)).any(1, keepdim=True), every, own)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, 1)
