"""The rate of a sampler with mini-batches, found by its temperature while the chain explores.

Batches add noise and steps an error, and both heat: in proportion to the rate, by how much depends on the problem. The
heat is read from two gradients in a row (`jolted`), which a chain that still descends hardly changes. The rate rises
while a running mean of the temperature is below 1 + MARGIN, and falls while it is above: more slowly where few
parameters make it a noisy thermometer. A chain whose steps were not stable, at any time, goes back to where it began,
and stays below a quarter of that rate. The temperature is a mean over parameters: of many, a few stiff ones may be
hotter. Tensors are ().
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.tree import Params, size, tree_map

FIRST = 0.01  # rate at which the search begins
LARGEST = 0.5
MARGIN = 0.05  # of the temperature
GAIN = 0.2  # of log rate in a step, for a temperature that is 1 off; by CHANGE at most
CHANGE = 0.02
MANY = 200  # parameters of which the temperature is sharp: with fewer the gain is less in proportion
HOT, WIDE = 3.0, 10.0  # a temperature above HOT + WIDE / sqrt(d) is that of steps which are not stable
FALL = 4.0  # by which the rate is divided then
SHARE = 0.02  # of a step in the running means of temperature and log rate


class Tempo(NamedTuple):
    """What is known of the rate. Where it is given, nothing: the trees are empty."""

    log_rate: Tensor
    log_average: Tensor
    log_most: Tensor  # of the rates that are still tried
    temperature: Tensor  # running mean
    fled: Tensor  # whether the last step was not stable
    known: Tensor  # whether `before` is the gradient of the step before
    before: Params
    start: Params  # where the chain began

    @staticmethod
    def first(params: Params, given: bool) -> Tempo:
        """Of one chain, before its first step, with a rate that is given or has to be found."""
        one = torch.ones((), dtype=torch.float64, device=next(iter(params.values())).device)
        begin, no = one * math.log(FIRST), one < 0
        trees = ({}, {}) if given else (tree_map(torch.zeros_like, params), tree_map(torch.clone, params))
        return Tempo(begin, begin.clone(), one * math.log(LARGEST), one.clone(), no, no.clone(), *trees)

    def heard(self, grads: Params, scale: Params | None, heat: Any, clock: Tensor, explored: int) -> Tempo:
        """After a step with this gradient and this heat (A of `jolted`); in the step that ends `explored` ones the
        average becomes the rate."""
        d, finding = size(grads), self.known & (clock < explored)
        now = jolted(grads, self.before, scale, self.log_rate.exp(), heat)
        fled = self.known & ~(now < HOT + WIDE / math.sqrt(d))  # NaN is not
        mean = self.temperature + SHARE * (now - self.temperature)
        mean = torch.where(fled, 1.0, torch.where(finding, mean, self.temperature))
        most = torch.where(fled, torch.minimum(self.log_most, self.log_rate - math.log(FALL)), self.log_most)
        change = (GAIN * min(1.0, d / MANY) * (1 + MARGIN - mean)).clamp(-CHANGE, CHANGE)
        log_rate = torch.minimum(torch.where(finding, self.log_rate + change, self.log_rate), most)
        average = torch.where(finding, self.log_average + SHARE * (log_rate - self.log_average), self.log_average)
        average = torch.minimum(average, most)
        log_rate = torch.where(clock + 1 == explored, average, log_rate)
        return Tempo(log_rate, average, most, mean, fled, ~fled, grads, self.start)


def jolted(grads: Params, before: Params, scale: Params | None, rate: Tensor, heat: Any) -> Tensor:
    """The temperature of a step, (), from the gradients of two steps in a row, in units of `scale` G,
    and the `heat` A that the step was given:

        1 + mean of lr G (g - g')^2 / (4 A)

    where 2 lr G A is the variance of the noise that a step adds to a parameter: A = T / N for Langevin steps, and a
    times that with a friction a. Of independent batches (g - g')^2 is 2 V, V their variance: what exceeds 1 is the
    share that batches add to it (in shuffled passes less of it heats), and a part for the error of the step: with
    x = lr G h / N and full batches x^2 / 2 for Langevin steps, x^2 / (8 a) with a friction a.
    """
    squares = [
        ((g - before[n]).double().square() * (1.0 if scale is None else scale[n])).sum() for n, g in grads.items()
    ]
    return 1 + rate * torch.stack(squares).sum() / (4 * heat * size(grads))
