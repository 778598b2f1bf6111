"""What the metrics refuse, and in which words: expected, got, do."""

from __future__ import annotations

import torch
from torch import Tensor


def floats(name: str, values: Tensor) -> None:
    """Only float32 and float64 are scored: in half precision a sum over examples is noise."""
    if values.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"expected {name} in float32 or float64, got {values.dtype}: convert with .float()")


def rows(name: str, values: Tensor) -> None:
    """Values (..., B) with at least one example."""
    if values.ndim == 0 or values.shape[-1] == 0:
        raise ValueError(
            f"expected {name} of shape (..., B) with at least one example, got {tuple(values.shape)}: "
            "put the examples on the last axis; a mean over nothing has no value"
        )
    floats(name, values)


def tables(name: str, values: Tensor) -> None:
    """Values (..., B, C) with at least one example and one class."""
    if values.ndim < 2 or 0 in values.shape[-2:]:
        raise ValueError(
            f"expected {name} of shape (..., B, C) with at least one example and one class, got "
            f"{tuple(values.shape)}: put the classes on the last axis and the examples on the one before"
        )
    floats(name, values)


def classes(name: str, scores: Tensor, targets: Tensor) -> None:
    """Scores (..., B, C) with targets (B,) that are class indices."""
    if scores.ndim < 2 or targets.ndim != 1 or scores.shape[-2] != len(targets):
        raise ValueError(
            f"expected {name} of shape (..., B, C) and targets of shape (B,), got {tuple(scores.shape)} and "
            f"{tuple(targets.shape)}: put the classes on the last axis and the examples on the one before"
        )
    tables(name, scores)
    if targets.is_floating_point() or targets.is_complex() or targets.dtype == torch.bool:
        raise ValueError(
            f"expected targets as integer class indices, got {targets.dtype}: convert with .long() (one-hot: "
            f".argmax(-1))"
        )
    low, high = int(targets.min()), int(targets.max())
    if low < 0 or high >= scores.shape[-1]:
        raise ValueError(
            f"expected targets from 0 to {scores.shape[-1] - 1} for {scores.shape[-1]} classes, got {low} to {high}: "
            "number the classes from 0 and drop examples without a label"
        )


def real(name: str, values: Tensor, targets: Tensor) -> None:
    """Values (..., *targets.shape) for targets with at least one element."""
    if targets.ndim == 0 or targets.numel() == 0:
        raise ValueError(
            f"expected targets of shape (B,) or (B, D) with at least one element, got {tuple(targets.shape)}: "
            "a mean over nothing has no value, and one target is a batch of one"
        )
    if values.shape[-targets.ndim :] != targets.shape:
        raise ValueError(
            f"expected {name} of shape (..., {', '.join(map(str, targets.shape))}) for targets of shape "
            f"{tuple(targets.shape)}, got {tuple(values.shape)}: squeeze or add the axis that differs"
        )
    floats(name, values)


def probabilities(values: Tensor) -> None:
    """Values in [0, 1] but for rounding. NaN passes: it stays with its member."""
    if bool(((values < -1e-3) | (values > 1 + 1e-3)).any()):  # beyond any rounding
        raise ValueError(
            f"expected probabilities in [0, 1], got values from {values.min().item():.4g} to "
            f"{values.max().item():.4g}: use softmax of logits, or exp of log-probabilities"
        )


def log_probabilities(values: Tensor) -> None:
    """Values of at most 0 but for rounding. NaN passes: it stays with its member."""
    if bool((values > 1e-3).any()):  # rounding of a log-softmax stays far below
        raise ValueError(
            f"expected log-probabilities, which are at most 0, got {values.max().item():.4g}: "
            "take log_softmax of logits, or the logarithm of probabilities"
        )


def bins(number: int, customary: int) -> None:
    """At least one bin."""
    if number < 1:
        raise ValueError(f"expected bins of at least 1, got {number}: {customary} is customary")


def together(names: tuple[str, str], first: Tensor, second: Tensor, own: int) -> tuple[Tensor, Tensor]:
    """Both with the same leading axes: all axes but the last `own`, broadcast against each other."""
    if first.dtype != second.dtype:
        raise ValueError(
            f"expected {names[0]} and {names[1]} of one dtype, got {first.dtype} and {second.dtype}: "
            "convert one of them"
        )
    try:
        lead = torch.broadcast_shapes(first.shape[:-own], second.shape[:-own])
    except RuntimeError:
        raise ValueError(
            f"expected {names[0]} and {names[1]} with leading axes that match, got {tuple(first.shape)} and "
            f"{tuple(second.shape)}: give both one entry per member, or one of them without the axis of members"
        ) from None
    return first.expand(*lead, *first.shape[-own:]), second.expand(*lead, *second.shape[-own:])
