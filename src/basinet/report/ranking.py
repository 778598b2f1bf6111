"""Which row is best, is that sure, what does it cost, and how many members does it take."""

from __future__ import annotations

import math

import numpy as np

from . import measures
from .figure import Axis, Figure, Panel, Series, View
from .run import Row, Run
from .scale import scale_of

SCORES = {  # of size curves: name, whether it is a share
    "nll": ("NLL", False),
    "brier": ("Brier score", False),
    "ece": ("ECE", False),
    "accuracy": ("accuracy", True),
    "auroc": ("AUROC", False),
    "ood_auroc": ("OOD AUROC", False),
    "rmse": ("RMSE", False),
    "crps": ("CRPS", False),
}
COSTS = {
    "steps": "training steps of one network",
    "fit_seconds": "seconds of training",
    "draws": "forward passes for a prediction",
    "predict_seconds": "seconds to predict the test part",
}


def gaps(run: Run) -> Figure | None:
    finite = {name: d for name, d in run.differences.items() if math.isfinite(d.low)}
    if not finite:
        return None
    best = run.rows[0].name
    names = [best, *finite]
    series = [Series("points", [0.0], [best], best, row=best)]
    series += [
        Series("points", [d.mean], [name], name, row=name, low=[d.low], high=[d.high]) for name, d in finite.items()
    ]
    series.append(Series("line", [0.0, 0.0], [best, names[-1]], "not significantly worse", tone="reference"))
    span, note = scale_of({s.name: ([*s.x, *s.low, *s.high], s.x[0]) for s in series[:-1]})
    panel = Panel(Axis("NLL above the best row", span=span), Axis("", words=names), series)
    return Figure(
        "differences",
        "Is the difference real?",
        f"How much worse than {best} each row predicts the same {run.n_test:,} test examples.",
        "A dot is the mean difference in NLL, the bar its 95 % interval (paired bootstrap over test examples and, "
        "where there are several, seeds). If a bar crosses the dashed line, the difference is not significant on "
        "these examples. The best row was picked on the same examples, which favours it slightly.",
        [View("", [panel], note)],
    )


def cost(run: Run) -> Figure | None:
    views = []
    for key, label in COSTS.items():
        rows = [
            r for r in run.rows if math.isfinite(r.value(key)) and math.isfinite(r.value("nll")) and r.value(key) > 0
        ]
        if len(rows) < 2:
            continue
        x, y = np.array([r.value(key) for r in rows]), np.array([r.value("nll") for r in rows])
        on = measures.front(x, np.round(y, 6))  # rounding errors make no front; rows come the best and cheapest first
        line = [*x[on].tolist(), x.max()], [*y[on].tolist(), y.min()]
        series = [Series("steps", *line, "Pareto front", tone="reference")]
        series += [
            Series(
                "points",
                [x[i]],
                [y[i]],
                row.name,
                row=row.name,
                labelled=i in on,
                low=_seeds(row, -1),
                high=_seeds(row, 1),
            )
            for i, row in enumerate(rows)
        ]
        span, note = scale_of({s.name: ([*s.y, *s.low, *s.high], s.y[0]) for s in series[1:]})
        panel = Panel(Axis(label, log=bool(x.max() > 10 * x.min())), Axis("NLL", span=span), series)
        views.append(View(label, [panel], note))
    return Figure(
        "cost",
        "What it costs",
        "NLL against the cost of training and of prediction.",
        "Lower is better, further left is cheaper. The dashed line is the Pareto front: rows for which nothing else is "
        "both cheaper and better. Training counts all members, including those shared with another row.",
        views,
        "cost",
    )


def _seeds(row: Row, side: int) -> list[float]:
    """One standard error over seeds to a side of the NLL, where there are several seeds."""
    error = row.error("nll")
    return [] if math.isnan(error) else [row.value("nll") + side * error]


def size(run: Run) -> Figure | None:
    curves = {row.name: [r["size_curve"] for r in row.records if r.get("size_curve")] for row in run.rows}
    views = []
    for key, (name, percent) in SCORES.items():
        series = []
        for row, seeds in curves.items():
            points: dict[int, list[tuple[float, float]]] = {}
            for curve in seeds:
                for at in curve:
                    if isinstance(at.get(key), (int, float)):
                        points.setdefault(int(at["size"]), []).append((at[key], at.get(f"{key}_sd") or 0.0))
            if len(points) < 2:
                continue
            sizes = sorted(points)
            mean, sd = np.array([np.mean(points[s], axis=0) for s in sizes]).T
            low, high = (mean - sd).tolist(), (mean + sd).tolist()
            series.append(Series("line", sizes, mean.tolist(), row, row=row, low=low, high=high))
        if series:
            higher = key in ("accuracy", "auroc", "ood_auroc")
            span, note = (
                (None, "") if higher else scale_of({s.name: ([*s.y, *s.low, *s.high], s.y[-1]) for s in series})
            )
            panel = Panel(Axis("members", whole=True), Axis(name, percent=percent, span=span), series)
            views.append(View(name, [panel], note))
    return Figure(
        "size",
        "How many members",
        "What each additional member gains, for every row that is an ensemble.",
        "A line is the mean score over random subsets of the members, the band one standard deviation between "
        "subsets. Where a line is flat, more members add cost but no quality. Lower is better, except for accuracy "
        "and AUROC.",
        views,
        "score",
    )
