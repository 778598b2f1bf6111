"""The table: every row with its scores and costs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from .run import Row, Run
from .words import number


class Column(NamedTuple):
    key: str
    title: str
    tip: str  # what it is
    value: Callable[[Row], float]
    style: str = ""  # of format; none: in digits that count
    best: int = 0  # -1: lower is better, 1: higher is, 0: neither


class Cell(NamedTuple):
    value: float  # what it is sorted by; NaN: nothing
    text: str
    error: str  # one standard error over seeds; empty for fewer than three
    best: bool


def _score(key: str, title: str, tip: str, style: str = "", best: int = 0) -> Column:
    return Column(key, title, tip, lambda row: row.value(key), style, best)


def _epistemic(whole: str) -> Callable[[Row], float]:
    return lambda row: max(0.0, row.value("epistemic")) / row.value(whole) if row.value(whole) > 0 else math.nan


def _ood(row: Row) -> float:
    aurocs = [r["ood"]["auroc"] for r in row.records if (r.get("ood") or {}).get("auroc") is not None]
    return math.fsum(aurocs) / len(aurocs) if aurocs else math.nan


def _temperature(tip: str) -> Column:
    tip = f"{tip}, found on validation examples; of tempered rows"
    return Column("temperature", "T", tip, lambda row: row.temperature)


NLL = _score("nll", "NLL", "negative log likelihood of a test example in nats, lower is better", best=-1)
CLASSES = (
    NLL,
    _score("brier", "Brier", "squared distance of probabilities from the truth, lower is better", best=-1),
    _score("ece", "ECE", "distance between confidence and accuracy, in 15 bins, lower is better", best=-1),
    _score("accuracy", "accuracy", "share of test examples that are right", ".2%", 1),
    _score("auroc", "AUROC", "how well confidence separates right answers from wrong ones, 0.5 is chance", ".3f", 1),
    _score("aurc", "AURC", "area under the error rate over the share answered, lower is better", best=-1),
    Column("epistemic", "epistemic", "share of the entropy that is about the weights", _epistemic("entropy"), ".1%"),
    _temperature("what the logits of members are divided by"),
)
REAL = (
    NLL,
    _score("rmse", "RMSE", "root of the mean squared error, lower is better", best=-1),
    _score("crps", "CRPS", "continuous ranked probability score, lower is better", best=-1),
    _score("coverage_90", "in 90 %", "share of targets inside the 90 % interval", ".1%"),
    _score("width_90", "width", "mean width of the 90 % interval"),
    Column("epistemic", "epistemic", "share of the variance that is about the weights", _epistemic("variance"), ".1%"),
    _temperature("the factor on the spread of predictions"),
)
COSTS = (
    Column("members", "members", "networks of the ensemble", lambda row: float(row.members), ",.0f"),
    Column("ood", "OOD AUROC", "how well uncertainty separates other inputs from test examples", _ood, ".3f", 1),
    _score("steps", "steps", "training steps of one network that all members took together", ",.0f"),
    _score("fit_seconds", "train s", "seconds of training, all members", ",.1f"),
    _score("own_seconds", "own s", "seconds of training, without members shared with other rows", ",.1f"),
    _score("draws", "passes", "forward passes for a prediction", ",.0f"),
    _score("predict_seconds", "predict s", "seconds to predict the test part", ",.3f"),
)


def table(run: Run) -> tuple[list[Column], list[tuple[Row, list[Cell]]]]:
    """Columns that some row has a value for, and the cells of every row."""
    own = REAL if run.kind == "real" else CLASSES
    columns = [c for c in (*own, *COSTS) if any(math.isfinite(c.value(row)) for row in run.rows)]
    best = {c.key: _best(c, run.rows) for c in columns}
    return columns, [(row, [_cell(c, row, best[c.key]) for c in columns]) for row in run.rows]


def _best(column: Column, rows: list[Row]) -> float:
    values = [v for v in map(column.value, rows) if math.isfinite(v)]
    if column.best == 0 or len(set(values)) < 2:
        return math.nan
    return max(values) if column.best > 0 else min(values)


def _cell(column: Column, row: Row, best: float) -> Cell:
    value = column.value(row)
    if not math.isfinite(value):
        return Cell(math.nan, "-", "", False)
    text = format(value, column.style) if column.style else number(value)
    if column.key == "members":
        return Cell(value, row.members_in_words, "", False)
    error = row.error(column.key)
    if math.isnan(error) or column.key in ("steps", "draws", "epistemic"):
        return Cell(value, text, "", value == best)
    return Cell(value, text, f"{error:{column.style}}" if "%" in column.style else f"{error:.1g}", value == best)
