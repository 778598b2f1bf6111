"""The rate of a sampler with momentum, found by its kinetic temperature while the chain explores.

Batches add noise and steps an error, and both heat: in proportion to the rate, by how much depends on the problem. The
rate rises while a running mean of the temperature is below 1 + MARGIN, and falls while it is above: more slowly where
few parameters make it a noisy thermometer. A chain that has not arrived is hot because it descends, so that the first
half of the exploration keeps the first rate. Tensors are ().
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

FIRST = 0.01  # rate in the descent
LARGEST = 0.5
MARGIN = 0.05  # of the temperature
GAIN = 0.2  # of log rate in a step, for a temperature that is 1 off; by CHANGE at most
CHANGE = 0.02
MANY = 200  # parameters of which the temperature is sharp: with fewer the gain is less in proportion
HOT, WIDE = 3.0, 10.0  # a temperature of HOT + WIDE / sqrt(d) is that of steps which are not stable: the rate falls by
FALL = 0.05  # at once
SHARE = 0.02  # of a step in the running means of temperature and log rate


class Tempo(NamedTuple):
    """What is known of the rate."""

    log_rate: Tensor
    log_average: Tensor
    temperature: Tensor  # running mean

    @staticmethod
    def first(like: Tensor) -> Tempo:
        """Of one chain, before its first step."""
        one = torch.ones((), dtype=torch.float64, device=like.device)
        return Tempo(one * math.log(FIRST), one * math.log(FIRST), one)

    def heard(self, temperature: Tensor, dimension: int, clock: Tensor, explored: int) -> Tempo:
        """After a step with this temperature of `dimension` momenta; in the step that ends `explored` ones the average
        becomes the rate."""
        hot, gain = HOT + WIDE / math.sqrt(dimension), GAIN * min(1.0, dimension / MANY)
        mean = self.temperature + SHARE * (temperature.clamp(max=hot) - self.temperature)
        change = (gain * (1 + MARGIN - mean)).clamp(-CHANGE, CHANGE)
        log_rate = self.log_rate + torch.where(temperature > hot, -FALL, change)
        log_rate = log_rate.clamp(max=math.log(LARGEST))
        finding = (2 * clock >= explored) & (clock < explored)
        log_rate = torch.where(finding, log_rate, self.log_rate)
        average = self.log_average + SHARE * (log_rate - self.log_average)
        average = torch.where(finding, average, self.log_average)
        return Tempo(torch.where(clock + 1 == explored, average, log_rate), average, mean)
