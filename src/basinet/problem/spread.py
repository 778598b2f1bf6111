"""The size of the noise by data that training has not seen.

Noise that is learned with the weights goes to the size of the training residuals, which is too small where a network
fits them closely. A likelihood that learns its spread (`Likelihood.spread`) can have it multiplied by one factor, the
one under which other data are most probable:

    c* = argmin_c  -sum_n log p(y_n | x_n, theta, c s)

A network is judged at its own c*: one that predicts well and is too sure of it is a good one. Draws of a distribution
over networks are judged together: the density of an example is the mean of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.golden import golden_section
from ..core.lift import lift_or_loop
from ..core.tree import Params, Point
from ..data import Data, Stream, pieces
from .problem import PREFIX, Batch, Problem

STEP = 0.25  # of the logarithm of the factor
SHIFTS = tuple(STEP * k for k in range(-16, 17))  # from e^-4 to e^4
ITERATIONS = 20  # of golden section
CHUNK = 1000  # examples per pass


class Settled(NamedTuple):
    """A point whose noise was set by other data."""

    point: Point
    factor: float  # by which it was multiplied


def energies(problem: Problem, points: Sequence[Point], batch: Batch) -> Tensor:
    """-log likelihood of a batch under the mean of the densities of `points`, which share what the likelihood learns,
    with the noise at each of exp(SHIFTS) times its value, (F,); (1,) where no spread is learned."""
    name, params = problem.likelihood.spread, points[0].params
    outputs = _outputs(problem, points, batch)
    if name is None:
        return -_log_mean(problem, outputs, params, batch).unsqueeze(0)
    key = PREFIX + name
    each = [_log_mean(problem, outputs, params | {key: params[key] + s}, batch) for s in SHIFTS]
    return -torch.stack(each)


def least(energy: Tensor) -> Tensor:
    """The least of energies (..., F), on the parabola through the lowest of them and its neighbours: of normal noise
    within .005 nats per example."""
    if energy.shape[-1] == 1:
        return energy[..., 0]
    middle = energy.argmin(-1, keepdim=True).clamp(1, energy.shape[-1] - 2)
    left, here, right = (energy.gather(-1, middle + k)[..., 0] for k in (-1, 0, 1))
    bend, slope = left - 2 * here + right, (right - left) / 2
    place = torch.where(bend > 0, -slope / bend, 0.0).clamp(-1, 1)
    return here + place * (slope + place * bend / 2)


def set_noise(problem: Problem, point: Point, val: Data | Stream) -> Settled:
    """The point with the noise at which `val` are most probable; as it was, where no spread is learned."""
    if problem.likelihood.spread is None:
        return Settled(point, 1.0)
    factor = noise_factor(problem, [point], val)
    return Settled(Point(with_noise(problem, point.params, factor), point.buffers), factor)


@torch.no_grad()
def noise_factor(problem: Problem, points: Sequence[Point], val: Data | Stream) -> float:
    """What the noise is multiplied by for `val` to be most probable under the mean of the densities of `points`; 1
    where no spread is learned."""
    name = problem.likelihood.spread
    if name is None:
        return 1.0
    params, key, seen = points[0].params, PREFIX + name, []
    for piece in pieces(val, CHUNK):
        batch = Batch(piece.inputs, piece.targets, piece.targets, torch.zeros(()), val.n, piece.weights)
        seen.append((_outputs(problem, points, batch).double(), batch))

    def fit(factor: float) -> float:
        shifted = params | {key: params[key].double() + math.log(factor)}
        return math.fsum(float(_log_mean(problem, outputs, shifted, batch)) for outputs, batch in seen)

    return golden_section(fit, math.exp(SHIFTS[0]), math.exp(SHIFTS[-1]), ITERATIONS).best


def with_noise(problem: Problem, params: Params, factor: float) -> Params:
    """The params with their noise times a factor."""
    if problem.likelihood.spread is None:
        return params
    key = PREFIX + problem.likelihood.spread
    return params | {key: (params[key].double() + math.log(factor)).to(params[key])}


def _outputs(problem: Problem, points: Sequence[Point], batch: Batch) -> Tensor:
    """Of all points, (S, B, ...)."""
    return torch.stack([problem.outputs(point.params, point.buffers, batch.inputs)[0] for point in points])


def _log_mean(problem: Problem, outputs: Tensor, params: Params, batch: Batch) -> Tensor:
    """The log likelihood of a batch, (), under the mean of the densities that outputs (S, B, ...) give."""
    if len(outputs) == 1:
        return problem.log_densities(outputs[0], params, batch).sum()
    each = lift_or_loop(lambda x: problem.log_densities(x, params, batch))(outputs)
    joint = each.reshape(*each.shape[:2], -1).sum(2)  # (S, B)
    return (torch.logsumexp(joint, 0) - math.log(len(outputs))).sum()
