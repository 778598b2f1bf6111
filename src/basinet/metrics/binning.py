"""The bin that each value belongs to, an index from 0 to bins − 1."""

from __future__ import annotations

import torch
from torch import Tensor


def by_width(values: Tensor, bins: int) -> Tensor:
    """Intervals (k / bins, (k + 1) / bins] of [0, 1], the first with its lower end; NaN falls into the last."""
    inner = [k / bins for k in range(1, bins)]  # rounded once, so that 0.6 is an edge of 5 bins in any dtype
    return torch.bucketize(values.contiguous(), torch.tensor(inner, dtype=values.dtype, device=values.device))


def by_mass(n: int, bins: int, device: torch.device) -> Tensor:
    """Of n values in ascending order: runs whose sizes differ by at most one, (n,)."""
    return torch.arange(n, device=device) * bins // n
