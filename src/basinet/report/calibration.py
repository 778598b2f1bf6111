"""Do confidences, intervals and sets keep their promises?"""

from __future__ import annotations

import math

import numpy as np

from . import measures
from .figure import Axis, Figure, Panel, Series, View
from .run import Run
from .words import in_units, listed

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
        bins = measures.reliability(confidence, correct)
        n = bins.size.sum()
        many = bins.size >= FEW
        line = bins.confidence[many].tolist(), bins.accuracy[many].tolist()
        together.append(Series("line", *line, row.name, row=row.name))
        seeds = len(row.have("confidence", "correct"))  # they share their examples
        bounds = [measures.wilson(a, c / seeds) for a, c in zip(bins.accuracy, bins.size)]
        low, high = ([b[i] for b in bounds] for i in (0, 1))
        dots = Series(
            "points", bins.confidence.tolist(), bins.accuracy.tolist(), "accuracy", tone="first", low=low, high=high
        )
        shares = (bins.size / n).tolist()
        bars = Series("bars", bins.middle.tolist(), shares, "examples", tone="second", width=bins.width)
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
        f"too cautious. For a single row, bars are 95 % intervals and the second panel counts the examples in each "
        f"bin; for all rows together, bins with fewer than {FEW} examples are left out.",
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
        "Do intervals contain as many targets as they should?",
        "The share of test targets inside central intervals of every level.",
        "On the dashed line intervals have the right width. Below it they are too narrow (over-confident), above it "
        "too wide.",
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
        x = Axis("position of the target in its predictive distribution", span=(0, 1))
        views.append(View(row.name, [Panel(x, Axis("targets", percent=True), [bars, level])]))
    return Figure(
        "pit",
        "Where targets fall in their predictive distributions",
        "The probability integral transform: the predicted chance of a value below the target.",
        "A flat histogram, within the grey band (95 % of bins by chance), is calibrated. A valley means predictions "
        "are too narrow, a hill too wide, a slope biased.",
        views,
        "row",
    )


SETS = {
    "scaled": "split conformal intervals, scaled by the predictive sd",
    "split": "split conformal intervals",
    "cqr": "conformalised quantiles (CQR)",
    "lac": "sets of all classes above one probability (LAC)",
    "aps": "adaptive prediction sets (APS)",
    "raps": "regularised adaptive sets (RAPS)",
}


def _without(run: Run, names: list[str]) -> str:
    """Which rows have no sets, and why."""
    why: dict[str, list[str]] = {}
    for row in run.rows:
        if row.name not in names:
            unset = next((r["unset"] for r in row.records if r.get("unset")), "its record has none")
            why.setdefault(unset, []).append(row.name)
    return " ".join(f"Not shown: {listed(rows)} ({reason})." for reason, rows in why.items())


def sets(run: Run) -> Figure | None:
    by_kind: dict[tuple[str, float], list[tuple[str, list[dict[str, float]]]]] = {}
    for row in run.rows:
        mine: dict[tuple[str, float], list[dict[str, float]]] = {}
        for record in row.records:
            for s in record.get("sets") or []:
                mine.setdefault((s["kind"], s["level"]), []).append(s)
        for key, many in mine.items():
            by_kind.setdefault(key, []).append((row.name, many))
    views = []
    for (kind, level), entries in by_kind.items():
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
        views.append(View(f"{SETS.get(kind, kind)}, {level:.0%}", panels, _without(run, names)))
    return Figure(
        "sets",
        "Prediction sets with a guarantee",
        "How often conformal sets contain the target, and how large they are.",
        "The dashed line is the promised level; bars are 95 % intervals given the number of test examples. A bar that "
        "ends below the line breaks the promise; among rows that keep it, smaller sets are more useful.",
        views,
        "kind of set",
    )
