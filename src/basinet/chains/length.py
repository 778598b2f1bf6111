"""How long trajectories are: given, from the prior, or adapted across chains.

ChEES (Hoffman, Radul & Sountsov 2021) raises the expected change of the squared distance from the centre,

    C(t) = 1/4 E (|q' - c'|^2 - |q - c|^2)^2,   dC/dt = E a f (|q' - c'|^2 - |q - c|^2) <q' - c', v'>

by Adam on log t, with weights a, the acceptance, and f, the factor by which this trajectory's length was jittered.
Distances are in units of each parameter's spread. Tensors are (M,), and the same in every place.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

RATE, FIRST, SECOND, TINY = 0.05, 0.9, 0.95, 1e-12  # of Adam, whose second moment forgets soon
JITTER = 0.4  # lengths are uniform on 1 - JITTER ... 1 + JITTER times their mean
BEYOND = math.log(2.0)  # by which a length may be longer than it can be
LIMIT = math.log(1.2)  # the most by which an update changes the length, up or down


class Length(NamedTuple):
    """The mean length of trajectories, and Adam's moments of it."""

    log: Tensor
    first: Tensor
    second: Tensor
    seen: Tensor

    @staticmethod
    def at(length: float, like: Tensor) -> Length:
        """Of one chain."""
        zero = torch.zeros((), dtype=torch.float64, device=like.device)
        return Length(zero + math.log(length), zero.clone(), zero.clone(), zero.clone())

    def raised(self, slope: Tensor, when: Tensor, most: Tensor) -> Length:
        """After a trajectory with this slope of the criterion in log t (M,), the same in every place; log t stays near
        `most`, where trajectories are cut, so that it comes back when it pays."""
        slope = slope.nan_to_num(0.0, 0.0, 0.0)
        count = self.seen + 1
        first = FIRST * self.first + (1 - FIRST) * slope
        second = SECOND * self.second + (1 - SECOND) * slope.square()
        step = (first / (1 - FIRST**count)) / ((second / (1 - SECOND**count)).sqrt() + TINY)
        log = torch.minimum(self.log + (RATE * step).clamp(-LIMIT, LIMIT), most + BEYOND)
        new = Length(log, first, second, count)
        return Length(*(torch.where(when, a, b) for a, b in zip(new, self)))


def chees_slope(before: Tensor, after: Tensor, velocity: Tensor, chance: Tensor, factor: Tensor) -> Tensor:
    """dC/d log t up to t's own factor, (): from positions (M, d) in units of their spread, velocities likewise,
    acceptance (M,) and the jitter's factor. One chain has no mean of others: the origin is then its place before."""
    chains = len(before)
    centre, centre_after = before.mean(0), after.mean(0)
    if chains == 1:
        centre = centre_after = torch.zeros_like(centre)
    gain = (after - centre_after).square().sum(1) - (before - centre).square().sum(1)
    along = ((after - centre_after) * velocity).sum(1)
    weight = chance / chance.sum().clamp(min=1e-12)
    return (torch.nan_to_num(gain * along).double() * weight * factor).sum()
