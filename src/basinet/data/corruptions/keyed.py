"""Random numbers for a batch in which every image has a key of its own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ...core.lift import lift
from ...core.noise import Noise


def normal(noise: Noise, shape: Sequence[int]) -> Tensor:
    """Standard normal numbers (B, *shape): an image's depend only on its key."""
    like = torch.empty(tuple(shape), device=noise.key.device)
    return lift(lambda key: Noise(key).normal(like))(noise.key)


def uniform(noise: Noise, shape: Sequence[int] = ()) -> Tensor:
    """Uniform on [0, 1), (B, *shape)."""
    like = torch.empty(tuple(shape), device=noise.key.device)
    return lift(lambda key: Noise(key).uniform(like))(noise.key)


def poisson(noise: Noise, rate: Tensor) -> Tensor:
    """Poisson counts of rates (B, ...), by inverting the distribution function.

    Rates under 16 exactly, by summing probabilities; above by the normal expansion of the quantile (Giles 2016,
    "Algorithm 955: approximation of the inverse Poisson cumulative distribution function"), whose floor is the quantile
    but for a few in a thousand, where it is a neighbour.
    """
    z = normal(noise.split("large"), rate.shape[1:])
    root = rate.clamp_min(16).sqrt()
    counts = (rate + root * z + 1 / 3 + z**2 / 6 - (z / 36 + z**3 / 72) / root).floor()
    small = rate < 16
    counts[small] = _summed(rate[small], uniform(noise.split("small"), rate.shape[1:])[small])
    return counts


def _summed(rate: Tensor, u: Tensor) -> Tensor:
    """The Poisson quantile at `u` of rates up to 16."""
    chance = (-rate).exp()
    below, count = chance, torch.zeros_like(rate)
    for k in range(1, 60):  # a rate of 16 passes 59 once in 1e16
        count += u >= below
        chance = chance * rate / k
        below = below + chance
    return count
