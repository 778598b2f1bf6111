"""All figures of a run, prepared: each function gives one figure, or None where the run has nothing for it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from . import measures
from .diagnostics import diagnostics
from .figure import Axis, Figure, Panel, Series, View
from .run import Row, Run
from .words import listed

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


def figures(run: Run) -> list[Figure]:
    """Those that the run has something for, in the order of the page."""
    made = (make(run) for make in MAKERS)
    return [figure for figure in made if figure is not None and figure.views]


def gaps(run: Run) -> Figure | None:
    found = {name: d for name, d in run.differences.items() if math.isfinite(d.low)}
    if not found:
        return None
    best = run.rows[0].name
    names = [best, *found]
    series = [Series("points", [0.0], [best], best, row=best)]
    series += [
        Series("points", [d.mean], [name], name, row=name, low=[d.low], high=[d.high]) for name, d in found.items()
    ]
    series.append(Series("line", [0.0, 0.0], [best, names[-1]], "as good as the best", tone="reference"))
    span, note = _scale({s.name: ([*s.x, *s.low, *s.high], s.x[0]) for s in series[:-1]})
    panel = Panel(Axis("NLL above the best row", span=span), Axis("", words=names), series)
    return Figure(
        "differences",
        "Is the difference real?",
        f"How much worse than {best} each row predicts the same {run.n_test:,} test examples.",
        "A dot is the mean difference in NLL, the bar its 95 % interval (paired bootstrap over test examples and, "
        "where there are several, seeds). A bar that crosses the dashed line: these examples cannot tell them apart. "
        "The best row was picked on the same examples, which flatters it a little.",
        [View("", [panel], note)],
    )


def _scale(rows: dict[str, tuple[Sequence[Any], Any]]) -> tuple[tuple[float, float] | None, str]:
    """A scale on which rows can be told apart though some are far off, and a note that names those. Of each row: all
    that is to be seen of it, and the number it is judged by. None: nothing is off, the scale is that of all."""
    judged, low, high = np.array([(value, min(seen), max(seen)) for seen, value in rows.values()]).T
    off = measures.off_scale(judged, low, high)
    if not off.any():
        return None, ""
    least, most = float(low[~off].min()), float(high[~off].max())
    room = 0.06 * (most - least)
    far = listed([name for name, is_far in zip(rows, off) if is_far])
    return (least - room if least else 0.0, most + room), f"Far off, beyond the scale: {far}."


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
        span, note = _scale({s.name: ([*s.y, *s.low, *s.high], s.y[0]) for s in series[1:]})
        panel = Panel(Axis(label, log=bool(x.max() > 10 * x.min())), Axis("NLL", span=span), series)
        views.append(View(label, [panel], note))
    return Figure(
        "cost",
        "What it costs",
        "NLL against what a row costs to train, and to predict with.",
        "Lower is better, further left is cheaper. The dashed line is the Pareto front: rows for which nothing else is "
        "both cheaper and better. Training counts all members, also those that another row had trained already.",
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
            span, note = (None, "") if higher else _scale({s.name: ([*s.y, *s.low, *s.high], s.y[-1]) for s in series})
            panel = Panel(Axis("members", whole=True), Axis(name, percent=percent, span=span), series)
            views.append(View(name, [panel], note))
    return Figure(
        "size",
        "How many members",
        "What each further member buys, for every row that is an ensemble.",
        "A line is the mean score over random subsets of the members, the band one standard deviation between subsets. "
        "Where a line is flat, further members cost and bring nothing. Lower is better, but for accuracy and AUROC.",
        views,
        "score",
    )


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


def risk(run: Run) -> Figure | None:
    real = run.kind == "real"
    series = []
    for row in run.rows:
        found = [_real_risk(run, a) if real else _class_risk(a) for a in row.arrays]
        curves = [measures.risk_coverage(*pair) for pair in found if pair is not None]
        if curves:
            y = np.mean([c[1] for c in curves], axis=0)
            series.append(
                Series("line", curves[0][0].tolist(), (np.sqrt(y) if real else y).tolist(), row.name, row=row.name)
            )
    if not series:
        return None
    label = f"RMSE{_of(run.unit)}" if real else "error rate"
    by = "predicted standard deviation" if real else "confidence"
    span, note = _scale({s.name: (s.y, s.y[-1]) for s in series})
    x, y = Axis("share of examples answered", percent=True, span=(0, 1)), Axis(label, percent=not real, span=span)
    return Figure(
        "risk",
        "What one gains by not answering",
        "The error on the share of test examples a row is most certain of.",
        f"Examples are answered in the order of {by}, the most certain first; at the right end all are. A curve that "
        "falls steeply to the left: uncertainty says which answers to trust, and a person can look at the others.",
        [View("", [Panel(x, y, series)], note)],
    )


def _class_risk(arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    if "confidence" not in arrays or "correct" not in arrays:
        return None
    return 1 - arrays["confidence"].reshape(-1).astype(np.float64), 1.0 - arrays["correct"].reshape(-1)


def _real_risk(run: Run, arrays: dict[str, np.ndarray]) -> tuple[np.ndarray, np.ndarray] | None:
    targets = run.test.get("targets")
    if targets is None or "mean" not in arrays or "sd" not in arrays or arrays["mean"].size != targets.size:
        return None
    wrong = arrays["mean"].reshape(-1).astype(np.float64) - targets.reshape(-1)
    return arrays["sd"].reshape(-1), wrong**2


def _of(unit: str) -> str:
    return f" ({unit})" if unit else ""


PARTS = {  # what uncertainty is made of: its words, and its colour
    "aleatoric": ("aleatoric: noise in the data", "first"),
    "between": ("between members", "second"),
    "within": ("within a member", "third"),
}


def split(run: Run) -> Figure | None:
    rows = [r for r in run.rows if math.isfinite(r.value("aleatoric"))]
    if not rows:
        return None
    names = [r.name for r in rows]
    table = np.array([[_number(r.value(part)) for part in PARTS] for r in rows])  # (rows, parts)
    whole = table.sum(1, keepdims=True)
    what = "variance" if run.kind == "real" else "entropy (nats)"
    label = f"mean {what}" + (_of(f"{run.unit}²") if run.kind == "real" and run.unit else "")

    def panel(values: np.ndarray, axis: Axis) -> Panel:
        pile = [
            Series("stack", values[:, j].tolist(), names, name, tone=tone)
            for j, (name, tone) in enumerate(PARTS.values())
        ]
        return Panel(axis, Axis("", words=names), pile)

    span, note = _scale({n: ([0.0, v], v) for n, v in zip(names, whole[:, 0].tolist())})
    shares = table / np.where(whole > 0, whole, 1.0)
    return Figure(
        "split",
        "What uncertainty is made of",
        "Uncertainty on the test examples, split into noise in the data and doubt about the weights.",
        "Aleatoric stays however much data there is. Between members: the modes disagree. Within a member: its own "
        "posterior around a mode; zero for a single point. The last two shrink with more data. Rows without samples of "
        "their own (closed-form predictions) have no split and are left out.",
        [
            View("amount", [panel(table, Axis(label, span=span))], note),
            View("share", [panel(shares, Axis("share of the whole", percent=True, span=(0, 1)))]),
        ],
        "scale",
    )


def _number(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def ood(run: Run) -> Figure | None:
    told = [r.get("ood") or {} for row in run.rows for r in row.records]
    name = next((str(t["name"]) for t in told if t.get("name")), "inputs from elsewhere")
    views: list[View] = []
    points = []
    for row in run.rows:
        found = [r["ood"]["auroc"] for r in row.records if (r.get("ood") or {}).get("auroc") is not None]
        if found:
            points.append(Series("points", [float(np.mean(found))], [row.name], row.name, row=row.name))
        here, away = row.joined("test_uncertainty"), row.joined("ood_uncertainty")
        if here is not None and away is not None:
            views.append(View(row.name, [_histograms(run, here, away, name)]))
    if points:
        names = [p.name for p in points]
        lowest = min([0.48, *(p.x[0] - 0.02 for p in points)])
        chance = Series("line", [0.5, 0.5], [names[0], names[-1]], "chance", tone="reference")
        views.insert(
            0, View("all rows", [Panel(Axis("AUROC", span=(lowest, 1.02)), Axis("", words=names), [*points, chance])])
        )
    return Figure(
        "ood",
        "Does it notice what it has never seen?",
        f"Uncertainty on test examples against that on {name}.",
        "AUROC: how often an input from elsewhere is more uncertain than a test example; 1 is perfect, 0.5 is chance. "
        "For one row: the further the two histograms lie apart, the better (values above the 99th percentile count in "
        "the last bin).",
        views,
        "row",
    )


def _histograms(run: Run, here: np.ndarray, away: np.ndarray, name: str) -> Panel:
    """Both over one range; of variances, which differ by orders of magnitude, the logarithms."""
    here, away = (np.asarray(v, dtype=np.float64).reshape(-1) for v in (here, away))
    what = "entropy (nats)"
    if run.kind == "real":
        here, away = (np.log10(np.maximum(v, 1e-30)) for v in (here, away))
        what = f"log10 of the variance{_of(run.unit)}"
    both = np.concatenate([here, away])
    both = both[np.isfinite(both)] if np.isfinite(both).any() else np.zeros(1)
    low, high = (0.0 if run.kind != "real" else float(both.min())), float(np.quantile(both, 0.99))
    edges = np.linspace(low, max(high, low + 1e-9), 31)
    middle, width = ((edges[1:] + edges[:-1]) / 2).tolist(), float(edges[1] - edges[0])
    bars = [
        Series(
            "bars", middle, measures.histogram(np.minimum(v, edges[-1]), edges).tolist(), word, tone=tone, width=width
        )
        for v, word, tone in ((here, "test", "first"), (away, name, "second"))
    ]
    return Panel(Axis(what), Axis("examples", percent=True), bars)


SETS = {
    "scaled": "split conformal intervals, scaled by the predictive sd",
    "split": "split conformal intervals",
    "cqr": "conformalised quantiles (CQR)",
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
            f"mean width{_of(run.unit)}" if kind in ("scaled", "split", "cqr") else "mean number of classes in a set"
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


MAKERS: tuple[Callable[[Run], Figure | None], ...] = (
    gaps,
    cost,
    size,
    reliability,
    intervals,
    pit,
    risk,
    split,
    ood,
    sets,
    diagnostics,
)


def chosen(run: Run, most: int = 6) -> Iterator[str]:
    """Rows that are in colour when the page opens: the best, and the best single network among them."""
    names = [row.name for row in run.rows]
    single = next((row.name for row in run.rows if row.members == 1), None)
    first = names[:most]
    if single is not None and single not in first:
        first[-1] = single
    yield from first
