"""Conformal sets of a posterior, calibrated on the validation part: how often they hold the truth of the test part, and
how large they are. A posterior whose method looked at the validation part has none: the promise would not hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..conformal import conformal, kinds_of
from ..data.datasets import Splits
from ..engine import Method
from ..engine.method import chooses_by_val
from ..posterior import Posterior
from ..predict import ClassPredictive, NumberPredictive, Predictive
from ..predict.conformal import OF_CLASSES, needed, promised
from .units import Unit

EXAMPLES = 1000  # predicted at a time
LEVEL = 0.9
FEWEST = 5  # times what a level needs: a fifth of the examples chooses the penalty of raps


def sets(posterior: Posterior, method: Method | None, splits: Splits, unit: Unit) -> list[dict[str, Any]]:
    """One entry a kind: coverage with a 95 % interval (of calibration and test examples together), and mean size."""
    val, test = splits.val, splits.test
    looked = method is not None and looks_at_val(method)
    if looked or val is None or val.n < FEWEST * needed(LEVEL) or test.targets.dim() > 2 or test.weights is not None:
        return []
    found = []
    for kind in kinds_of(posterior):
        calibrated = conformal(posterior, val, kind, LEVEL)
        assert calibrated.conformal is not None
        held, sizes = [], []
        for begin in range(0, test.n, EXAMPLES):
            piece = test.take(slice(begin, begin + EXAMPLES))
            inside, size = _of(calibrated.predict(piece.inputs), piece.targets)
            held.append(inside)
            sizes.append(size)
        coverage, n = float(torch.cat(held).double().mean()), calibrated.conformal.n
        error = 1.96 * promised(n, test.n, LEVEL)[1]
        size = unit.power(torch.cat(sizes).double().mean(), 0 if kind in OF_CLASSES else 1)
        told = {"kind": kind, "level": LEVEL, "coverage": coverage, "size": float(size), "n": n}
        found.append(told | {"low": max(0.0, coverage - error), "high": min(1.0, coverage + error)})
    return found


def looks_at_val(method: Method) -> bool:
    """Whether a method stops or tunes by validation examples, which then cannot calibrate anything."""
    return chooses_by_val(method)


def _of(predictive: Predictive, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Whether each example's truth is held, and how large its set is."""
    targets = targets.to(predictive.outputs.device)
    if isinstance(predictive, ClassPredictive):
        chosen = predictive.conformal_set
        return chosen.gather(-1, targets[:, None])[:, 0], chosen.sum(-1).double()
    assert isinstance(predictive, NumberPredictive)
    low, high = predictive.conformal_interval
    y = predictive.aligned(targets)
    return ((low <= y) & (y <= high)).reshape(len(y), -1).all(1), (high - low).reshape(len(y), -1).mean(1)
