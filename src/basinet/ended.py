"""Whether training had ended: a test of the curves that members left, not a look at them.

A loss falls for two reasons: parameters still move to where it is lower, and the step size shrinks, so that they swing
less around where they are. More training continues only the first. Over the second half of the steps

    loss = a + b (learning rate) + c (sum of learning rates so far) + noise

is fitted by least squares, and training had not ended if c is significantly below zero and moved the loss by more than
can be neglected. The curve is the validation NLL if there is one: a training loss may fall forever, while the network
memorises its examples.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from .engine import GradientMethod, Method

LITTLE = 0.01  # nats per example that training brought in its second half: less is neglected
Z = 3.3  # standard errors of c below zero: chance alone is beyond it once in 2,000 times
FEWEST = 8  # reports in the second half, below which nothing can be said
MOST = 20  # bins of reports: neighbouring ones are alike, and would count twice


def training_of(curves: dict[str, list[Any]], recipe: Method, steps: int) -> dict[str, Any] | None:
    """What a record says about a training of this many planned steps; None if the curves are too short to judge."""
    which = "val_nll" if curves.get("val_nll") else "loss"
    members = [
        pair for one in zip(curves.get("step", []), curves.get(which, [])) if (pair := _second_half(*one)) is not None
    ]
    lengths = {len(step) for step, _ in members}
    if not members or steps < 1 or len(lengths) != 1:  # members that stopped at different steps stopped by themselves
        return None
    clock, loss = members[0][0], np.mean([values for _, values in members], axis=0)
    if len(clock) < FEWEST:
        return None
    drop, error = _drift(clock, loss, _rates(recipe, steps))
    falling = drop > LITTLE and drop > Z * error and not (which == "val_nll" and _past_its_best(curves[which]))
    return {"curve": which, "falling": bool(falling), "drop": drop, "error": error, "steps": steps}


def fall_of(curves: Mapping[str, Sequence[Any]], recipe: Method, planned: int) -> float:
    """By how many nats per example one member's training still brought its loss down, over the second half of the steps
    that were planned; 0 where that is little, or chance, or where the member stopped before."""
    steps = curves.get("step") or ()
    if not steps or steps[-1] < planned:
        return 0.0
    training = training_of({name: [list(values)] for name, values in curves.items()}, recipe, planned)
    return training["drop"] if training is not None and training["falling"] else 0.0


def falling_line(falls: Sequence[float], planned: int) -> str:
    """The warning about members whose training had not ended; `falls` is by how much each still improved."""
    count = sum(fall > 0 for fall in falls)
    who = "training" if len(falls) == 1 else f"{count} of {len(falls)} members"
    return (
        f"{who} still improved over the second half of the {planned:,} planned steps, by {max(falls):.2g} nats per "
        "example: more epochs may help"
    )


def stopped_line(curves: Sequence[Mapping[str, Sequence[Any]]], planned: int) -> str:
    """When members that end at their best stopped, and which of their states that is; empty where nothing judged
    them."""
    judged = [(one["step"], one["val_nll"]) for one in curves if one.get("step") and one.get("val_nll")]
    finite = [[(nll, step) for step, nll in zip(*pair) if nll is not None and nll == nll] for pair in judged]
    best = [int(min(seen)[1]) for seen in finite if seen]
    if not best:
        return ""
    ends = [int(steps[-1]) for steps, _ in judged]
    who, states = ("training", "its state of step") if len(curves) == 1 else ("members", "their states of steps")
    return (
        f"{who} stopped after {_range(ends)} of {planned:,} steps; {states} {_range(best)} "
        f"{'is' if len(curves) == 1 else 'are'} kept, where the validation NLL was lowest"
    )


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _past_its_best(curves: Sequence[Any]) -> bool:
    """Whether no member was better in the last quarter of its reports than before: a validation NLL that rose far and
    falls again, as the step size shrinks, asks for no more training."""
    for one in curves:
        cut = 3 * len(one) // 4
        before, after = ([v for v in part if v is not None] for part in (one[:cut], one[cut:]))
        if not before or not after or min(after) < min(before):
            return False
    return True


def _second_half(step: Any, values: Any) -> tuple[np.ndarray, np.ndarray] | None:
    clock, loss = (np.array([math.nan if v is None else v for v in x], float) for x in (step, values))
    if clock.shape != loss.shape or not len(clock) or not (np.isfinite(clock) & np.isfinite(loss)).all():
        return None
    late = clock > 0.5 * clock[-1]
    return clock[late], loss[late]


def _rates(recipe: Method, steps: int) -> np.ndarray:
    """The learning rate of each step; ones where the method has none."""
    if not isinstance(recipe, GradientMethod):
        return np.ones(steps)
    try:
        rates = torch.as_tensor(recipe.optimizer.learning_rate(torch.arange(steps), steps), dtype=torch.float64)
    except (TypeError, ValueError, AttributeError):  # one that depends on more than the step
        return np.ones(steps)
    return np.broadcast_to(rates.numpy(), (steps,))


def _drift(clock: np.ndarray, loss: np.ndarray, rates: np.ndarray) -> tuple[float, float]:
    """By how much the sum of learning rates lowered the loss, other things equal, and its standard error."""
    place = np.minimum(clock.astype(int), len(rates)) - 1
    rate, way = rates[place], np.cumsum(rates)[place]
    bins = np.arange(len(clock)) * min(MOST, len(clock)) // len(clock)
    size = np.bincount(bins)
    rate, way, loss = (np.bincount(bins, x) / size for x in (rate, way, loss))
    length = way[-1] - way[0]
    if length <= 0:
        return 0.0, math.inf
    columns = [np.ones(len(way)), (way - way[0]) / length]
    if np.ptp(rate) > 1e-3 * np.abs(rate).max():
        columns.append(rate / np.abs(rate).max())
    x = np.stack(columns, 1)
    fitted, *_ = np.linalg.lstsq(x, loss, rcond=None)
    rest = loss - x @ fitted
    variance = rest @ rest / max(1, len(loss) - x.shape[1])
    inverse = np.linalg.pinv(x.T @ x)
    return float(-fitted[1]), float(math.sqrt(max(variance * inverse[1, 1], 0.0)))
