"""Does it hold up when inputs change: scores, calibration and uncertainty of corrupted test examples."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from .figure import Axis, Figure, Panel, Series, View
from .run import Row, Run
from .scale import scale_of
from .words import listed

SEVERITIES = (0, 1, 2, 3, 4, 5)  # 0: as they are
KEPT = {"classes": ("ece", "calibration error (ECE)"), "real": ("coverage_90", "targets inside 90 % intervals")}


def shift(run: Run) -> Figure | None:
    names = list(dict.fromkeys(r["corruption"] for r in _entries(run.rows) if r["severity"]))
    if not names:
        return None
    views = [View("all of them", *_panels(run, names))] if len(names) > 1 else []
    views += [View(name.replace("_", " "), *_panels(run, [name])) for name in names]
    n = max(r["shift"]["n"] for row in run.rows for r in row.records if "shift" in r)
    doubt = "variance" if run.kind == "real" else "entropy"
    return Figure(
        "shift",
        "Does it hold up when inputs change?",
        f"{n:,} test examples, increasingly corrupted ({listed([name.replace('_', ' ') for name in names], 30)}); "
        "their targets are unchanged.",
        f"Severity 0 is the clean examples. Errors grow with severity for every row; a row you can trust becomes "
        f"less certain along with them, so that its NLL rises slowly and it stays calibrated. The last panel shows "
        f"how well the {doubt} separates corrupted examples from clean ones: 0.5 is chance, 1 is perfect.",
        views,
        "corruption",
    )


def _panels(run: Run, names: list[str]) -> tuple[list[Panel], str]:
    """NLL, calibration and AUROC against severity, means over corruptions and seeds, and a note."""
    x = Axis("severity", whole=True)
    span, note = _scale(run, names)
    panels = [Panel(x, Axis("NLL", span=span), _lines(run, names, "nll"))]
    key, label = KEPT.get(run.kind, ("ece", "calibration error (ECE)"))
    kept = _lines(run, names, key)
    if kept:
        promised = [Series("line", [0.0, 5.0], [0.9, 0.9], "promised", tone="reference")] if run.kind == "real" else []
        panels.append(Panel(x, Axis(label, percent=run.kind == "real"), [*kept, *promised]))
    lines = _lines(run, names, "auroc_total")
    if lines:
        chance = Series("line", [1.0, 5.0], [0.5, 0.5], "chance", tone="reference")
        panels.append(Panel(x, Axis("AUROC, corrupted against clean"), [*lines, chance]))
    return panels, note


def _lines(run: Run, names: list[str], key: str) -> list[Series]:
    series = []
    for row in run.rows:
        points = [(float(s), value) for s in SEVERITIES if (value := _mean(row, names, s, key)) is not None]
        if points:
            at, values = zip(*points)
            series.append(Series("line", at, values, row.name, row=row.name))
    return series


def _mean(row: Row, names: list[str], severity: int, key: str) -> float | None:
    wanted = ("none",) if severity == 0 else names
    values = [
        r[key]
        for r in _entries([row])
        if r["severity"] == severity and r["corruption"] in wanted and r.get(key) is not None
    ]
    return float(np.mean(values)) if values else None


def _scale(run: Run, names: list[str]) -> tuple[tuple[float, float] | None, str]:
    """The scale of the NLL, without rows that are far off."""
    lines = {s.name: [float(v) for v in s.y] for s in _lines(run, names, "nll")}
    return scale_of({name: (values, values[-1]) for name, values in lines.items()}) if lines else (None, "")


def _entries(rows: Iterable[Row]) -> list[dict[str, Any]]:
    return [entry for row in rows for r in row.records for entry in (r.get("shift") or {}).get("rows", [])]
