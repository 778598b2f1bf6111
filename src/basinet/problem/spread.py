"""The size of the noise by data that training has not seen.

Noise that is learned with the weights goes to the size of the training residuals, which is too small where a network
fits them closely. A likelihood that learns its spread (`Likelihood.spread`) can have it multiplied by one factor, the
one under which other data are most probable:

    c* = argmin_c  -sum_n log p(y_n | x_n, theta, c s)

A network is judged at its own c*: one that predicts well and is too sure of it is a good one.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.golden import golden_section
from ..core.tree import Params, Point
from ..data import Data, Stream, pieces
from .problem import PREFIX, Batch, Problem

STEP = 0.25  # of the logarithm of the factor
SHIFTS = tuple(STEP * k for k in range(-16, 17))  # from e^-4 to e^4
ITERATIONS = 20  # of golden section
CHUNK = 1000  # examples a pass


class Settled(NamedTuple):
    """A point whose noise was set by other data."""

    point: Point
    factor: float  # by which it was multiplied


def energies(problem: Problem, params: Params, buffers: Params, batch: Batch) -> Tensor:
    """-log likelihood of a batch with the noise at each of exp(SHIFTS) times its value, (F,); (1,) where no spread is
    learned."""
    name = problem.likelihood.spread
    if name is None:
        return -problem.log_likelihood(params, buffers, batch)[0].unsqueeze(0)
    outputs, key = problem.outputs(params, buffers, batch.inputs)[0], PREFIX + name
    each = [problem.log_densities(outputs, params | {key: params[key] + s}, batch).sum() for s in SHIFTS]
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


@torch.no_grad()
def set_noise(problem: Problem, point: Point, val: Data | Stream) -> Settled:
    """The point with the noise at which `val` are most probable; as it was, where no spread is learned."""
    name = problem.likelihood.spread
    if name is None:
        return Settled(point, 1.0)
    key = PREFIX + name
    like = point.params[key]
    seen = []
    for piece in pieces(val, CHUNK):
        batch = Batch(piece.inputs, piece.targets, piece.targets, torch.zeros(()), val.n, piece.weights)
        seen.append((problem.outputs(point.params, point.buffers, piece.inputs)[0].double(), batch))

    def shifted(shift: float) -> Params:
        return point.params | {key: like.double() + shift}

    def fit(factor: float) -> float:
        params = shifted(math.log(factor))
        return math.fsum(float(problem.log_densities(outputs, params, batch).sum()) for outputs, batch in seen)

    factor = golden_section(fit, math.exp(SHIFTS[0]), math.exp(SHIFTS[-1]), ITERATIONS).best
    return Settled(Point(point.params | {key: shifted(math.log(factor))[key].to(like)}, point.buffers), factor)
