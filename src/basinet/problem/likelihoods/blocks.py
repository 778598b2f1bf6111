"""Matrices over all outputs of an example, from the blocks that its elements have."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def diagonal(values: Tensor) -> Tensor:
    """(B, *event) as diagonal matrices (B, E, E)."""
    return torch.diag_embed(values.reshape(values.shape[0], -1))


def block_diagonal(blocks: Tensor, places: tuple[int, ...]) -> Tensor:
    """Blocks (B, *places, K, K), one per place, as (B, E, E) with E = places x K in row-major order."""
    b, k, n = blocks.shape[0], blocks.shape[-1], math.prod(places)
    same = torch.eye(n, dtype=blocks.dtype, device=blocks.device).reshape(1, n, 1, n, 1)
    return (same * blocks.reshape(b, n, k, 1, k)).reshape(b, n * k, n * k)
