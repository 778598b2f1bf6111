"""How rows of a comparison hold up where inputs change: other data, and corruptions of the test part.

Of each corruption and severity: the scores on corrupted test examples, whose targets are as they were, and the AUROC by
which uncertainty tells them from the clean ones: by the whole of it (the entropy of classes and labels, the variance of
numbers), and only by its epistemic part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .. import metrics
from ..core.nearest import did_you_mean
from ..core.tree import leaves
from ..data import Data, datasets
from ..data.corruptions import GROUPS, NAMES, corrupt
from ..data.datasets import Splits
from ..predict import NumberPredictive, Predictive
from ..scoring import pieces_of, summary_of
from ..tables import Encoder, read_table
from ..tables.corruption import ROW_NAMES, RowCorruption
from ..tables.table import READ
from .problems import about_inputs
from .references import starred
from .units import Unit

EXAMPLES = 500  # test examples that are corrupted, of each kind and severity
KEPT = 512 * 2**20  # bytes of corrupted examples that are kept from row to row
SHOWN = ("nll", "accuracy", "ece", "rmse", "coverage_90")  # of those that there are
SEVERITIES = (1, 2, 3, 4, 5)
ROUNDING = 1e-6  # of the largest uncertainty: a single network has no more than this about its weights

Chunks = Callable[[Data], Iterator[tuple[Predictive, Tensor, Tensor | None]]]


@dataclass(frozen=True, eq=False)
class Shift:
    """Corruptions of the test part, the same for every row of a comparison."""

    names: tuple[str, ...]
    test: Data  # the examples that are corrupted
    change: Callable[[str, int], Tensor]  # inputs under a corruption at a severity
    kept: dict[tuple[str, int], Data]

    @staticmethod
    def of(splits: Splits, encoder: Encoder | None, asked: str | Sequence[str]) -> Shift:
        """What was asked for: "all", groups of corruptions (noise, blur, weather, digital) or their names."""
        kind = about_inputs(splits)["kind"]
        if kind == "other":
            raise ValueError(
                "corruptions are for images and for rows of numbers, and these inputs are neither: leave corruptions "
                "out"
            )
        known = NAMES if kind == "images" else ROW_NAMES
        names = _names(asked, known, GROUPS if kind == "images" else {})
        test = splits.test.take(slice(0, EXAMPLES))
        x = leaves(test.inputs)[0]
        if kind == "images":
            shape = (len(x), 1, *splits.image) if splits.image and len(splits.image) == 2 else tuple(x.shape)
            pictures = x.reshape(shape if len(shape) == 4 else (len(x), 1, *shape[1:]))
            shift = Shift(names, test, lambda n, s: corrupt(pictures, n, s).reshape(x.shape), {})
            shift.data(names[0], 1)  # images that are not images are refused before anything is trained
            return shift
        of_rows = RowCorruption.of(leaves(splits.train.inputs)[0], None if encoder is None else encoder.columns)
        return Shift(names, test, lambda n, s: of_rows.corrupt(x, n, s), {})

    def data(self, name: str, severity: int) -> Data:
        """The examples under a corruption; kept for the next row, where they are few enough."""
        if (name, severity) in self.kept:
            return self.kept[name, severity]
        corrupted = Data(self.change(name, severity), self.test.targets, self.test.weights)
        each = corrupted.inputs.numel() * corrupted.inputs.element_size()
        if each * len(self.names) * len(SEVERITIES) <= KEPT:
            self.kept[name, severity] = corrupted
        return corrupted

    def measure(self, chunks_of: Chunks, unit: Unit, seed: int) -> dict[str, Any]:
        """The record of one row: scores and AUROC of each corruption and severity; severity 0 is the clean examples."""
        clean, before = _scored(chunks_of, self.test, unit, seed)
        rows: list[dict[str, Any]] = [{"corruption": "none", "severity": 0, **clean}]
        for name in self.names:
            for severity in SEVERITIES:
                scores, after = _scored(chunks_of, self.data(name, severity), unit, seed)
                aurocs = {f"auroc_{part}": auroc_of(before[part], after[part]) for part in before}
                rows.append({"corruption": name, "severity": severity, **scores, **aurocs})
        return {"n": self.test.n, "rows": rows}


def shifted_means(record: dict[str, Any]) -> dict[str, float]:
    """The mean of each score over corruptions and severities, of what `Shift.measure` gives."""
    rows = [row for row in record["rows"] if row["severity"]]
    names = [name for name in (*SHOWN, "auroc_total", "auroc_epistemic") if rows[0].get(name) is not None]
    return {f"shifted_{name}": float(np.mean([row[name] for row in rows])) for name in names}


def shift_table(records: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]] | None:
    """Headings and rows that a person reads, the best under corruption first: means over corruptions and seeds. None
    where there are no corruptions in the records."""
    of: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        if "shift" in record:
            of.setdefault(record["method"], []).extend(record["shift"]["rows"])
    if not of:
        return None
    kept = "coverage_90" if "coverage_90" in next(iter(of.values()))[0] else "ece"
    word = {"coverage_90": "in 90%", "ece": "ECE"}[kept]
    heads = ["method", "NLL", *(f"NLL {s}" for s in SEVERITIES), word, f"{word} 3", f"{word} 5", "AUROC", "epistemic"]
    rows = []
    for method, entries in sorted(of.items(), key=lambda item: _mean(item[1], "nll", SEVERITIES)):
        values = [_mean(entries, "nll", [s]) for s in (0, *SEVERITIES)]
        cells = [f"{v:.3f}" if abs(v) < 1000 else f"{v:.3g}" for v in values]
        cells += [format(_mean(entries, kept, [s]), ".1%" if kept == "coverage_90" else ".3f") for s in (0, 3, 5)]
        areas = [_mean(entries, f"auroc_{part}", SEVERITIES) for part in ("total", "epistemic")]
        rows.append([starred(method), *cells, *("-" if np.isnan(v) else f"{v:.3f}" for v in areas)])
    return heads, rows


def shift_legend(records: Sequence[dict[str, Any]]) -> str:
    """What the columns of that table mean."""
    first = next(r for r in records if "shift" in r)
    doubt = "entropy" if "brier" in first["scores"] else "variance"
    names = dict.fromkeys(row["corruption"] for row in first["shift"]["rows"] if row["severity"])
    return (
        f"NLL and calibration of {first['shift']['n']:,} test examples as they are, then at severities 1 to 5 of "
        f"corruption, means over {', '.join(names)}. AUROC: how well the {doubt}, or only its epistemic part, "
        "separates corrupted examples from clean ones, mean over severities; .5 is chance."
    )


def _mean(entries: Sequence[dict[str, Any]], key: str, severities: Sequence[int]) -> float:
    values = [e[key] for e in entries if e["severity"] in severities and e.get(key) is not None]
    return float(np.mean(values)) if values else float("nan")


def _names(asked: str | Sequence[str], known: Sequence[str], groups: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    words = [w.strip().lower() for w in (asked.split(",") if isinstance(asked, str) else asked)]
    chosen: list[str] = []
    for word in words:
        if word not in ("all", *groups, *known):
            raise ValueError(
                f"expected --corrupt all, or names of corruptions, got {word!r}.{did_you_mean(word, [*groups, *known])}"
            )
        chosen += known if word == "all" else groups.get(word, (word,))
    return tuple(dict.fromkeys(chosen))


def _scored(chunks_of: Chunks, data: Data, unit: Unit, seed: int) -> tuple[dict[str, float], dict[str, np.ndarray]]:
    """Scores, and the uncertainty of each example."""
    pieces, doubts = [], []
    for predictive, targets, mask in chunks_of(data):
        pieces.append(pieces_of(predictive, targets, mask))
        doubts.append(doubt_of(predictive))
    scores = unit.scores(summary_of(pieces, seed=seed))
    joined = {name: np.concatenate([doubt[name] for doubt in doubts]) for name in doubts[0]}
    return {name: scores[name] for name in SHOWN if name in scores}, joined


def doubt_of(predictive: Predictive) -> dict[str, np.ndarray]:
    """The whole uncertainty of each example, and what is about the weights; the mean over elements of a target."""
    total = predictive.variance if isinstance(predictive, NumberPredictive) else predictive.entropy
    about_weights = [getattr(predictive, part) for part in predictive.parts if part != "aleatoric"]
    epistemic = torch.stack(about_weights).sum(0)
    both = {"total": total, "epistemic": torch.where(epistemic > ROUNDING * total.max(), epistemic, 0.0)}
    return {name: x.reshape(len(x), -1).double().mean(1).cpu().numpy() for name, x in both.items()}


def auroc_of(inside: np.ndarray, outside: np.ndarray) -> float | None:
    """The AUROC of outside against inside; None where the uncertainty is the same everywhere, as that about the weights
    of a single network is."""
    if np.ptp(np.concatenate([inside, outside])) == 0:
        return None
    return float(metrics.auroc(torch.from_numpy(inside), torch.from_numpy(outside)))


def with_ood(
    splits: Splits, encoder: Encoder | None, source: str | Path, folder: Path | str | None, seed: int
) -> Splits:
    """The splits with other inputs as what is out of distribution: the test part of another set, or rows of a file."""
    file = Path(source)
    if file.suffix.lower() in READ:
        if encoder is None:
            raise ValueError(
                f"--ood {source}: a file can be used only in a comparison on a file with the same columns; name a set "
                "instead"
            )
        inputs, name = encoder.inputs(read_table(file)), file.name
    else:
        other = datasets.load(str(source), seed=seed, folder=folder)
        inputs, name = leaves(other.test.inputs)[0], other.name
    like = leaves(splits.train.inputs)[0]
    if splits.image and inputs.dim() == 4 and inputs.shape[2:] == splits.image:
        inputs = inputs.flatten(1)
    if inputs.shape[1:] != like.shape[1:]:
        raise ValueError(
            f"--ood {source}: expected inputs of shape {tuple(like.shape[1:])}, as {splits.name} has, got "
            f"{tuple(inputs.shape[1:])}"
        )
    targets = splits.test.targets[:1].expand(len(inputs), *splits.test.targets.shape[1:])
    return replace(splits, ood=Data(inputs.to(like), targets.contiguous()), ood_name=name)
