"""Did the chains sample? Traces, ranks and autocorrelations of what networks predict, and the verdict in words."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..diagnose import Diagnosis
from .figure import Axis, Figure, Panel, Series, View
from .pictures import write_pictures
from .run import Run

READ = (
    "Left: draws in order; chains that sample the same posterior overlap and do not drift. Middle: "
    "ranks of each chain's draws among all draws, flat if chains agree. Right: autocorrelation of each chain; the "
    "sooner it is near 0, the more a draw is worth."
)


def chains(run: Run) -> Figure | None:
    """A view for each row that sampled, of the seed that comes first."""
    by_row = {row.name: row.records[0].get("chains") for row in run.rows}
    return _figure({name: entry for name, entry in by_row.items() if entry})


def write_chains(diagnosis: Diagnosis, folder: Path | str) -> list[Path]:
    """Writes trace, rank and autocorrelation plots of the chains that `bn.diagnose` judged, as PNG and SVG files, and
    returns their paths. They show the loss, what the likelihood learned, and the predictions that mix worst."""
    figure = _figure({"chains": diagnosis.record()})
    assert figure is not None
    return write_pictures([figure], [], Path(folder))


def _figure(by_row: dict[str, dict[str, Any]]) -> Figure | None:
    views = [view for name, entry in by_row.items() for view in _views(name, entry)]
    if not views:
        return None
    see = "Draws of each chain in function space: the loss, and the quantities on which chains agree least."
    return Figure("chains", "Did the chains sample?", see, READ, views, "row and quantity")


def _views(name: str, entry: dict[str, Any]) -> list[View]:
    """One for each quantity."""
    rows = {row["name"]: row for row in entry["rows"]}
    views = []
    for quantity, shown in entry["shown"].items():
        every = shown["every"]
        lines = _lines(shown["trace"], every)
        panels = [Panel(Axis("draw", whole=True), Axis(quantity), lines)]
        counts = shown["ranks"]
        if counts and counts[0]:
            width = 100 / len(counts[0])
            panels.append(Panel(Axis("rank among all draws, %"), Axis("draws"), _ranks(counts, width)))
        later = _lines(shown["autocorrelation"], 1)
        none = Series("line", [0.0, float(max(len(s.x) for s in later) - 1)], [0.0, 0.0], tone="reference")
        panels.append(Panel(Axis("draws later", whole=True), Axis("autocorrelation"), [*later, none]))
        views.append(View(f"{name}: {quantity}", panels, _note(rows.get(quantity), entry["verdict"])))
    return views


def _lines(values: Sequence[Sequence[float]], every: int) -> list[Series]:
    return [
        Series("line", [float(every * i) for i in range(len(of))], of, f"chain {k}", tone=f"member{k}")
        for k, of in enumerate(values)
    ]


def _ranks(counts: Sequence[Sequence[float]], width: float) -> list[Series]:
    """Stairs, whose last step is as wide as the others."""
    edges = [width * i for i in range(len(counts[0]) + 1)]
    return [Series("steps", edges, [*of, of[-1]], f"chain {k}", tone=f"member{k}") for k, of in enumerate(counts)]


def _note(row: dict[str, Any] | None, verdict: str) -> str:
    if row is None:
        return verdict
    mean, mcse, rhat, bulk, tail = (row.get(key) for key in ("mean", "mcse", "rhat", "bulk", "tail"))
    parts = [] if mean is None or mcse is None else [f"mean {mean:.4g} ± {mcse:.2g}"]
    parts.append("R-hat infinite" if rhat is None else f"R-hat {rhat:.3f}")
    if bulk is not None and tail is not None:
        parts.append(f"effective draws {bulk:.0f} (bulk) and {tail:.0f} (tails)")
    return f"{row['name'][:1].upper()}{row['name'][1:]}: {', '.join(parts)}. {verdict}"
