"""Draws one picture for each study that has no other: `python docs/tools/study_figures.py [NAME ...]` reads results/
and writes docs/pictures/study-NAME.png. Names are those of the functions here, all by default."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from records import TREES, read, split_scores, title

PICTURES = Path(__file__).parents[1] / "pictures"
BLUE, ORANGE, GREY, BLACK = "#0072b2", "#d55e00", "#777777", "#000000"
COLOURS = (BLUE, ORANGE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", BLACK, GREY, "#882255", "#999933")
OTHERS = tuple(c for c in COLOURS if c != BLACK) + ("#44aa99", "#ddcc77")
MARKERS = "osD^vPX*<>"
UCI = {"MAP": GREY, "deep ensemble": BLUE, "snapshots": ORANGE, "anchored ensemble": "#009e73"}
plt.rcParams |= {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 110}

Points = dict[str, tuple[float, float] | None]  # by row: a value and its standard error, 0 if unknown


def compare() -> None:
    """NLL of each row less that of one network, set by set."""
    rows = [r for r in read("compare") if r["nll"] is not None]
    sets = list(dict.fromkeys(r["data"] for r in rows))
    nll = {(r["data"], r["method"]): r["nll"] for r in rows}
    methods = [m for m in dict.fromkeys(r["method"] for r in rows) if m != "MAP"]
    series = {m: {title(s): (nll[s, m] - nll[s, "MAP"], 0.0) for s in sets if (s, m) in nll} for m in methods}
    _, ax = plt.subplots(figsize=(8, 0.36 * len(sets) + 1.4))
    dots(ax, [title(s) for s in sets], series, (-0.3, 0.42))
    ax.set_xlabel("test NLL less that of one network (MAP), mean of two seeds; lower is better")
    save(ax, "compare", columns=4)


def classes() -> None:
    """Test NLL of the defaults beside boosting: a dot for each split, a line at the mean."""
    last = {(r["data"], r["method"], r["split"]): r["scores"]["nll"] for r in read("classes")}
    sets = list(dict.fromkeys(data for data, _, _ in last))
    methods = list(dict.fromkeys(method for _, method, _ in last))
    rows = -(-len(sets) // 3)
    _, grid = plt.subplots(rows, 3, figsize=(9.5, rows * (0.22 * len(methods) + 0.85)), sharey=True, squeeze=False)
    for ax in grid.flat[len(sets) :]:
        ax.axis("off")
    for ax, name in zip(grid.flat, sets):
        for place, method in enumerate(methods):
            values = [x for (data, m, _), x in last.items() if (data, m) == (name, method)]
            if not values:  # a linear model of Fashion-MNIST takes long
                continue
            colour = ORANGE if "boosting" in method else BLUE if "ensemble" in method else GREY
            ax.plot(values, [place] * len(values), "o", color=colour, ms=4, alpha=0.5, mew=0)
            ax.plot([fmean(values)] * 2, [place - 0.3, place + 0.3], color=colour, lw=2)
        ax.set(title=title(name), xlabel="test NLL")
    grid[0, 0].set_yticks(range(len(methods)), methods)
    grid[0, 0].invert_yaxis()
    save(grid[0, 0], "classes", columns=0)


def conformal() -> None:
    """How often sets of level .9 contain the truth, over 20 splits."""
    rows = read("conformal")
    sets = list(dict.fromkeys(r["data"] for r in rows))
    _, axes = plt.subplots(1, len(sets), figsize=(9.5, 2.8), sharex=True)
    for ax, name in zip(axes, sets):
        here = [r for r in rows if r["data"] == name]
        for place, r in enumerate(here):
            exact = "expected" in r and ("exact" in r["kind"] or r["data"] == "diabetes")
            colour = BLUE if exact else GREY if "expected" in r else ORANGE
            ax.plot(r["each"], [place] * len(r["each"]), "o", color=colour, ms=3, alpha=0.35, mew=0)
            ax.plot([r["held"]] * 2, [place - 0.35, place + 0.35], color=colour, lw=2)
        ax.axvline(0.9, color=BLACK, lw=0.8, ls="--")
        ax.set_yticks(
            range(len(here)), ["the predictive's own" if r["kind"] == "uncalibrated" else r["kind"] for r in here]
        )
        ax.invert_yaxis()
        ax.set(title=title(name), xlabel="share that contains the truth")
    save(axes[0], "conformal", columns=0)


def resnets() -> None:
    """NLL of the four published networks and of their mixture, by what was put around them."""
    rows = [r for r in read("resnets") if r["kind"] == "row"]
    methods = [m for m in dict.fromkeys(r["method"] for r in rows) if not m.endswith("sampled")]
    networks = list(dict.fromkeys(r["network"] for r in rows))
    series: dict[str, Points] = {
        n: {r["method"]: (r["nll"], r["nll_se"]) for r in rows if r["network"] == n} for n in networks
    }
    _, ax = plt.subplots(figsize=(8, 0.33 * len(methods) + 1.3))
    dots(ax, methods, series, None, ["#c6dbef", "#9ecae1", "#6baed6", BLUE, ORANGE])
    ax.set_xlabel("NLL on 5,000 test images of CIFAR-10, with standard errors")
    save(ax, "resnets", columns=5)


def swag() -> None:
    """NLL against the number of members: SWAG, its mean, its mode, and the mode trained as long."""
    names = {"MAP": "mode", "MAP longer": "mode, trained as long", "SWA": "SWA", "SWAG": "SWAG"}
    rows = read("swag")
    _, axes = plt.subplots(1, 2, figsize=(8.5, 3))
    for ax, (name, words) in zip(axes, (("digits", "digits"), ("fashion_mnist", "Fashion-MNIST, 10,000 images"))):
        for r, colour in zip((r for r in rows if r["data"] == name), (GREY, BLACK, ORANGE, BLUE)):
            sizes, nll, sd = ([x[key] for x in r["curve"]] for key in ("size", "nll", "nll_sd"))
            ax.fill_between(
                sizes, [a - b for a, b in zip(nll, sd)], [a + b for a, b in zip(nll, sd)], color=colour, alpha=0.1, lw=0
            )
            ax.plot(sizes, nll, ".-", color=colour, label=names[r["method"]])
        ax.set(title=words, xlabel="members", ylabel="test NLL")
        ax.set_xticks([1, 2, 3, 5, 7, 10])
    save(axes[0], "swag", columns=4)


def tables() -> None:
    """The default ensemble beside the best of the boosted trees: ratios of RMSE and CRPS, and the gain in NLL."""
    sets = split_scores()
    names = [name.replace("_", " ") for name in sets]
    heads = (
        ("rmse", "RMSE over that of the trees"),
        ("crps", "CRPS over that of the trees"),
        ("nll", "NLL less that of the trees"),
    )
    _, axes = plt.subplots(1, 3, figsize=(10, 0.25 * len(names) + 1.1), sharey=True)
    for ax, (score, words) in zip(axes, heads):
        for place, scores in enumerate(sets.values()):
            means = {m: fmean(x[score] for x in each) for m, each in scores.items()}
            ours, trees = means["deep ensemble"], min(means[m] for m in TREES)
            value = ours - trees if score == "nll" else ours / trees
            better = ours < trees
            ax.plot([0 if score == "nll" else 1, value], [place] * 2, color=BLUE if better else ORANGE, lw=1.2)
            ax.plot(value, place, "o", color=BLUE if better else ORANGE, ms=5)
        ax.axvline(0 if score == "nll" else 1, color=BLACK, lw=0.8)
        ax.set_xlabel(words)
    axes[0].set_yticks(range(len(names)), names)
    axes[0].invert_yaxis()
    save(axes[0], "tables", columns=0)


def uci() -> None:
    """Test log likelihood less that of one network on the same splits, with standard errors."""
    ll = {(r["data"], r["method"], r["split"]): r["ll"] for r in read("uci")}
    sets = list(dict.fromkeys(data for data, _, _ in ll))
    series = {m: {title(f"uci_{s}"): paired(ll, s, m) for s in sets} for m in UCI if m != "MAP"}
    _, ax = plt.subplots(figsize=(8, 0.36 * len(sets) + 1.3))
    dots(ax, [title(f"uci_{s}") for s in sets], series, (-0.5, 1.0), list(UCI.values())[1:])
    ax.set_xlabel("test log likelihood less that of one network, per row; higher is better")
    save(ax, "uci", columns=3)


def variational() -> None:
    """Test log likelihood less that of MAP on the same splits."""
    ll = {(r["data"], r["method"], r["split"]): r["ll"] for r in read("variational")}
    sets = list(dict.fromkeys(data for data, _, _ in ll))
    methods = [
        m for m in dict.fromkeys(m for _, m, _ in ll) if not m.endswith(" x5") and m not in ("MAP", "deep ensemble")
    ]
    series = {m: {title(f"uci_{s}"): paired(ll, s, m) for s in sets} for m in (*methods, "deep ensemble")}
    _, ax = plt.subplots(figsize=(8.5, 0.42 * len(sets) + 1.8))
    dots(ax, [title(f"uci_{s}") for s in sets], series, (-1.75, 1.6), [*OTHERS[: len(methods)], BLACK])
    ax.set_xlabel("test log likelihood less that of MAP; higher is better")
    save(ax, "variational", columns=4)


def paired(ll: dict[tuple[str, str, int], float], data: str, method: str) -> tuple[float, float] | None:
    """The mean difference from MAP over the splits that both have, and its standard error; 0 of one split."""
    gains = [x - ll[d, "MAP", k] for (d, m, k), x in ll.items() if (d, m) == (data, method) and (d, "MAP", k) in ll]
    return (fmean(gains), stdev(gains) / len(gains) ** 0.5 if len(gains) > 1 else 0.0) if gains else None


def dots(
    ax: Axes,
    rows: Sequence[str],
    series: dict[str, Any],
    limits: tuple[float, float] | None,
    colours: Sequence[str] = COLOURS,
) -> None:
    """A line of dots for each row, one for each series, side by side. What lies beyond the limits is an arrow at the
    edge with its value."""
    if limits:
        ax.set_xlim(*limits)
        ax.axvline(0.0, color=BLACK, lw=0.8)
    for number, (label, points) in enumerate(series.items()):
        shift = (number - (len(series) - 1) / 2) * 0.7 / max(1, len(series))
        style = {"color": colours[number % len(colours)], "ms": 4.5}
        ax.plot([], [], MARKERS[number % len(MARKERS)], label=label, **style)
        for place, row in enumerate(rows):
            if (point := points.get(row)) is None:
                continue
            (value, error), y = point, place + shift
            if limits and not limits[0] <= value <= limits[1]:
                low = value < limits[0]
                ax.plot(limits[not low], y, "<" if low else ">", clip_on=False, **style)
                words = {"textcoords": "offset points", "fontsize": 7, "va": "center", "color": style["color"]}
                ax.annotate(
                    f"{value:.1f}", (limits[not low], y), (6 if low else -6, 0), ha="left" if low else "right", **words
                )
                continue
            ax.errorbar(value, y, xerr=error or None, fmt=MARKERS[number % len(MARKERS)], lw=1, **style)
    ax.set_yticks(range(len(rows)), rows)
    ax.set_ylim(len(rows) - 0.5, -0.5)
    ax.grid(axis="x", color="#eeeeee")
    ax.set_axisbelow(True)


def save(ax: Axes, name: str, columns: int) -> None:
    """Writes the picture, with a legend of that many columns below it."""
    figure = ax.figure
    if columns:
        handles = ax.get_legend_handles_labels()
        lines = -(-len(handles[0]) // columns)
        share = (0.22 * lines + 0.1) / figure.get_figheight()
        figure.legend(*handles, loc="lower center", ncols=columns, frameon=False, fontsize=8)
        plt.tight_layout(rect=(0, share, 1, 1))
    else:
        plt.tight_layout()
    plt.savefig(PICTURES / f"study-{name}.png", pil_kwargs={"optimize": True})
    plt.close()


def main(names: Iterable[str]) -> None:
    pictures = {f.__name__: f for f in (compare, classes, conformal, resnets, swag, tables, uci, variational)}
    for name in names or pictures:
        pictures[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
