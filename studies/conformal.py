"""Do conformal sets and intervals contain the truth as often as they promise, and what do they cost in size?

Ensembles of five on 20 splits of digits, breast cancer and diabetes into 60 % to train, 20 % to calibrate and 20 % to
test, at a level of 0.9. Beside each kind: what the predictive itself says without calibration (its central interval, or
the fewest classes that have the level in probability). Of classes the exact sets, which may be empty, and those
with the most probable class at least, which may hold more than is promised. That is k / (n + 1) of the truths, k =
ceil((n + 1) level); where nothing ties, the share in a split is beta-binomial around it. `expected` and `sd` are the
mean and standard deviation of the mean over splits, taken as independent (they share examples), `z` how far off it is.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from basinet import MAP, Data, Posterior, Problem, conformal, datasets, fit, likelihoods
from basinet.calibrate.conformal_sets import OF_CLASSES, OF_NUMBERS, promised
from basinet.networks import MLP
from basinet.predict import ClassPredictive, NumberPredictive

from . import Options, Say, append_record, did_you_mean

NARROWED_BY = ("sets", "splits", "examples")
SETS = ("digits", "breast_cancer", "diabetes")
SPLITS = 20
MEMBERS = 5
EPOCHS = 30
LEVEL = 0.9


class _Coverage(NamedTuple):
    """What a kind of set did on the test examples of a split."""

    held: float  # the share of truths inside
    size: float  # classes in a set, or width of an interval in standard deviations of the target
    n: int  # calibration examples; 0: none
    empty: float = 0.0  # the share of sets without a class


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Runs the study and returns its records, which are also in `options.out`/conformal.jsonl."""
    unknown = [name for name in options.sets if name not in SETS]
    if unknown:
        raise ValueError(f"unknown data set {unknown[0]!r}.{did_you_mean(unknown[0], SETS)}")
    records = []
    for name in options.sets or SETS:
        results: dict[str, list[_Coverage]] = {}
        for split in range(options.splits or SPLITS):
            posterior, val, test = _fitted(options, name, options.seed + split)
            for kind, one in _sets(posterior, val, test):
                results.setdefault(kind, []).append(one)
        for kind, rows in results.items():
            place = {"study": "conformal", "data": name, "kind": kind, "level": LEVEL, "seed": options.seed}
            records.append(append_record(options.out / "conformal.jsonl", place | _summary(rows, test.n)))
            say(f"{name:14} {_said(records[-1])}")
    return records


def _fitted(options: Options, name: str, seed: int) -> tuple[Posterior, Data, Data]:
    """An ensemble trained on one split, its calibration and its test examples."""
    splits = datasets.load(name, seed=seed)
    inputs, classes = splits.train.inputs.shape[1], splits.classes
    if classes is None:
        problem = Problem(lambda: MLP(inputs, 1, hidden=(50,)), likelihoods.Gaussian(noise=0.5, learned=True))
    else:
        problem = Problem(lambda: MLP(inputs, classes, hidden=(100,)), likelihoods.Categorical())
    posterior = fit(
        MAP(epochs=EPOCHS),
        problem,
        options.cut(splits.train),
        members=MEMBERS,
        seed=seed,
        pool=options.out / f"pool-{name}",
        engine=options.engine(),
    )
    return posterior, options.cut(splits.val), options.cut(splits.test)


def _sets(posterior: Posterior, val: Data, test: Data) -> Iterator[tuple[str, _Coverage]]:
    """Every kind of set that fits, and the predictive's own."""
    plain = posterior.predict(test.inputs)
    if isinstance(plain, NumberPredictive):
        yield "uncalibrated", _of_interval(plain.interval(LEVEL), test.targets, 0)
        for kind in OF_NUMBERS:
            calibrated = conformal(posterior, val, kind, LEVEL)
            predictive = calibrated.predict(test.inputs)
            assert isinstance(predictive, NumberPredictive) and calibrated.conformal is not None
            yield kind, _of_interval(predictive.conformal_interval, test.targets, calibrated.conformal.n)
        return
    assert isinstance(plain, ClassPredictive)
    ranked, order = plain.probs.sort(-1, descending=True)
    fewest = torch.zeros_like(plain.probs, dtype=torch.bool).scatter(-1, order, ranked.cumsum(-1) - ranked < LEVEL)
    yield "uncalibrated", _of_set(fewest, test.targets, 0)
    for kind in OF_CLASSES:
        for empty in (True, False):
            calibrated = conformal(posterior, val, kind, LEVEL, empty=empty)
            chosen = calibrated.predict(test.inputs)
            assert isinstance(chosen, ClassPredictive) and calibrated.conformal is not None
            label = f"{kind}, exact" if empty else kind
            yield label, _of_set(chosen.conformal_set, test.targets, calibrated.conformal.n)


def _of_interval(edges: tuple[Tensor, Tensor], targets: Tensor, n: int) -> _Coverage:
    low, high = edges
    targets = targets.to(low.device)
    return _Coverage(float(((low <= targets) & (targets <= high)).double().mean()), float((high - low).mean()), n)


def _of_set(sets: Tensor, targets: Tensor, n: int) -> _Coverage:
    inside = sets.gather(-1, targets.to(sets.device)[:, None])
    count = sets.sum(-1).double()
    return _Coverage(float(inside.double().mean()), float(count.mean()), n, float((count == 0).double().mean()))


def _summary(rows: list[_Coverage], n_test: int) -> dict[str, Any]:
    splits, n = len(rows), rows[0].n
    mean = {what: math.fsum(getattr(row, what) for row in rows) / splits for what in ("held", "size", "empty")}
    summary = {"splits": splits, "n": n, "n_test": n_test, **mean, "each": [row.held for row in rows]}
    if n:
        expected, sd = promised(n, n_test, LEVEL)
        sd /= math.sqrt(splits)
        summary |= {"expected": expected, "sd": sd, "z": (mean["held"] - expected) / sd}
    return summary


def _said(record: dict[str, Any]) -> str:
    said = f"{record['kind']:13} holds {record['held']:.3f}"
    if "z" in record:
        low, high = (record["expected"] + side * 3 * record["sd"] for side in (-1, 1))
        said += f" (promised {record['expected']:.3f}, within {low:.3f} to {high:.3f} at 3 sd; z = {record['z']:+.1f})"
    return f"{said}  size {record['size']:.2f}" + (f"  empty {record['empty']:.3f}" if record["empty"] else "")
