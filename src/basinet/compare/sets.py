"""Conformal sets of a posterior, calibrated on the validation part: how often they contain the truth of the test
part, and how large they are. A posterior whose method used the validation part has none, since
the promise would not hold."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..calibrate.conformal import conformal, kinds_of
from ..calibrate.conformal_sets import OF_CLASSES, needed, promised
from ..data import Data
from ..data.datasets import Splits
from ..engine import Method
from ..engine.method import chooses_by_val
from ..posterior import Posterior
from ..predict import ClassPredictive, NumberPredictive, Predictive
from .rows import base_of
from .units import Unit

EXAMPLES = 1000  # predicted at a time
LEVEL = 0.9
FEWEST = 5  # times what a level needs: a fifth of the examples chooses the penalty of raps


def why_none(looked: bool, posterior: Posterior, splits: Splits) -> str:
    """Why a posterior has no sets, whose method `looked` at the validation part or did not; empty where it has."""
    val, test = splits.val, splits.test
    if not kinds_of(posterior):
        return "its targets are labels"
    if looked:
        return "it was tuned on the validation examples, which then cannot calibrate"
    if val is None or val.n < FEWEST * needed(LEVEL):
        return f"fewer than {FEWEST * needed(LEVEL)} validation examples are too few to calibrate"
    if test.targets.dim() > 2 or test.weights is not None:
        return "its targets are fields, or weighted"
    return ""


def sets(posterior: Posterior, splits: Splits, unit: Unit) -> list[dict[str, Any]]:
    """One entry per kind: coverage with a 95 % interval (of calibration and test examples together), and mean size."""
    val, test = splits.val, splits.test
    entries = []
    for kind in kinds_of(posterior):
        entries.append(held_by(conformal(posterior, val, kind, LEVEL), test, unit))
    return entries


def held_by(calibrated: Posterior, test: Data, unit: Unit) -> dict[str, Any]:
    """How often the sets of a calibrated posterior contain the truth of test examples, and their mean size."""
    rule = calibrated.conformal
    assert rule is not None
    held, sizes = [], []
    for begin in range(0, test.n, EXAMPLES):
        piece = test.take(slice(begin, begin + EXAMPLES))
        inside, size = _of(calibrated.predict(piece.inputs), piece.targets)
        held.append(inside)
        sizes.append(size)
    coverage = float(torch.cat(held).double().mean())
    error = 1.96 * promised(rule.n, test.n, rule.level)[1]
    size = unit.power(torch.cat(sizes).double().mean(), 0 if rule.kind in OF_CLASSES else 1)
    entry = {"kind": rule.kind, "level": rule.level, "coverage": coverage, "size": float(size), "n": rule.n}
    return entry | {"low": max(0.0, coverage - error), "high": min(1.0, coverage + error)}


def validation(splits: Splits) -> tuple[Data, Data | None]:
    """The validation examples by which methods stop and tune, and others that calibrate conformal sets: half of them
    each, or None where that would be too few."""
    if splits.val.n < 2 * FEWEST * needed(LEVEL):
        return splits.val, None
    tuning, held = splits.val.split(0.5, 0.5)
    return tuning, held


def looks_at_val(method: Method | None, started: bool = False) -> bool:
    """Whether a method, or what it starts from unless it was `started` from something else, stops or tunes by
    validation examples, which then cannot calibrate anything."""
    if method is None:
        return False
    return chooses_by_val(method) or (not started and looks_at_val(base_of(method)))


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
