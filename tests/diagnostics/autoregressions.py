"""Chains whose distribution is known, from keys."""

from __future__ import annotations

import torch
from torch import Tensor

from basinet.core.noise import Noise


def autoregressive(chains: int, count: int, phi: float, seed: int, quantities: int | None = None) -> Tensor:
    """Stationary x_t = phi x_t-1 + z_t, (chains, count) or (chains, count, quantities)."""
    shape = (chains, count) if quantities is None else (chains, count, quantities)
    z = Noise.seed(seed).normal(torch.empty(shape, dtype=torch.float64))
    x = [z[:, 0] / (1 - phi**2) ** 0.5]
    for t in range(1, count):
        x.append(phi * x[-1] + z[:, t])
    return torch.stack(x, 1)
