"""Whether outputs and targets fit each other, and what is said where they do not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from .likelihood import Likelihood


def aligned(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets in the shape of the outputs: (B,) becomes (B, 1) where the network ends in one output. Never
    broadcast.

    >>> aligned(torch.zeros(3, 1), torch.ones(3)).shape
    torch.Size([3, 1])
    """
    return in_shape(targets, outputs.shape)


def in_shape(targets: Tensor, wanted: Sequence[int]) -> Tensor:
    """Targets in a shape, but for the number of rows: a missing last axis of length one is added, nothing more."""
    if tuple(wanted[-1:]) == (1,) and targets.dim() == len(wanted) - 1:
        targets = targets.unsqueeze(-1)
    if targets.dim() != len(wanted) or tuple(targets.shape[1:]) != tuple(wanted[1:]):
        raise ValueError(
            f"expected targets {shape('batch', wanted[1:])} for outputs of that shape, got "
            f"{shape('batch', targets.shape[1:])}: match the network's last layer to the targets"
        )
    return targets


def weighted(each: Tensor, weights: Tensor | None) -> Tensor:
    """Log densities of elements (B, ...) times the weights of examples (B,), or of elements in the shape of the
    targets."""
    if weights is None:
        return each
    if weights.dim() > each.dim():
        raise ValueError(
            f"expected one weight per example, got weights {tuple(weights.shape)} for log densities "
            f"{tuple(each.shape)}: this likelihood is not a product over the elements of the targets"
        )
    return weights.reshape(weights.shape + (1,) * (each.dim() - weights.dim())) * each


def check_real(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> None:
    """What every likelihood over real numbers asks of outputs and targets.

    >>> check_real(bn.likelihoods.Gaussian(), torch.zeros(3, 1), torch.zeros(3, 1))
    """
    name = type(likelihood).__name__
    if not targets.is_floating_point():
        raise ValueError(f"{name} expects floating-point targets, got {targets.dtype}: use targets.float()")
    aligned(outputs, targets)


class OneClass(ValueError):
    """Targets of one class only: nothing to learn from by themselves, but a batch of a stream may be such."""


def check_classes(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> None:
    """What every likelihood over classes asks of outputs and targets.

    >>> check_classes(bn.likelihoods.Categorical(), torch.zeros(2, 3), torch.tensor([0, 2]))
    """
    name = type(likelihood).__name__
    if outputs.dim() < 2 or outputs.shape[-1] < 2:
        raise ValueError(
            f"{name} expects outputs (batch, ..., classes) with at least 2 classes, got {tuple(outputs.shape)}: "
            "end the network in one logit per class"
        )
    if targets.is_floating_point() or targets.dtype == torch.bool:
        raise ValueError(f"{name} expects integer class targets, got {targets.dtype}: use targets.long()")
    if targets.shape[1:] != outputs.shape[1:-1]:
        raise ValueError(
            f"{name} expects targets {shape('batch', outputs.shape[1:-1])} for outputs "
            f"{shape('batch', outputs.shape[1:])}, "
            f"got {shape('batch', targets.shape[1:])}: pass class indices, not one-hot vectors"
        )
    low, high, classes = int(targets.min()), int(targets.max()), outputs.shape[-1]
    if low < 0 or high >= classes:
        raise ValueError(
            f"{name} expects targets in 0 ... {classes - 1}, one of the network's {classes} outputs, got "
            f"{low} ... {high}: "
            "relabel the classes or widen the network's last layer"
        )
    if low == high:
        raise OneClass(
            f"expected at least two classes among the targets, got only class {low}: there is nothing to tell apart"
        )


def check_whole(likelihood: Likelihood, targets: Tensor, most: float, advice: str) -> None:
    """Targets that are whole numbers from 0 to `most`, in any dtype."""
    name = type(likelihood).__name__
    if targets.is_complex():
        raise ValueError(f"{name} expects real targets, got {targets.dtype}: {advice}")
    numbers = targets.double()
    bad = ~((numbers >= 0) & (numbers <= most) & (numbers == numbers.floor()))
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        what = "0 or 1" if most == 1 else "0, 1, 2, ..."
        raise ValueError(
            f"{name} expects targets among {what}, got {int(bad.sum())} of {targets.numel()} others, the first "
            f"{numbers[where].item():g} at index {where}: {advice}"
        )


def shape(first: str, rest: Any) -> str:
    """A shape in words, its first axis named."""
    return "(" + ", ".join([first, *(str(int(n)) for n in rest)]) + ")"
