"""What `Data` refuses, and how it says so: what was expected, what came, what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor


def as_tensor(value: Any, name: str) -> Tensor:
    """A tensor as it is; a numeric numpy array as a tensor."""
    if isinstance(value, Tensor):
        return value
    if not isinstance(value, np.ndarray) or value.dtype.kind not in "biufc":
        got = f"an array of {value.dtype}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"
        raise TypeError(f"expected {name} to be a tensor or a numeric numpy array, got {got}; use torch.as_tensor")
    dtype = value.dtype.newbyteorder("=")
    if dtype.kind == "f" and dtype.itemsize >= 8:
        dtype = np.dtype(np.float64 if torch.get_default_dtype() == torch.float64 else np.float32)
    elif dtype.kind == "u" and dtype.itemsize > 1:  # torch can hardly compute with these
        dtype = np.dtype(np.int64)
    with np.errstate(over="ignore"):  # too large for float32: found as infinite, with its place
        return torch.from_numpy(np.require(value, dtype, ["C", "W"]))


def check_lengths(tensors: dict[str, Tensor]) -> None:
    """The same number of examples everywhere, at least one, on one device."""
    first, like = next(iter(tensors.items()))
    for name, x in tensors.items():
        if x.dim() == 0:
            raise ValueError(f"expected {name} to have a leading axis of examples, got a scalar; give it one")
        if x.device != like.device:
            raise ValueError(f"expected {name} on {like.device} as {first}, got {x.device}; move them together")
        if len(x) != len(like):
            raise ValueError(
                f"expected {name} to have as many examples as {first} ({len(like)}), got {len(x)} (shape "
                f"{tuple(x.shape)}); the leading axis counts examples"
            )
    if len(like) == 0:
        raise ValueError(f"expected at least one example, got none (shape {tuple(like.shape)}); check what was read")


def check_finite(x: Tensor, name: str) -> None:
    """No NaN and no infinity."""
    real = torch.view_as_real(x) if x.is_complex() else x
    if not real.is_floating_point() or real.numel() == 0:
        return
    low, high = torch.stack(torch.aminmax(real)).tolist()  # one pass, nothing copied; NaN passes through
    if math.isfinite(low) and math.isfinite(high):
        return
    bad = ~torch.isfinite(x)
    first = tuple(bad.nonzero()[0].tolist())
    raise ValueError(
        f"expected finite {name}, got {int(bad.sum())} of {x.numel()} values NaN or infinite, the "
        f"first at index {first}; drop or fill them"
    )


def checked_weights(weights: Tensor, targets: Tensor, some: bool = True) -> Tensor:
    """Floating weights (N,), or one for each element of the targets; `some` of them must not be zero."""
    if tuple(weights.shape) not in ((len(targets),), tuple(targets.shape)):
        whole = "" if targets.dim() == 1 else f" or {tuple(targets.shape)}"
        raise ValueError(
            f"expected weights of shape ({len(targets)},){whole}, got {tuple(weights.shape)}; "
            "give one per example, or one per element of the targets"
        )
    weights = weights if weights.is_floating_point() else weights.to(torch.get_default_dtype())
    check_lengths({"targets": targets, "weights": weights})
    check_finite(weights, "weights")
    if weights.min() < 0 or (some and weights.max() == 0):
        got = "a negative one" if weights.min() < 0 else "only zeros"
        raise ValueError(f"expected weights >= 0, not all zero, got {got}; 1 is the plain example, 0 none")
    return weights


def checked_rows(rows: Tensor, targets: Tensor) -> Tensor:
    """Positions (M, n), int64, where the targets are."""
    if rows.dim() != 2 or rows.numel() == 0 or not _is_integer(rows):
        raise ValueError(
            f"expected rows (members, n) of integers, got {kind(rows)} {tuple(rows.shape)}; row k lists the "
            "examples of member k"
        )
    low, high = int(rows.min()), int(rows.max())
    if low < 0 or high >= len(targets):
        wrong = low if low < 0 else high
        raise ValueError(f"expected rows to name examples 0 to {len(targets) - 1}, got {wrong}; rows are positions")
    return rows.to(targets.device, torch.int64)


def checked_index(index: Tensor | np.ndarray | Sequence[int], targets: Tensor) -> Tensor:
    """Positions or a mask, as a tensor that indexes the leading axis and keeps it."""
    known = as_tensor(index, "index") if isinstance(index, np.ndarray) else torch.as_tensor(index)
    rows, total = known.to(targets.device), len(targets)
    if rows.dim() == 1 and rows.dtype == torch.bool and len(rows) == total:
        return rows
    if rows.dim() != 1 or not (_is_integer(rows) or rows.numel() == 0):
        raise ValueError(
            f"expected a slice, 1-D positions or a mask of {total}, got {kind(rows)} {tuple(rows.shape)}; "
            "[i] takes one example"
        )
    if rows.numel() and not -total <= int(rows.min()) <= int(rows.max()) < total:
        raise ValueError(f"expected positions below {total}, got {int(rows.min())} to {int(rows.max())}; check them")
    return rows.long()


def kind(x: Tensor) -> str:
    """The dtype in a word."""
    return str(x.dtype).removeprefix("torch.")


def _is_integer(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.dtype == torch.bool)
