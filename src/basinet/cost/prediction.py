"""What predicting takes, estimated from how it is done, before there is a posterior."""

from __future__ import annotations

from typing import Any

import torch

from ..core.tree import Point, leaves, nbytes, take
from ..predict.draws import CACHE
from ..predict.forward import CPU, FEW
from ..predict.tangent import TOGETHER
from ..predict.validation import at_once
from ..predict.via import MOST, Via
from ..problem import Problem
from ..problem.likelihoods import Gaussian, Likelihood
from .demand import Predicting, Widths

LIVE = 4  # of the widest activation, while a network runs
TANGENTS = 4  # times as many activations where derivatives go with them
POINTS = 4  # copies of the weights while one draw of them is made
KEYED = 64  # bytes for each random number while it is made, from 64-bit integers
SETS = 4  # of all outputs: themselves, log-probabilities, probabilities, and a part of them in double precision


def predicting(
    via: Via, likelihood: Likelihood, outputs: int, samples: int, last: bool, draw: Predicting
) -> Predicting:
    """What one member takes an input. `outputs` are those of an input; `draw` says what a draw of the weights takes.

    `last` says that only the last layer is random: what is before it is run once for several draws, and no gradient
    goes back through it. A covariance of outputs is held once, where outputs are held several times.
    """
    if via == "sample":
        return draw._replace(draws=samples, forwards=float(samples))
    if via == "linear" and not (isinstance(likelihood, Gaussian) and outputs <= MOST):
        return draw._replace(draws=samples, forwards=float(-(-samples // TOGETHER) if last else 2 * samples))
    return Predicting(1 if via == "probit" else 1 + -(-outputs // SETS), 1.0 if last else 1.0 + 2 * outputs)


def holding(
    problem: Problem, point: Point, inputs: Any, takes: Predicting, n: int, members: int = 1, tangents: bool = False
) -> int:
    """Bytes beside a posterior while it predicts n inputs, of which those given are some: all outputs, a draw of the
    weights, and activations, with derivatives where `tangents` are taken."""
    with torch.no_grad():
        output = nbytes(problem.outputs(point.params, point.buffers, take(inputs, slice(0, 1)))[0])
    running = activations(problem, point, inputs, members * takes.draws, n) * (TANGENTS if tangents else 1)
    drawn = POINTS * nbytes(point) + KEYED * takes.numbers
    return SETS * members * takes.draws * n * output + drawn + running


def validating(problem: Problem, point: Point, inputs: Any, via: Via, takes: Predicting, n: int, outputs: int) -> int:
    """Bytes while the NLL of n examples is computed, of a posterior that is there: some of them at a time, and all
    draws of the weights where these are used again."""
    rows = at_once(outputs, takes.draws)
    kept = min(CACHE, takes.draws * nbytes(point)) if takes.numbers and n > rows else 0
    return holding(problem, point, inputs, takes, min(n, rows), tangents=via != "sample") + kept


def activations(problem: Problem, point: Point, inputs: Any, draws: int, n: int) -> int:
    """Bytes of activations while `draws` draws run on n inputs, of which those given are some, as `forward` runs them
    on a CPU."""
    rows = take(inputs, slice(0, FEW))
    count = len(leaves(rows)[0])
    with torch.no_grad(), Widths(count) as widths:
        problem.outputs(point.params, point.buffers, rows)
    width = widths.widest // count
    return LIVE * width * (n if n * draws <= 10 * FEW else max(1, min(n, CPU // max(width, 1))))
