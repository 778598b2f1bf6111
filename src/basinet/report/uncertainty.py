"""What uncertainty is made of, and what it is good for: declining to answer, and noticing what was never seen."""

from __future__ import annotations

import math

import numpy as np

from . import measures
from .figure import Axis, Figure, Panel, Series, View
from .run import Run
from .scale import scale_of
from .words import in_units

PARTS = {  # what uncertainty is made of: its words, and its colour
    "aleatoric": ("aleatoric: noise in the data", "first"),
    "between": ("between members", "second"),
    "within": ("within a member", "third"),
}


def risk(run: Run) -> Figure | None:
    real = run.kind == "real"
    series = []
    for row in run.rows:
        pairs = [_real_risk(run, a) if real else _class_risk(a) for a in row.arrays]
        curves = [measures.risk_coverage(*pair) for pair in pairs if pair is not None]
        if curves:
            y = np.mean([c[1] for c in curves], axis=0)
            series.append(
                Series("line", curves[0][0].tolist(), (np.sqrt(y) if real else y).tolist(), row.name, row=row.name)
            )
    if not series:
        return None
    label = f"RMSE{in_units(run.unit)}" if real else "error rate"
    by = "predicted standard deviation" if real else "confidence"
    span, note = scale_of({s.name: (s.y, s.y[-1]) for s in series})
    x, y = Axis("share of examples answered", percent=True, span=(0, 1)), Axis(label, percent=not real, span=span)
    return Figure(
        "risk",
        "Risk against coverage: answering only when sure",
        "The error on the share of test examples a row is most certain of.",
        f"Examples are answered in the order of {by}, the most certain first; at the right end all are. If a curve "
        "falls steeply to the left, uncertainty shows which answers to trust, and a person can check the others.",
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


def split(run: Run) -> Figure | None:
    rows = [r for r in run.rows if math.isfinite(r.value("aleatoric"))]
    if not rows:
        return None
    names = [r.name for r in rows]
    table = np.array([[_number(r.value(part)) for part in PARTS] for r in rows])  # (rows, parts)
    whole = table.sum(1, keepdims=True)
    what = "variance" if run.kind == "real" else "entropy (nats)"
    label = f"mean {what}" + (in_units(f"{run.unit}²") if run.kind == "real" and run.unit else "")

    def panel(values: np.ndarray, axis: Axis) -> Panel:
        pile = [
            Series("stack", values[:, j].tolist(), names, name, tone=tone)
            for j, (name, tone) in enumerate(PARTS.values())
        ]
        return Panel(axis, Axis("", words=names), pile)

    span, note = scale_of({n: ([0.0, v], v) for n, v in zip(names, whole[:, 0].tolist())})
    shares = table / np.where(whole > 0, whole, 1.0)
    return Figure(
        "split",
        "What uncertainty is made of",
        "Uncertainty on the test examples, split into noise in the data and uncertainty about the weights.",
        "Aleatoric uncertainty remains however much data there is. Between members: the modes disagree. Within a "
        "member: its posterior around one mode, zero for a single point. The last two shrink with more data. Rows "
        "without samples (closed-form predictions) have no split and are left out.",
        [
            View("amount", [panel(table, Axis(label, span=span))], note),
            View("share", [panel(shares, Axis("share of the whole", percent=True, span=(0, 1)))]),
        ],
        "scale",
    )


def _number(value: float) -> float:
    return value if math.isfinite(value) else 0.0


def ood(run: Run) -> Figure | None:
    entries = [r.get("ood") or {} for row in run.rows for r in row.records]
    name = next((str(t["name"]) for t in entries if t.get("name")), "inputs from elsewhere")
    views: list[View] = []
    points = []
    for row in run.rows:
        aurocs = [r["ood"]["auroc"] for r in row.records if (r.get("ood") or {}).get("auroc") is not None]
        if aurocs:
            points.append(Series("points", [float(np.mean(aurocs))], [row.name], row.name, row=row.name))
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
        f"Uncertainty ({'variance' if run.kind == 'real' else 'entropy'}) on test examples against that on {name}.",
        "AUROC: how often such an input is more uncertain than a test example; 1 is perfect, 0.5 is chance. For a "
        "single row, the further apart the two histograms are, the better (values above the 99th percentile count "
        "in the last bin).",
        views,
        "row",
    )


def _histograms(run: Run, here: np.ndarray, away: np.ndarray, name: str) -> Panel:
    """Both over one range; of variances, which differ by orders of magnitude, the logarithms."""
    here, away = (np.asarray(v, dtype=np.float64).reshape(-1) for v in (here, away))
    what = "entropy (nats)"
    if run.kind == "real":
        here, away = (np.log10(np.maximum(v, 1e-30)) for v in (here, away))
        what = f"log10 of the variance{in_units(run.unit)}"
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
