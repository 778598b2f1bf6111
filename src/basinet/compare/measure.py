"""What one posterior is worth on a test part: scores, arrays per example, scores against the number of members.

Everything comes from one pass of predictions in chunks, so that memory grows neither with members nor with classes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .. import metrics
from ..data import Data, counted
from ..data.datasets import Splits
from ..posterior import Posterior
from ..predict import ClassPredictive, LabelPredictive, NumberPredictive, Predictive, crps
from ..scoring import LEVEL, pieces_of, predicted, summary_of
from .shift import Shift, auroc_of, doubt_of
from .sizes import Sizes
from .units import Unit

TABLE = 2_000_000  # probabilities of an array that holds all of them; above it the TOP largest of an example are kept
TOP = 5
EXAMPLES = 10_000  # that a function predicts at once

Chunk = tuple[Predictive, Tensor, Tensor | None]
Chunks = Callable[[Data], Iterator[Chunk]]


class Measured(NamedTuple):
    """What `measure` found."""

    scores: dict[str, float]
    arrays: dict[str, np.ndarray]  # an example each, float32 or bool
    curve: list[dict[str, float]]  # scores against the number of members; empty for one member
    ood: dict[str, Any] | None  # name, auroc, n
    seconds: float  # of predicting the test part
    draws: int  # forward passes a prediction takes: members times samples
    shift: dict[str, Any] | None = None  # how it holds up under corruptions, where that was asked for


def measure(posterior: Posterior, splits: Splits, unit: Unit, seed: int = 0, shift: Shift | None = None) -> Measured:
    """Predicts the test part, and what is out of distribution where the splits have it; and the test part under the
    corruptions of `shift`. A temperature of all members together is not that of fewer, so there are no scores against
    their number then."""
    whole = posterior.temperature is not None and posterior.temperature.of != "members"

    def chunks(data: Data) -> Iterator[Chunk]:
        return predicted(posterior, data, None, None, seed)

    return _measured(chunks, 1 if whole else len(posterior), splits, unit, seed, shift)


def measure_function(
    predict: Callable[[Any], Predictive], splits: Splits, unit: Unit, seed: int = 0, shift: Shift | None = None
) -> Measured:
    """The same of a function from inputs to predictions."""

    def chunks(data: Data) -> Iterator[Chunk]:
        for begin in range(0, data.n, EXAMPLES):
            piece = data.take(slice(begin, begin + EXAMPLES))
            yield predict(piece.inputs), piece.targets, counted(piece)

    return _measured(chunks, 1, splits, unit, seed, shift)


def _measured(chunks_of: Chunks, members: int, splits: Splits, unit: Unit, seed: int, shift: Shift | None) -> Measured:
    sizes = Sizes(members, splits.test.n, unit, seed)
    pieces, rows, seconds, draws = [], [], 0.0, 1
    chunks = chunks_of(splits.test)
    while True:
        began = time.perf_counter()
        chunk = next(chunks, None)
        seconds += time.perf_counter() - began
        if chunk is None:
            break
        predictive, targets, mask = chunk
        draws = predictive.outputs.shape[0] * predictive.outputs.shape[1]
        pieces.append(pieces_of(predictive, targets, mask))
        rows.append(_arrays(predictive, targets, mask, splits.test.n, unit))
        sizes.add(predictive, targets)
    arrays = {name: np.concatenate([row[name] for row in rows]) for name in rows[0]}
    scores = unit.scores(summary_of(pieces, seed=seed))
    ood = None
    if splits.ood is not None:
        outside, about_weights = _outside(chunks_of(splits.ood), sizes, unit)
        arrays["ood_uncertainty"] = outside
        area = metrics.auroc(torch.from_numpy(arrays["test_uncertainty"]), torch.from_numpy(outside))
        inside = sum(arrays[part].astype(np.float64) for part in ("between", "within") if part in arrays)
        epistemic = auroc_of(np.asarray(inside, np.float32), about_weights.astype(np.float32))
        name = splits.ood_name or f"{splits.name} ood"
        ood = {"name": name, "auroc": float(area), "auroc_epistemic": epistemic, "n": len(outside)}
    shifted = None if shift is None else shift.measure(chunks_of, unit, seed)
    return Measured(scores, arrays, sizes.rows(), ood, seconds, draws, shifted)


def _outside(chunks: Iterator[Chunk], sizes: Sizes, unit: Unit) -> tuple[np.ndarray, np.ndarray]:
    """The uncertainty of each input that is out of distribution, and what of it is about the weights."""
    totals, about_weights = [], []
    for predictive, _, _ in chunks:
        totals.append(_float(unit.power(_total(predictive), 2)))
        about_weights.append(unit.sd**2 * doubt_of(predictive)["epistemic"])
        sizes.add_outside(predictive)
    return np.concatenate(totals), np.concatenate(about_weights)


def _arrays(predictive: Predictive, targets: Tensor, mask: Tensor | None, n: int, unit: Unit) -> dict[str, np.ndarray]:
    """One number per example of the chunk, in units of the target; means over the elements of a target."""
    targets = targets.to(predictive.outputs.device)
    total = unit.power(_total(predictive), 2)
    arrays = {"log_prob": _float(predictive.log_prob(targets, mask) - math.log(unit.sd))}
    for name in predictive.parts:
        arrays[name] = _float(unit.power(_each(getattr(predictive, name)), 2))
    arrays |= {"total": _float(total), "test_uncertainty": _float(total)}
    if isinstance(predictive, ClassPredictive):
        return arrays | _of_classes(predictive.probs, targets, n)
    if isinstance(predictive, LabelPredictive):
        return arrays | _of_labels(predictive.probs, targets, n)
    assert isinstance(predictive, NumberPredictive)
    y = predictive.aligned(targets)
    low, high = predictive.interval(LEVEL)
    numbers = {
        "mean": unit.back(predictive.mean),
        "sd": unit.power(predictive.variance.sqrt(), 1),
        "low90": unit.back(low),
        "high90": unit.back(high),
        "pit": predictive.cdf(y),
        "crps": unit.power(crps(predictive, y), 1),
    }
    return arrays | {name: _float(x.reshape(len(x), -1).squeeze(1)) for name, x in numbers.items()}


def _of_classes(probs: Tensor, targets: Tensor, n: int) -> dict[str, np.ndarray]:
    best, top = probs.max(-1)
    arrays = {"confidence": _float(_each(best)), "correct": _flags(top == targets)}
    if probs.dim() > 2:  # a field of classes per example
        return arrays
    if n * probs.shape[-1] <= TABLE:
        return arrays | {"probs": _float(probs)}
    largest, classes = probs.topk(min(TOP, probs.shape[-1]), -1)
    return arrays | {"top_probs": _float(largest), "top_classes": classes.to(torch.int32).cpu().numpy()}


def _of_labels(probs: Tensor, targets: Tensor, n: int) -> dict[str, np.ndarray]:
    """Confidence is that of the labels together, as if they were independent; correct, that all of them are right."""
    right = (probs > 0.5) == targets.reshape(probs.shape).bool()
    together = torch.maximum(probs, 1 - probs).reshape(len(probs), -1).prod(1)
    arrays = {"confidence": _float(together), "correct": _flags(right)}
    return arrays | ({"probs": _float(probs.reshape(len(probs), -1))} if n * probs[0].numel() <= TABLE else {})


def _total(predictive: Predictive) -> Tensor:
    """The whole uncertainty of each example: entropy, or variance."""
    if isinstance(predictive, (ClassPredictive, LabelPredictive)):
        return _each(predictive.entropy)
    assert isinstance(predictive, NumberPredictive)
    return _each(predictive.variance)


def _each(x: Tensor) -> Tensor:
    """(B, ...) as the mean of each example, (B,)."""
    return x.reshape(len(x), -1).mean(1)


def _float(x: Tensor) -> np.ndarray:
    return x.detach().float().cpu().numpy()


def _flags(x: Tensor) -> np.ndarray:
    return x.reshape(len(x), -1).all(1).cpu().numpy()
