"""The step size of chains that reject nothing: by the energy error of steps, whose mean square it is found for.

    e = (mean of x / e_t^6)^(-1/6),   x = E^2 / (d tolerance)

over the steps so far, older ones counting less: the error of a step of second order is in proportion to e^3. A mean of
squares, not of their logarithms, whatever the number of chains; x that are far from 1 weigh less (Robnik et al. 2023).
Before that, a search: steps change by x^(-1/6) until x is near 1. Tensors are (M,), and the same in every place.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from .pace import FIRST

ORDER = 6  # the squared energy error of a step falls with this power of its size
MOST = 1.0  # by which the logarithm of the step size changes at once
NEAR = 2.0  # |log x| at which a search ends
HORIZON = 150.0  # steps that the mean remembers
TRUST = 5.0  # steps that the search counts for in it
WIDTH = 9.0  # of the weights, in log x
FAILED = 1e3  # x of a step that failed
FORGET = 0.75  # of the average of step sizes, as in dual averaging


class Stride(NamedTuple):
    """What is known of the step size."""

    log_size: Tensor
    log_average: Tensor
    total: Tensor  # weighted sum of x / e^6
    weight: Tensor  # sum of weights
    rounds: Tensor  # since the search
    searching: Tensor  # bool

    @staticmethod
    def at(size: float | None, like: Tensor) -> Stride:
        """Before the first step, of one chain; a size that is given stays."""
        log_size = torch.full((), math.log(FIRST if size is None else size), dtype=torch.float64, device=like.device)
        zero = torch.zeros_like(log_size)
        return Stride(log_size, log_size.clone(), zero, zero.clone(), zero.clone(), zero == 0)

    def heard(self, squares: Tensor, good: Tensor) -> Stride:
        """After a step with these E^2 / (d tolerance) (M,), of those chains in which it did not fail."""
        x = torch.where(good, squares, FAILED).mean().clamp(min=1e-30)
        log = x.log().expand_as(self.log_size)
        weight = torch.exp(-0.5 * (log / WIDTH).square())
        share = (HORIZON - 1) / (HORIZON + 1)
        total = share * self.total + weight * torch.exp(log - ORDER * self.log_size)
        weights = share * self.weight + weight
        size = (weights / total.clamp(min=torch.finfo(total.dtype).tiny)).log() / ORDER
        change = torch.where(self.searching, -log / ORDER, size - self.log_size)
        log_size = self.log_size + change.clamp(-MOST, MOST)
        t = self.rounds + 1
        average = t**-FORGET * log_size + (1 - t**-FORGET) * self.log_average
        after = Stride(log_size, average, total, weights, t, self.searching)
        trusted = self._replace(log_size=log_size, log_average=log_size, searching=log.abs() > NEAR)
        full = torch.full_like(log_size, TRUST)
        trusted = trusted._replace(total=TRUST * torch.exp(-ORDER * log_size), weight=full)
        return pick(self.searching, trusted, after)

    def anew(self, stretch: Tensor) -> Stride:
        """The search begins again, from a size that is stretched by exp(stretch): what follows is another metric."""
        zero, log_size = torch.zeros_like(self.rounds), self.log_size + stretch
        return Stride(log_size, log_size.clone(), zero, zero.clone(), zero.clone(), zero == 0)

    def settled(self) -> Stride:
        """The average, for good."""
        return self._replace(log_size=torch.where(self.rounds > 0, self.log_average, self.log_size))


def pick(mask: Tensor, yes: Stride, no: Stride) -> Stride:
    """Where the mask (M,) is true, `yes`."""
    return Stride(*(torch.where(mask, a, b) for a, b in zip(yes, no)))
