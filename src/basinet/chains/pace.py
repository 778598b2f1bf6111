"""The step size of all chains: searched by doubling, then by dual averaging (Nesterov 2009; Hoffman & Gelman 2014).

    log e_t = m - sqrt(t) / g  H_t,   H_t = (1 - 1/(t + 10)) H_t-1 + (a* - a_t) / (t + 10)

a_t is the mean acceptance of the chains that just ended a transition: one update for all of them, whatever their
number. Updates chain by chain would make the step size swing, and small steps cost gradients. The size that is kept is
an average over the iterates. Tensors are (M,), and the same in every place.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

GAIN = 0.15  # g; .05 as published is for one chain and long warm-ups: where acceptance falls off a cliff, steps then
#              swing by factors, and their average is too small
DELAY, FORGET = 10.0, 0.75  # as published
BOLDER = 2.0  # by which steps are drawn to larger ones, so that too small a size is noticed
FIRST = 1e-3  # where the search begins
SMALLEST = 1e-10  # below which there is no step to be found


class Pace(NamedTuple):
    """What is known of the step size."""

    log_size: Tensor
    log_average: Tensor
    centre: Tensor  # m
    gap: Tensor  # H
    rounds: Tensor  # t, float64
    direction: Tensor  # of the search: 0 at first, then 1 or -1; 2 when it is over

    @staticmethod
    def at(size: float | None, like: Tensor) -> Pace:
        """Before the first transition, of one chain; a size that is given stays."""
        log_size = torch.full((), math.log(FIRST if size is None else size), dtype=torch.float64, device=like.device)
        zero = torch.zeros_like(log_size)
        return Pace(log_size, log_size.clone(), log_size.clone(), zero, zero.clone(), zero.clone())

    def heard(self, acceptance: Tensor, target: float) -> Pace:
        """After a transition with this acceptance (M,), the mean over chains."""
        up = torch.where(acceptance > 0.5, 1.0, -1.0)
        searching = self.direction != 2
        crossed = (self.direction != 0) & (self.direction != up)
        accepted = self.log_size + torch.where(crossed & (up < 0), -math.log(2), 0.0)  # the last that was accepted
        moved = torch.where(crossed, accepted, self.log_size + up * math.log(2))
        t = self.rounds + 1
        gap = (1 - 1 / (t + DELAY)) * self.gap + (target - acceptance) / (t + DELAY)
        log_size = self.centre - t.sqrt() / GAIN * gap
        share = t**-FORGET
        average = share * log_size + (1 - share) * self.log_average
        after = Pace(log_size, average, self.centre, gap, t, self.direction)
        during = self._replace(log_size=moved, direction=torch.where(crossed, 2.0, up))
        during = pick(crossed, during.anew(), during)
        return pick(searching, during, after)

    def anew(self) -> Pace:
        """The average begins again, around steps that are a little larger than now: what follows is another metric."""
        zero = torch.zeros_like(self.gap)
        return self._replace(centre=self.log_size + math.log(BOLDER), gap=zero, rounds=zero, log_average=self.log_size)

    def settled(self) -> Pace:
        """The average, for good."""
        return self._replace(log_size=torch.where(self.rounds > 0, self.log_average, self.log_size))


def pick(mask: Tensor, yes: Pace, no: Pace) -> Pace:
    """Where the mask (M,) is true, `yes`."""
    return Pace(*(torch.where(mask, a, b) for a, b in zip(yes, no)))
