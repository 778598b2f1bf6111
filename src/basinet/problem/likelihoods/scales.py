"""Scales of noise, known or learned, one for all outputs or one for each on the last axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import torch
from torch import Tensor

Scale = float | tuple[float, ...]


def checked_scale(scale: Scale | Sequence[float], what: str) -> Scale:
    """The scale, a list of them as a tuple; raises where one is not positive and finite."""
    each = tuple(scale) if isinstance(scale, Sequence) else (scale,)
    for s in each or (math.nan,):
        if isinstance(s, bool) or not isinstance(s, Real) or not (s > 0 and math.isfinite(s)):
            raise ValueError(f"expected a positive, finite {what}, got {scale!r}")
    return each if isinstance(scale, Sequence) else scale


def log_scale(scale: Scale) -> Tensor:
    """Where a learned scale starts: its logarithm, () or (D,)."""
    return torch.tensor(scale).log()


def scale_like(outputs: Tensor, scale: Scale, log_learned: Tensor | None) -> Tensor:
    """The scale of each output. A learned one shares its leading axes with the outputs; one that is a vector has its
    own axis last."""
    if log_learned is None:
        each = scale if isinstance(scale, tuple) else (scale,)
        full = torch.stack([torch.full((), s, dtype=outputs.dtype, device=outputs.device) for s in each])
        return full.expand(outputs.shape) if isinstance(scale, tuple) else full[0].expand(outputs.shape)
    own = log_learned.shape[-1:] if isinstance(scale, tuple) else ()
    lead = log_learned.shape[: log_learned.dim() - len(own)]
    between = (1,) * (outputs.dim() - len(lead) - len(own))
    return log_learned.exp().reshape(*lead, *between, *own).expand(outputs.shape)


def check_scale_fits(name: str, scale: Scale, outputs: Tensor) -> None:
    """As many scales as outputs on the last axis."""
    if isinstance(scale, tuple) and (outputs.dim() < 2 or outputs.shape[-1] != len(scale)):
        raise ValueError(
            f"{name} has {len(scale)} scales, one for each number on the last axis of the outputs, got outputs "
            f"{tuple(outputs.shape)}: give one number, or as many as the network has outputs"
        )
