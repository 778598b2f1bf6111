"""The same figures as files, drawn with matplotlib: PNG and SVG, all views of a figure side by side."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..pool.files import atomically
from . import colours
from .figure import Axis, Figure, Panel, Series

ACROSS = 4  # panels in a line
FORMATS = ("png", "svg")


def write_pictures(drawn: Sequence[Figure], rows: Sequence[str], folder: Path) -> list[Path]:
    """Writes each figure as PNG and SVG into `folder`; `rows` are in colour, the others grey."""
    try:
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise ImportError('--figures needs matplotlib: pip install "basinet[plot]"') from error
    written = []
    for figure in drawn:
        placed = _placed(figure)
        if not placed:  # nothing but words
            continue
        lines, across = (1 + max(at[i] for at, _, _ in placed) for i in (0, 1))
        tall = max(3.0, max(0.24 * len(panel.y.words) + 0.8 for _, _, panel in placed))
        wide = 4.2 if across > 1 else 7.0
        canvas = Canvas(figsize=(wide * across, tall * lines + 0.5), layout="constrained")
        canvas.suptitle(_plain(figure.title), fontsize=12)
        grid = canvas.add_gridspec(lines, across)
        for at, name, panel in placed:
            _panel(canvas.add_subplot(grid[at]), panel, rows, name)
        canvas.draw_without_rendering()
        canvas.set_layout_engine("none")  # laid out once for all formats
        for form in FORMATS:
            written.append(folder / f"{figure.key}.{form}")
            _save(canvas, written[-1], form)
    return written


def _placed(figure: Figure) -> list[tuple[tuple[int, int], str, Panel]]:
    """Line and column of every panel, with the name of its view; the panels of a view stay on one line."""
    placed = []
    line = column = 0
    for view in figure.views:
        if column and column + len(view.panels) > ACROSS:
            line, column = line + 1, 0
        for panel in view.panels:
            if column == ACROSS:
                line, column = line + 1, 0
            placed.append(((line, column), view.name, panel))
            column += 1
    return placed


def _save(canvas: Any, path: Path, form: str) -> None:
    atomically(path, lambda temporary: canvas.savefig(temporary, format=form, dpi=130))


def _panel(ax: Any, panel: Panel, rows: Sequence[str], name: str) -> None:
    left: dict[str, float] = {}  # where the next bar of a pile begins
    for series in sorted(panel.series, key=lambda s: _colour(s, rows)[1]):
        _series(ax, series, panel, rows, left)
    _axis(ax.xaxis, ax.set_xlim, ax.set_xscale, ax.set_xlabel, panel.x)
    _axis(ax.yaxis, ax.set_ylim, ax.set_yscale, ax.set_ylabel, panel.y)
    if panel.y.words:
        ax.set_yticks(range(len(panel.y.words)), [_plain(w[:30]) for w in panel.y.words], fontsize=8)
        ax.set_ylim(len(panel.y.words) - 0.5, -0.5)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(_plain(name), fontsize=10)
    named = [line for line in ax.get_legend_handles_labels()[1] if line]
    if named and (not panel.y.words or any(s.kind == "stack" for s in panel.series)):
        ax.legend(framealpha=0.85, edgecolor="none", fontsize=7)


def _series(ax: Any, series: Series, panel: Panel, rows: Sequence[str], left: dict[str, float]) -> None:
    colour, on = _colour(series, rows)
    name = _plain(series.name) if on and not (panel.y.words and series.row) else None
    y = [panel.y.words.index(str(v)) for v in series.y] if panel.y.words else series.y
    if series.kind == "bars":
        ax.bar(series.x, y, series.width * 0.94, color=colour, alpha=0.6, label=name)
    elif series.kind == "stack":
        begin = [left.get(str(v), 0.0) for v in series.y]
        ax.barh(y, series.x, left=begin, color=colour, label=name, height=0.7)
        left.update({str(v): b + x for v, b, x in zip(series.y, begin, series.x)})
    elif series.kind == "points":
        ax.plot(series.x, y, "o", color=colour, ms=6 if on else 4, label=name)
        if series.low:
            (ax.hlines if panel.y.words else ax.vlines)(
                y if panel.y.words else series.x, series.low, series.high, color=colour
            )
        if series.labelled:
            ax.annotate(
                _plain(series.name[:24]),
                (series.x[0], series.y[0]),
                fontsize=7,
                xytext=(0, -11),
                ha="center",
                textcoords="offset points",
            )
    elif panel.y.words:  # a reference across all words
        ax.axvline(series.x[0], color=colour, ls="--", lw=1, label=name)
    else:
        style = {"ls": "--", "lw": 1} if series.tone == "reference" else {"lw": 1.7 if on else 0.7}
        shape = {"drawstyle": "steps-post"} if series.kind == "steps" else {}
        ax.plot(series.x, y, color=colour, label=name, **style, **shape)
        if series.low and on:
            ax.fill_between(series.x, series.low, series.high, color=colour, alpha=0.14, lw=0)


def _axis(axis: Any, limit: Any, scale: Any, label: Any, settings: Axis) -> None:
    from matplotlib.ticker import PercentFormatter

    label(_plain(settings.label), fontsize=9)
    if settings.log:
        scale("log")
    if settings.span:
        limit(*settings.span)
    if settings.percent:
        axis.set_major_formatter(PercentFormatter(1.0))


def _colour(series: Series, rows: Sequence[str]) -> tuple[str, bool]:
    """Its colour, and whether it stands out."""
    many = len(colours.LIGHT)
    if series.tone == "reference":
        return colours.REFERENCE["light"], True
    if series.row:
        return (
            (colours.LIGHT[rows.index(series.row) % many], True)
            if series.row in rows
            else (colours.GREY["light"], False)
        )
    if series.tone.startswith("member"):
        return colours.LIGHT[int(series.tone.removeprefix("member")) % many], True
    return colours.LIGHT[colours.TONES.get(series.tone, 0)], True


def _plain(text: str) -> str:
    """Text as it is: matplotlib reads mathematics between dollar signs."""
    return text.replace("$", r"\$")
