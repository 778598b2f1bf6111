"""Two thermometers of a sampler, each 1 where it samples exp(-U).

    kinetic           v' M v / d, of momenta drawn from exp(-v' M v / 2): chi-square with d degrees of freedom, over d
    configurational   <theta - c, dU/dtheta> / d for any fixed c: its mean is 1 by partial integration

The first is wrong where friction and noise do not balance, the second where the positions have another law than the
posterior's (Wenzel et al. 2020). Temperatures of the problem are in U, so that both read 1 for cold posteriors as well.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .convergence import mcse_mean

LEVEL = 0.99  # of the intervals
WIDE = 2.576  # standard errors that a normal stays within with that probability


class Temperature(NamedTuple):
    """What a thermometer reads."""

    value: float
    low: float  # ends of the interval in which a sampler at temperature 1 reads with probability LEVEL
    high: float

    @property
    def right(self) -> bool:
        """Whether it reads what it should."""
        return self.low <= self.value <= self.high


def kinetic_temperature(kinetic: Tensor, numbers: int) -> Temperature:
    """From v' M v (any shape: one number per independent draw) of momenta with `numbers` entries."""
    freedom = kinetic.numel() * numbers
    low, high = chi_square_interval(freedom)
    return Temperature(float(kinetic.double().mean()) / numbers, low / freedom, high / freedom)


def configurational_temperature(positions: Tensor, slopes: Tensor) -> Temperature:
    """From positions and gradients of U there, both (C, K, d): draws of C chains. The origin of each draw is the mean
    of the others' draws (other chains; of one chain, its other half), so that it does not depend on it."""
    positions, slopes = positions.double(), slopes.double()
    chains, count, numbers = positions.shape
    if chains > 1:
        means = positions.mean(1)
        origin = ((means.sum(0) - means) / (chains - 1)).unsqueeze(1)  # (C, 1, d)
    else:
        half = count // 2
        first, last = positions[:, :half].mean(1, keepdim=True), positions[:, half:].mean(1, keepdim=True)
        origin = torch.cat([last.expand(-1, half, -1), first.expand(-1, count - half, -1)], 1)
    reads = ((positions - origin) * slopes).sum(-1) / numbers  # (C, K)
    error = WIDE * float(mcse_mean(reads))
    return Temperature(float(reads.mean()), 1 - error, 1 + error)


def chi_square_interval(freedom: int) -> tuple[float, float]:
    """The central interval of probability LEVEL, by Wilson and Hilferty's cube root: within .4 % from 30 degrees on."""
    middle, spread = 1 - 2 / (9 * freedom), WIDE * math.sqrt(2 / (9 * freedom))
    return freedom * max(0.0, middle - spread) ** 3, freedom * (middle + spread) ** 3
