"""Do confidences, intervals and sets hold what they promise."""

from __future__ import annotations

import math

import numpy as np

from . import measures
from .figure import Axis, Figure, Panel, Series, View
from .run import Run
from .words import in_units

FEW = 10  # examples in a bin, below which its accuracy means nothing


def reliability(run: Run) -> Figure | None:
    views = []
    diagonal = Series("line", [0, 1], [0, 1], "calibrated", tone="reference")
    x, y = Axis("confidence", percent=True, span=(0, 1)), Axis("accuracy", percent=True, span=(0, 1))
    together = []
    for row in run.rows:
        confidence, correct = row.joined("confidence"), row.joined("correct")
        if confidence is None or correct is None:
            continue
        found = measures.reliability(confidence, correct)
        n = found.size.sum()
        many = found.size >= FEW
        line = found.confidence[many].tolist(), found.accuracy[many].tolist()
        together.append(Series("line", *line, row.name, row=row.name))
        seeds = len(row.have("confidence", "correct"))  # they share their examples
        bounds = [measures.wilson(a, c / seeds) for a, c in zip(found.accuracy, found.size)]
        low, high = ([b[i] for b in bounds] for i in (0, 1))
        dots = Series(
            "points", found.confidence.tolist(), found.accuracy.tolist(), "accuracy", tone="first", low=low, high=high
        )
        shares = (found.size / n).tolist()
        bars = Series("bars", found.middle.tolist(), shares, "examples", tone="second", width=found.width)
        lower = Panel(x, Axis("examples", percent=True), [bars])
        note = f"Mean confidence {confidence.mean():.1%}, accuracy {correct.mean():.1%}."
        views.append(View(row.name, [Panel(x, y, [diagonal, dots]), lower], note))
    if together:
        views.insert(0, View("all rows", [Panel(x, y, [diagonal, *together])]))
    return Figure(
        "reliability",
        "Reliability",
        "Whether a confidence of 80 % is right 80 % of the time.",
        "Examples in 15 bins by confidence; a point is their accuracy. Below the dashed line: over-confident; above: "
        "too cautious. For one row, bars at points are 95 % intervals, and the second panel says how many examples a "
        f"bin has; with all rows together, bins of fewer than {FEW} are left out.",
        views,
        "row",
    )


def intervals(run: Run) -> Figure | None:
    levels = np.linspace(0, 1, 41)
    series = [Series("line", [0, 1], [0, 1], "calibrated", tone="reference")]
    for row in run.rows:
        pit = row.joined("pit")
        if pit is not None:
            inside = measures.interval_coverage(pit, levels).tolist()
            series.append(Series("line", levels.tolist(), inside, row.name, row=row.name))
    if len(series) == 1:
        return None
    x = Axis("level of the interval", percent=True, span=(0, 1))
    panel = Panel(x, Axis("targets inside", percent=True, span=(0, 1)), series)
    return Figure(
        "intervals",
        "Do intervals hold what they promise?",
        "The share of test targets inside central intervals of every level.",
        "On the dashed line the intervals are right. Below it they are too narrow (over-confident), above it too wide.",
        [View("", [panel])],
    )


def pit(run: Run) -> Figure | None:
    edges = np.linspace(0, 1, 21)
    views = []
    for row in run.rows:
        values = row.joined("pit")
        if values is None:
            continue
        share = measures.histogram(values, edges)
        n, flat = values.size / len(row.have("pit")), 1 / 20  # seeds share their examples
        half = 1.96 * math.sqrt(flat * (1 - flat) / n)
        low, high = [max(0.0, flat - half)] * 2, [flat + half] * 2
        level = Series("line", [0, 1], [flat, flat], "calibrated", tone="reference", low=low, high=high)
        bars = Series(
            "bars", ((edges[1:] + edges[:-1]) / 2).tolist(), share.tolist(), "targets", tone="first", width=flat
        )
        x = Axis("place of the target in its predictive distribution", span=(0, 1))
        views.append(View(row.name, [Panel(x, Axis("targets", percent=True), [bars, level])]))
    return Figure(
        "pit",
        "Where targets fall in what was predicted",
        "The probability integral transform: the predicted chance of a value below the target.",
        "Flat, within the grey band (95 % of bins, by chance alone), is calibrated. A valley: predictions too narrow; "
        "a hill: too wide; a slope: biased.",
        views,
        "row",
    )


SETS = {
    "scaled": "split conformal intervals, scaled by the predictive sd",
    "split": "split conformal intervals",
    "cqr": "conformalised quantiles (CQR)",
    "lac": "classes above a threshold (LAC)",
    "aps": "adaptive prediction sets (APS)",
    "raps": "regularised adaptive sets (RAPS)",
}


def sets(run: Run) -> Figure | None:
    found: dict[tuple[str, float], list[tuple[str, list[dict[str, float]]]]] = {}
    for row in run.rows:
        mine: dict[tuple[str, float], list[dict[str, float]]] = {}
        for record in row.records:
            for s in record.get("sets") or []:
                mine.setdefault((s["kind"], s["level"]), []).append(s)
        for key, many in mine.items():
            found.setdefault(key, []).append((row.name, many))
    views = []
    for (kind, level), entries in found.items():
        names = [name for name, _ in entries]
        mean = {
            name: {k: float(np.mean([s[k] for s in many])) for k in ("coverage", "low", "high", "size")}
            for name, many in entries
        }
        promised = Series("line", [level, level], [names[0], names[-1]], "promised", tone="reference")
        held = [
            Series("points", [m["coverage"]], [name], name, row=name, low=[m["low"]], high=[m["high"]])
            for name, m in mean.items()
        ]
        sizes = [Series("points", [m["size"]], [name], name, row=name) for name, m in mean.items()]
        width = (
            f"mean width{in_units(run.unit)}"
            if kind in ("scaled", "split", "cqr")
            else "mean number of classes in a set"
        )
        y = Axis("", words=names)
        panels = [Panel(Axis("coverage", percent=True), y, [promised, *held]), Panel(Axis(width), y, sizes)]
        views.append(View(f"{SETS.get(kind, kind)}, {level:.0%}", panels))
    return Figure(
        "sets",
        "Prediction sets with a guarantee",
        "How often conformal sets hold the target, and how large they are.",
        "The dashed line is what was promised; bars are 95 % intervals for the number of test examples. A bar that "
        "does not reach the line breaks the promise; among those that keep it, smaller sets say more.",
        views,
        "kind of set",
    )
