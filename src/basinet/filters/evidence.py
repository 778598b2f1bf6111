"""How probable examples are before they are seen, under a normal distribution of the parameters.

    log p(y) = log p(y | mean) + 1/2 push' (L + A'A)^-1 push - 1/2 log det (I + A L^-1 A')

with the prior's precision L, and A and push as in `filter.py`: the integral of the quadratic function that a filter
takes the log likelihood for. Exact where it is one; for a batch, the probability of all its examples together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..core.tree import move
from .condition import columns_of

if TYPE_CHECKING:
    from .filter import Seen


def linearised(before: Any, seen: Seen, fit: float) -> float:
    """From a Gaussian family, what examples say at its mean, and their log likelihood there."""
    before = move(before, dtype=torch.float64)
    joined = torch.cat([seen.rows, seen.push.unsqueeze(0)]).double()
    inner = before.quad(columns_of(joined, before.centre))  # [A; push] S [A; push]'
    count = len(seen.rows)
    among, along = inner[:count, :count], inner[:count, count:]
    root = torch.linalg.cholesky(among + torch.eye(count, dtype=among.dtype, device=among.device))
    half = torch.linalg.solve_triangular(root, along, upper=False)
    gain = inner[count, count] - half.square().sum()
    return fit + 0.5 * float(gain) - float(root.diagonal().log().sum())
