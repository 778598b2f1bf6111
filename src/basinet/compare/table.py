"""The numbers of a comparison as a person reads them: one row per method, means over seeds, differences, fronts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..metrics import bootstrap_difference
from ..pool.arrays import read_arrays
from .frame import Frame
from .references import MARK, STAR, starred
from .rows import CROSSED, TEMPERED
from .shift import shifted_means

LEVEL = 0.95  # of the intervals of differences
FEWEST = 10  # test examples: resamples of fewer show less than chance does
SEEDS = 3  # from which on a standard error over seeds is shown: two may be close by chance


def summarise(records: Sequence[dict[str, Any]], folder: Path, against: str | None = None) -> Frame:
    """One row per label: means of the scores over seeds, standard errors from three seeds on, and its NLL less that of
    the reference.

    The reference is the row of the lowest NLL, or the one named by `against`. Differences are paired: by example and,
    with several seeds, by seed; `low` and `high` are the bounds of a 95 % bootstrap interval over both. `front_fit` and
    `front_predict` say that no other row has a lower NLL at no more seconds of fitting, or of predicting.
    """
    labels = list(dict.fromkeys(r["method"] for r in records))
    of = {label: {r["seed"]: r for r in records if r["method"] == label} for label in labels}
    rows = [{"method": label, **_means(list(of[label].values()))} for label in labels]
    reference = _reference(rows, against)
    arrays = {label: {seed: _log_prob(folder, r) for seed, r in of[label].items()} for label in labels}
    for row in rows:
        row |= _difference(arrays[row["method"]], arrays[reference])
        row["reference"] = reference
    for name in ("fit", "predict"):
        points = [(_rounded(row), row[f"{name}_seconds"]) for row in rows]
        for row, point in zip(rows, points):
            row[f"front_{name}"] = _on_front(point, points)
    return Frame(rows)


def tidy(records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """One row per label and seed: who, the scores, the costs."""
    plain = ("fit_seconds", "own_seconds", "predict_seconds", "steps", "draws")
    return [
        {name: r[name] for name in ("data", "method", "members", "seed", "n_train", "n_test")}
        | {name: value for name, value in r["scores"].items() if name != "n"}
        | ({"ood_auroc": r["ood"]["auroc"]} if "ood" in r else {})
        | (shifted_means(r["shift"]) if "shift" in r else {})
        | {name: r[name] for name in plain}
        for r in records
    ]


def _means(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds; of scores the standard errors too, where there are several seeds."""
    first = records[0]
    averages: dict[str, Any] = {"members": first["members"], "seeds": len(records), "n": first["n_test"]}
    scores = {name: [r["scores"].get(name) for r in records] for name in first["scores"] if name != "n"}
    if "ood" in first:
        scores["ood_auroc"] = [r["ood"]["auroc"] for r in records]
    if "shift" in first:
        each = [shifted_means(r["shift"]) for r in records]
        scores |= {name: [means.get(name) for means in each] for name in each[0]}
    for name, values in scores.items():
        x = np.array([math.nan if v is None else v for v in values], float)
        averages[name] = float(x.mean())
        if len(x) >= SEEDS:
            averages[f"{name}_se"] = float(x.std(ddof=1) / len(x) ** 0.5)
    for name in ("fit_seconds", "own_seconds", "predict_seconds", "steps", "draws"):
        averages[name] = float(np.mean([r[name] for r in records]))
    return averages


def _reference(rows: Sequence[dict[str, Any]], against: str | None) -> str:
    if against is None:
        return min(rows, key=lambda r: (_rounded(r), r["fit_seconds"]))["method"]
    return next(row["method"] for row in rows if row["method"].lower() == against.lower())


def _rounded(row: dict[str, Any]) -> float:
    """The NLL but for rounding errors, so that of equal rows the cheaper is better; infinite where there is none."""
    return math.inf if math.isnan(row["nll"]) else round(row["nll"], 6)


def _log_prob(folder: Path, record: dict[str, Any]) -> Tensor:
    return torch.from_numpy(read_arrays(folder / record["arrays"])["log_prob"])


def _difference(own: dict[int, Tensor], reference: dict[int, Tensor]) -> dict[str, Any]:
    """NLL less the reference's, over the seeds that both have."""
    seeds = [seed for seed in own if seed in reference]
    if not seeds:
        return {"difference": None, "low": None, "high": None}
    first, second = (-torch.stack([x[seed] for seed in seeds]).double() for x in (own, reference))
    if first.shape[1] < FEWEST:
        return {"difference": float((first - second).mean()), "low": None, "high": None}
    interval = bootstrap_difference(first, second, LEVEL, runs=True)
    return {"difference": float(interval.difference), "low": float(interval.low), "high": float(interval.high)}


def _on_front(point: tuple[float, float], points: Sequence[tuple[float, float]]) -> bool:
    """Whether no other point is as good in both ways and better in one."""
    better = (p for p in points if p[0] <= point[0] and p[1] <= point[1] and p != point)
    return math.isfinite(point[0]) and not any(better)


Column = tuple[str, Callable[[dict[str, Any]], float], str]

COLUMNS: dict[str, tuple[Column, ...]] = {
    "classes": (
        ("Brier", lambda s: s["brier"], ".4f"),
        ("ECE", lambda s: s["ece"], ".4f"),
        ("accuracy", lambda s: s["accuracy"], ".1%"),
        ("epistemic", lambda s: s.get("epistemic", math.nan) / max(s["entropy"], 1e-12), ".1%"),
    ),
    "real": (
        ("RMSE", lambda s: s["rmse"], ".4f"),
        ("CRPS", lambda s: s["crps"], ".4f"),
        ("in 90%", lambda s: s["coverage_90"], ".1%"),
        ("epistemic", lambda s: s["epistemic"] / max(s["variance"], 1e-12), ".1%"),
    ),
}


def table(summary: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows that a person reads, the best first, from what `summarise` gives."""
    columns = list(COLUMNS["classes" if "brier" in summary[0] else "real"])
    if "ood_auroc" in summary[0]:
        columns.append(("OOD", lambda s: s.get("ood_auroc", math.nan), ".3f"))
    several = any("nll_se" in row for row in summary)
    heads = ["method", "members", "NLL" + " ± se" * several, "difference (95 %)", *(c[0] for c in columns)]
    heads += ["steps", "fit s", "predict", "passes"]
    rows = []
    for r in sorted(summary, key=lambda row: (_rounded(row), row["fit_seconds"])):
        nll = short(r["nll"], ".4f") + (f" ± {short(r['nll_se'], '.3f')}" if "nll_se" in r else "")
        values = [short(value(r), style) for _, value, style in columns]
        costs = [_cost(r["fit_seconds"], r["front_fit"]), _cost(r["predict_seconds"], r["front_predict"])]
        steps, passes = (f"{r[name]:,.0f}" for name in ("steps", "draws"))
        rows.append([starred(r["method"]), str(r["members"]), nll, _interval(r), *values, steps, *costs, passes])
    return heads, rows


def legend(summary: Sequence[dict[str, Any]]) -> str:
    """What the columns mean, in a few sentences."""
    first = summary[0]
    runs = f"{first['seeds']} seeds and " if first["seeds"] > 1 else ""
    pairs = (
        f"Difference: NLL less that of {starred(first['reference'])}, paired over {runs}n = {first['n']:,} test "
        "examples, with its bootstrap interval. "
    )
    costs = (
        "Steps: training steps of all members together. Seconds: to train all members from scratch, and to predict the "
        "test part; • marks rows that no other beats in both NLL and seconds. Passes: forward passes of the network "
        "per prediction."
    )
    if "brier" in first:
        scores = "NLL, Brier (summed over classes) and ECE (15 bins): lower is better. "
        share = "Epistemic: the share of uncertainty that is about the weights. "
    else:
        scores = "NLL, RMSE and CRPS: lower is better; in 90%: the share of targets inside the 90% interval. "
        share = "Epistemic: the share of variance that is about the weights. "
    if "ood_auroc" in first:
        doubt = "entropy" if "brier" in first else "variance"
        share += f"OOD: AUROC with which the {doubt} separates other inputs from test examples. "
    star = f" {STAR.strip()} is not a posterior, but a simple model to compare the others with."
    referred = any(row["method"].endswith(MARK) for row in summary)
    return scores + share + pairs + costs + star * referred + _tempering(summary)


def _tempering(summary: Sequence[dict[str, Any]]) -> str:
    """What tempered and crossed rows are, if there are any."""

    def has(word: str) -> bool:
        return any(row["method"].startswith(f"{word} ") for row in summary)

    classes = "brier" in summary[0]
    how = "logits divided by a temperature" if classes else "the spread multiplied by a factor"
    tempering = f" Tempered: {how}, found on validation examples."
    also = "" if classes else "tempered, and "
    own = f" Crossed: {also}each member is validated on rows of its own and trains on the others."
    return tempering * (has(TEMPERED) or (has(CROSSED) and not classes)) + own * has(CROSSED)


def unfinished(records: Sequence[dict[str, Any]]) -> str:
    """A line on the rows whose training had not ended; empty where all had, or it is not known."""
    falling = {r["method"]: r["training"] for r in records if (r.get("training") or {}).get("falling")}
    if not falling:
        return ""
    drop = max(training["drop"] for training in falling.values())
    return (
        f"Training had not ended: in its second half the loss still fell, by up to {drop:.2g} nats per example beyond "
        f"what the shrinking step explains, for {', '.join(falling)}. These scores reflect how long rows were "
        "trained as much as how good they are: train longer (more epochs) before you choose."
    )


def _interval(row: dict[str, Any]) -> str:
    if row["method"] == row["reference"]:
        return "reference"
    if row["difference"] is None or math.isnan(row["difference"]):
        return "-"
    bounds = "" if row["low"] is None else f" ({short(row['low'], '.3f')}, {short(row['high'], '.3f')})"
    return f"{short(row['difference'], '+.3f')}{bounds}"


def _cost(seconds: float, front: bool) -> str:
    return short(seconds, ".3f") + (" •" if front else "  ")


def short(value: float | None, style: str) -> str:
    """A number in its column's style, with fewer decimals where it is large."""
    if value is None or math.isnan(value):
        return "-"
    if style.endswith("f") and abs(value) >= 1:
        sign, digits = "+" * style.startswith("+"), int(style[-2])
        left = digits - len(str(int(abs(value)))) + (digits > 3)
        shown = format(value, f"{sign},.{max(left, 0)}f" if abs(value) < 1e6 else f"{sign}.2g")
    else:
        shown = format(value, style)
    return shown.replace("0.", ".", 1) if shown.lstrip("+-").startswith("0.") else shown
