"""From how many members on is the deep ensemble better, and how sure is that: paired differences, in words.

The difference is NLL of the method less that of the deep ensemble of the very same members, image by image. A resample
draws images, the same for all sizes, and subsets of members, for each size its own: the interval is for new images and
new choices of members out of those that were trained, not for training them again. From the resampled curves follows
the crossover, the smallest K from which on the deep ensemble stays ahead.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

RESAMPLES = 1000
LEVEL = 0.95
TINY = 1e-5  # nats per image: what half precision and rounding may make of two equal predictions
PAPER = {  # names of the table of Jordahn et al. (2025), for ours
    "deep ensemble": "DE",
    "SWA": "SWA",
    "SWAG": "SWAG",
    "last-layer Laplace": "LLLA",
    "LA-NF": "LA-NF",
    "IVON": "IVON",
    "MC dropout": "MCDO",
}


class Differences(NamedTuple):
    """Of a method from the deep ensemble, for sizes 1, 2, ..."""

    mean: Tensor  # (sizes,)
    resampled: Tensor  # (resamples, sizes)

    @property
    def interval(self) -> tuple[Tensor, Tensor]:
        """Low and high of each size."""
        edges = torch.tensor([(1 - LEVEL) / 2, (1 + LEVEL) / 2], dtype=torch.float64)
        low, high = torch.quantile(self.resampled, edges, dim=0)
        return low, high


def differences(ours: Sequence[Tensor], theirs: Sequence[Tensor], seed: int = 0) -> Differences:
    """From log-probabilities (R, B) of each image under each mixture, one tensor per size."""
    gaps = [(b - a).double() for a, b in zip(ours, theirs)]  # NLL less NLL
    n = gaps[0].shape[1]
    generator = torch.Generator().manual_seed(seed)
    rows: list[Tensor] = []
    some = max(1, 2**22 // n)
    for begin in range(0, RESAMPLES, some):
        shape = (min(some, RESAMPLES - begin), n)
        drawn = torch.randint(n, shape, generator=generator)
        counts = torch.zeros(shape, dtype=torch.float64).scatter_add_(1, drawn, torch.ones(shape, dtype=torch.float64))
        each = []
        for gap in gaps:
            means = counts @ gap.T / n  # (resamples, R)
            chosen = torch.randint(len(gap), means.shape, generator=generator)
            each.append(means.gather(1, chosen).mean(1))
        rows.append(torch.stack(each, 1))
    return Differences(torch.stack([gap.mean() for gap in gaps]), torch.cat(rows))


def crossover(curve: Sequence[float]) -> float:
    """The smallest K from which on the deep ensemble is better at every size; infinity where there is none."""
    last = max((k for k, x in enumerate(curve, 1) if x <= TINY), default=0)  # the method is ahead, or equal
    return math.inf if last == len(curve) else float(last + 1)


class Crossing(NamedTuple):
    """Where the deep ensemble overtakes a method, with an interval; infinity: beyond the largest size."""

    at: float
    low: float
    high: float
    never: float  # share of resamples without a crossover

    def row(self) -> dict[str, float | None]:
        """For a record: infinity is None."""
        values = {"at": self.at, "low": self.low, "high": self.high}
        return {name: None if math.isinf(x) else x for name, x in values.items()} | {"never": self.never}


def crossing(gaps: Differences) -> Crossing:
    """The crossover of the mean curve, and quantiles of those of the resampled curves."""
    each = sorted(crossover(row) for row in gaps.resampled.tolist())
    tail = (1 - LEVEL) / 2
    low, high = (each[min(len(each) - 1, math.floor(q * len(each)))] for q in (tail, 1 - tail))
    never = sum(map(math.isinf, each)) / len(each)
    return Crossing(crossover(gaps.mean.tolist()), low, high, never)


def in_words(method: str, gaps: Differences) -> str:
    """The verdict on a method, in a sentence or two."""
    largest, cross = len(gaps.mean), crossing(gaps)
    low, high = gaps.interval
    better = [k for k in range(1, largest + 1) if high[k - 1] < -TINY]
    worse = [k for k in range(1, largest + 1) if low[k - 1] > TINY]
    if float(gaps.resampled.abs().max()) <= TINY:
        return f"{method} predicts what the deep ensemble does."
    if not better and not worse:
        at = f"cross at K = {cross.at:.0f}" if 1 < cross.at < math.inf else "do not cross"
        same = f"{method} is not significantly different from the deep ensemble at any K up to {largest}"
        return f"{same} (the mean curves {at}; 95 % for the crossover: {_between(cross, largest)})."
    if math.isinf(cross.at):
        first = f"{method} is not behind the deep ensemble at K = {largest}: no crossover up to there"
        first += f" (in {100 * (1 - cross.never):.1f} % of resamples there is one)" if cross.never < 1 else ""
    elif cross.at == 1:
        first = f"{method} is behind the deep ensemble at every K"
        first += "" if cross.high == 1 else f" (95 % for the crossover: {_between(cross, largest)})"
    else:
        first = f"the deep ensemble overtakes {method} at K = {cross.at:.0f}"
        first += f" (95 %: {_between(cross, largest)})"
    return f"{first}. Significantly better: {_ranges(better)}; significantly worse: {_ranges(worse)}."


def matched(ours: Sequence[float], own: float, plain: Sequence[float], base: float) -> list[dict[str, Any]]:
    """NLL of K members of a method beside that of as many plain members as the same training affords, for each K at
    which there are that many; `own` and `base` are what a member costs, in passes through the data."""
    rows = []
    for k, nll in enumerate(ours, 1):
        afforded = math.floor(k * own / base + 1e-9)
        if 1 <= afforded <= len(plain):
            rows.append({"size": k, "plain_size": afforded, "difference": nll - plain[afforded - 1]})
    return rows


def published(setting: str = "C10_WRN16-4") -> dict[tuple[int, str], dict[str, float]]:
    """The paper's accuracy, ELPD and ECE in a setting, by K and name."""
    with open(Path(__file__).parent / "paper.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    scores = {"accuracy": "acc", "elpd": "ELPD", "ece": "ECE"}
    return {
        (int(row["K"]), row["method"]): {name: float(row[f"{setting}_{key}"]) for name, key in scores.items()}
        for row in rows
    }


def beside_paper(curves: Mapping[str, Sequence[Mapping[str, float]]]) -> list[str]:
    """Our ELPD, accuracy and ECE beside the paper's, line by line, for methods and sizes that both have."""
    theirs = published()
    lines = [f"{'K':>2} {'method':24} {'ELPD: ours, theirs, less':>28} {'accuracy':>16} {'ECE':>16}"]
    for (k, name), paper in theirs.items():
        for method, curve in curves.items():
            if PAPER.get(method) != name or k > len(curve):
                continue
            row = curve[k - 1]
            elpd = f"{-row['nll']:+.4f} {paper['elpd']:+.3f} {-row['nll'] - paper['elpd']:+.4f}"
            rest = (f"{row[x]:.4f} {paper[x]:.3f}" for x in ("accuracy", "ece"))
            lines.append(f"{k:2} {method:24} {elpd:>28} " + " ".join(f"{x:>16}" for x in rest))
    return lines


def _between(cross: Crossing, largest: int) -> str:
    low, high = (f"beyond {largest}" if math.isinf(k) else f"{k:.0f}" for k in (cross.low, cross.high))
    return f"K = {low} to {high}"


def _ranges(sizes: Sequence[int]) -> str:
    """K = 1 to 4, 7; or none."""
    if not sizes:
        return "at no K"
    runs: list[list[int]] = []
    for k in sizes:
        if runs and k == runs[-1][-1] + 1:
            runs[-1].append(k)
        else:
            runs.append([k])
    return "K = " + ", ".join(f"{r[0]}" if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)
