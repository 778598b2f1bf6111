"""Two thermometers of a sampler, each 1 where it samples exp(-U).

    kinetic           v' M v / d, of momenta drawn from exp(-v' M v / 2): chi-square with d degrees of freedom, over d
    configurational   <theta - c, dU/dtheta> / d for any fixed c: its mean is 1 by partial integration

The first is wrong where friction and noise do not balance, the second where the positions do not follow the
posterior (Wenzel et al. 2020). Temperatures of the problem are in U, so that both read 1 for cold posteriors as well.
Intervals count effective draws, and that their number is an estimate.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from .chance import ALARM, SHARE, correlation_time, known, wide
from .convergence import LEAST, ess_mean

LEVEL = 1 - ALARM * SHARE  # of the intervals: that of a verdict, which looks at R-hat and two thermometers


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
    """From v' M v of momenta with `numbers` entries: (C, K) of chains whose draws may be correlated; in any other
    shape, or of few draws, one number per independent draw.

    >>> momenta = torch.randn(4, 500, 10, generator=torch.Generator().manual_seed(0))
    >>> abs(kinetic_temperature(momenta.square().sum(-1), 10).value - 1) < 0.1
    True
    """
    freedom, errors = float(kinetic.numel() * numbers), NormalDist().inv_cdf((1 + LEVEL) / 2)
    if kinetic.dim() == 2 and kinetic.shape[1] >= LEAST:
        tau, window = correlation_time(kinetic.unsqueeze(-1))
        freedom, errors = freedom / float(tau), wide(1 - LEVEL, known(kinetic, window))
    low, high = chi_square_interval(freedom, errors)
    return Temperature(float(kinetic.double().mean()) / numbers, low / freedom, high / freedom)


def configurational_temperature(positions: Tensor, slopes: Tensor) -> Temperature:
    """From positions and gradients of U there, both (C, K, d): draws of C chains. The origin of each draw is the mean
    of the others' draws (other chains; of one chain, its other half), so that it does not depend on it.

    >>> draws = torch.randn(4, 500, 10, generator=torch.Generator().manual_seed(0))  # of N(0, 1), where dU = x
    >>> abs(configurational_temperature(draws, draws).value - 1) < 0.1
    True
    """
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
    _, window = correlation_time(reads.unsqueeze(-1))
    error = wide(1 - LEVEL, known(reads, window)) * float(reads.std() / ess_mean(reads).sqrt())
    return Temperature(float(reads.mean()), 1 - error, 1 + error)


def chi_square_interval(freedom: float, errors: float) -> tuple[float, float]:
    """The central interval that a normal number is in within `errors` standard errors, by Wilson and Hilferty's cube
    root: within .4 % from 30 degrees on."""
    middle, spread = 1 - 2 / (9 * freedom), errors * math.sqrt(2 / (9 * freedom))
    return freedom * max(0.0, middle - spread) ** 3, freedom * (middle + spread) ** 3
