"""The validation NLL of posteriors, predicted as they will be later on.

    1/N sum_n w_n (-log 1/S sum_s prod_e p(y_ne | x_n, theta_s)^(w_ne / w_n)),   w_n = max_e w_ne

over the N examples that have weight. Weights of validation data count as those of training data do: they multiply the
log likelihood, and those of zero are a mask. Weights of examples stand outside of the average over draws, as if an
example were there so often.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import tree_map
from ..data import Data, Stream, examples, pieces, some, weighed
from ..families import Family
from ..problem import Problem
from .draws import Draws
from .predictive import Predictive
from .via import Predictor, Via, assembled, side_by_side

ROWS = 1000  # examples at a time, at most
NUMBERS = 2**22  # outputs of all draws or families that are held at a time, if that is not less than one example's
LOSS = 0.01  # nats per example by which a posterior may be worse than its start before that is said
SEEN, ROOM = 200, 0.03  # without validation data: training examples that are looked at, and nats that each may lose


def nll(
    families: Sequence[Family], problem: Problem, val: Data | Stream, via: Via, samples: int, noise: Noise
) -> list[float]:
    """The mean validation NLL of each of some families of one member, with the same draws for all. In closed form they
    must have one mean."""
    key = noise.split("validation").key.unsqueeze(0)
    alone = [tree_map(lambda x: x.unsqueeze(0), family) for family in families]  # members of their own: no copies
    first, few = families[0].mean(), tree_map(lambda x: x[:1], some(val).inputs)
    with torch.no_grad():
        outputs = problem.outputs(first.params, first.buffers, few)[0].numel()
    rows = at_once(outputs, max(samples, len(families)))
    again = isinstance(val, Stream) or val.n > rows  # draws are needed more than once
    predictors = [Predictor(Draws(problem, family, key, samples), via, keep=again) for family in alone]
    totals, seen, count = [0.0] * len(families), 0, 0
    for piece in pieces(val, rows):
        exponents, weights = weighed(piece)
        for f, predicted in enumerate(side_by_side(predictors, piece.inputs, begin=seen)):
            predictive = assembled([predicted], problem.likelihood, None)
            totals[f] -= log_likelihood(predictive, piece.targets, exponents, weights)
        seen, count = seen + len(piece.targets), count + examples(piece)
    return [total / count for total in totals]


def at_once(outputs: int, sets: int) -> int:
    """Examples at a time, where each has `outputs` outputs in `sets` draws or families."""
    return max(1, min(ROWS, NUMBERS // max(1, outputs * sets)))


def log_likelihood(
    predictive: Predictive, targets: Tensor, exponents: Tensor | None = None, weights: Tensor | None = None
) -> float:
    """The sum over examples, with their weights (B,)."""
    each = predictive.log_prob(targets, exponents).double()
    return float((each if weights is None else counting(each, weights)).sum())


def counting(each: Tensor, weights: Tensor) -> Tensor:
    """Log densities (..., B) times the weights of examples; nothing where an example has none, whatever its density."""
    weights = weights.to(each)
    return (each * weights).where(weights > 0, 0.0)


def few_of(data: Data | Stream) -> Data:
    """Some training data, to look at where there are no validation data."""
    few = some(data)
    return few.take(slice(0, SEEN)) if len(few.targets) > SEEN else few


def worse(own: float, start: float, validated: bool, advice: str) -> tuple[str, ...]:
    """A line that a posterior is worse than what it started from, where it is, by the NLL of both."""
    if own <= start + (LOSS if validated else ROOM):
        return ()
    which = "worse than its start: validation" if validated else "likely worse than its start: training"
    comparison = f"{which} examples have NLL {own:.4g} each, {start:.4g} at the mode where it started"
    return (f"{comparison}: {advice}" if advice else comparison,)
