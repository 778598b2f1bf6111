"""Each method's own diagnostics: whatever curves its members left, drawn by what they are functions of."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from .figure import Axis, Figure, Panel, Series, View
from .run import Row, Run

MEMBERS = 5  # whose curves are drawn, at most
KNOWN = {  # a curve's name in words
    "loss": "training loss",
    "val_nll": "NLL of validation data",
    "ensemble": "log likelihood, networks averaged",
    "mean": "log likelihood, one network",
    "tried_nll": "NLL of validation data",
    "log_evidence": "log evidence",
    "energy": "energy of the draws, a trace of each chain",
    "kinetic": "twice the kinetic energy of the draws",
    "thin": "transitions from one draw to the next",
    "prior_factor": "factors of the prior's precision",
    "chosen": "chosen size of the noise",
}
ABSCISSAE = {  # what other curves are functions of: its words, whether it is shown on a logarithmic scale
    "step": ("training step", False),
    "sigma": ("size of the noise, σ", True),
    "tried_factor": ("factor of the prior's precision", True),
}
FEW = 8  # numbers that are functions of nothing known are words, if there are at most this many; else a curve
HIDDEN = ("seconds", "each")
WITHOUT = "without noise"  # the line at what PEP's network does as it is


def diagnostics(run: Run) -> Figure | None:
    """Loss curves, PEP's L(σ), evidence, and the like."""
    views = [view for row in run.rows if (view := _view(row)) is not None]
    return Figure(
        "diagnostics",
        "Each method's own diagnostics",
        "What a method recorded during its fit: losses, PEP's search for its noise, evidence.",
        f"One line per member (the first {MEMBERS}). If a loss still falls at its end, train longer.",
        views,
        "row",
    )


def _view(row: Row) -> View | None:
    curves = {name: _members(value) for name, value in (row.records[0].get("curves") or {}).items()}
    panels = []
    facts = []
    for name, members in curves.items():
        if not members or name in ABSCISSAE or name in HIDDEN:
            continue
        longest = max(len(m) for m in members)
        along = next((a for a in ABSCISSAE if _fits(curves.get(a), members)), None)
        if longest <= (1 if along else FEW):
            values = ["/".join(_once([_short(v) for v in m])) for m in members if m]
            if values:
                facts.append(f"{_words(name)}: {', '.join(_once(values))}.")
            continue
        series = []
        for k, member in enumerate(members[:MEMBERS]):
            x = curves[along][k] if along else list(range(1, len(member) + 1))
            series += _line(x, member, k, alone=len(members) == 1) if along == "sigma" else [_series(x, member, k)]
        label, log = ABSCISSAE.get(along or "", ("number", False))
        panels.append(Panel(Axis(label, log=log), Axis(_words(name)), series))
    if not panels and not facts:
        return None
    drawn = [series for panel in panels for series in panel.series]
    if any(panel.x.label == ABSCISSAE["sigma"][0] for panel in panels):
        facts.append("It uses the σ of the highest point.")
    if any(series.name == WITHOUT for series in drawn):
        facts.append("If no point is above the dashed line, noise does not help.")
    return View(row.name, panels, " ".join(f[:1].upper() + f[1:] for f in facts))


def _series(x: Sequence[float], y: Sequence[float], k: int) -> Series:
    return Series("line", x, y, f"member {k}", tone=f"member{k}")


def _line(sigma: Sequence[float], y: Sequence[float], k: int, alone: bool) -> list[Series]:
    """A curve over sizes of noise that a logarithmic axis can show; what no noise gives is a line across."""
    some = [(s, v) for s, v in zip(sigma, y) if s > 0]
    x = [s for s, _ in some]
    curve = _series(x, [v for _, v in some], k)
    none = [v for s, v in zip(sigma, y) if s == 0]
    if not (alone and none and x):
        return [curve]
    return [curve, Series("line", [min(x), max(x)], [none[0]] * 2, WITHOUT, tone="reference")]


def _members(value: Any) -> list[list[float]]:
    """The curve of every member; empty where it is not one of numbers."""
    if not isinstance(value, list):
        return []
    if all(_is_number(v) for v in value):
        value = [value]
    good = [m for m in value if isinstance(m, list) and all(_is_number(v) for v in m)]
    return good if len(good) == len(value) else []


def _fits(along: list[list[float]] | None, members: list[list[float]]) -> bool:
    return along is not None and len(along) == len(members) and all(len(a) == len(m) for a, m in zip(along, members))


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _words(name: str) -> str:
    return KNOWN.get(name, name.replace("_", " "))


def _once(values: list[str]) -> list[str]:
    """The values; one that all share alone."""
    return values[:1] if len(set(values)) == 1 else values


def _short(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.4g}"
