"""The test examples a person should look at: the most uncertain ones, and the most confidently wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from .checked import name
from .png import data_uri
from .run import Arrays, Row, Run
from .words import number

EACH = 12  # examples of either kind
BYTES = 400_000  # that images may take in all
COLUMNS = 24  # of rows that are shown


@dataclass(frozen=True)
class Gallery:
    """Examples of some rows, each example's input stored once."""

    rows: dict[str, dict[str, list[dict[str, Any]]]]  # row -> uncertain | wrong -> examples: number, truth, said, doubt
    inputs: dict[int, Any]  # number of an example -> image as a data URI, or values
    columns: list[str]  # of values
    doubt: str  # what uncertainty is measured by
    left_out: int  # rows without examples here, because the page would grow too large


def gallery(run: Run) -> Gallery | None:
    """Examples of as many rows, the best first, as there is room for; None where nothing was kept of the examples."""
    targets = run.test.get("targets")
    if targets is None:
        return None
    inputs = run.test.get("inputs")
    images = run.info.get("inputs", {}).get("kind") == "images" and inputs is not None
    known: dict[int, Any] = {}
    shown: dict[str, dict[str, list[dict[str, Any]]]] = {}
    spent = 0
    able = [row for row in run.rows if row.arrays and _usable(row.arrays[0], targets)]
    for row in able:
        examples = {kind: _examples(run, row, order) for kind, order in _orders(run, row.arrays[0]).items()}
        new: dict[int, Any] = {}
        for example in (e for some in examples.values() for e in some):
            i = example["number"]
            if inputs is not None and i < len(inputs) and i not in known:
                new[i] = data_uri(inputs[i]) if images else _values(inputs[i])
        spent += sum(len(str(v)) for v in new.values())
        if shown and spent > BYTES:
            break
        known |= new
        shown[row.name] = examples
    if not shown:
        return None
    doubt = "entropy" if run.kind != "real" else "sd" if "sd" in able[0].arrays[0] else "variance"
    return Gallery(shown, known, _columns(run, inputs, images), doubt, len(able) - len(shown))


def _usable(arrays: Arrays, targets: np.ndarray) -> bool:
    return "log_prob" in arrays and len(arrays["log_prob"]) == len(targets)


def _orders(run: Run, arrays: Arrays) -> dict[str, np.ndarray]:
    """Numbers of examples: the most uncertain, and the most surprising, or for classes wrong ones by confidence."""
    doubt = _doubt(arrays)
    orders = {} if doubt is None else {"uncertain": np.argsort(-doubt, kind="stable")[:EACH]}
    if run.kind == "classes" and "correct" in arrays and arrays["correct"].ndim == 1:
        wrong = np.flatnonzero(~arrays["correct"].astype(bool))
        orders["wrong"] = wrong[np.argsort(-arrays["confidence"][wrong], kind="stable")][:EACH]
    else:
        orders["wrong"] = np.argsort(arrays["log_prob"], kind="stable")[:EACH]
    return orders


def _doubt(arrays: Arrays) -> np.ndarray | None:
    """How uncertain each example is: sums over the elements of its target."""
    name = next((n for n in ("sd", "test_uncertainty", "total") if n in arrays), None)
    n = len(arrays["log_prob"])
    if name is None or arrays[name].size % n:
        return None
    return np.nan_to_num(arrays[name].reshape(n, -1).sum(1), nan=-np.inf)


def _examples(run: Run, row: Row, order: np.ndarray) -> list[dict[str, Any]]:
    arrays = row.arrays[0]
    doubt = _doubt(arrays)
    examples = []
    for i in map(int, order):
        said, truth = _said(run, arrays, i)
        entry = {"number": i, "truth": truth, "said": said, "surprise": number(-float(arrays["log_prob"][i]))}
        if doubt is not None:
            entry["doubt"] = number(float(doubt[i]))
        examples.append(entry)
    return examples


def _said(run: Run, arrays: Arrays, i: int) -> tuple[str, str]:
    """What was predicted, and what was true, in words."""
    target = run.test["targets"][i]
    if run.kind == "classes":
        plain = np.ndim(target) == 0 and bool(np.isfinite(target))
        truth = run.class_name(int(target)) if plain else str(np.asarray(target).tolist())
        if "top_probs" in arrays:
            pairs = [(int(c), float(p)) for c, p in zip(arrays["top_classes"][i], arrays["top_probs"][i])]
        elif "probs" in arrays and arrays["probs"].ndim == 2:
            row = arrays["probs"][i]
            pairs = [(int(c), float(row[c])) for c in np.argsort(-row)[:5]]
        else:
            return "", truth
        likely = [(c, p) for c, p in pairs[:3] if p >= 0.005] or pairs[:1]
        return ", ".join(f"{run.class_name(c)} ({_share(p)})" for c, p in likely), truth
    if run.kind == "labels":
        flat = np.asarray(target).reshape(-1)
        probs = np.asarray(arrays["probs"][i]).reshape(-1) if "probs" in arrays else np.zeros(0)
        truth = ", ".join(run.class_name(int(k)) for k in np.flatnonzero(flat > 0.5)) or "none"
        both = enumerate(zip(probs, flat))
        said = ", ".join(f"{run.class_name(k)} ({p:.0%})" for k, (p, y) in both if p >= 0.2 or y > 0.5)
        return said or "none", truth
    truth = ", ".join(number(float(v)) for v in np.asarray(target).reshape(-1)[:4]) + (
        f" {run.unit}" if run.unit else ""
    )
    if "mean" not in arrays:
        return "", truth
    said = ", ".join(number(float(v)) for v in np.asarray(arrays["mean"][i]).reshape(-1)[:4])
    bounds = [np.reshape(arrays[end][i], -1) for end in ("low90", "high90") if end in arrays]
    if [len(bound) for bound in bounds] == [1, 1]:
        said += f" ({number(float(bounds[0][0]))} to {number(float(bounds[1][0]))})"
    return said, truth


def _share(p: float) -> str:
    """A probability in percent; none but a certainty is 100."""
    return ">99%" if 0.995 <= p < 1 else f"{p:.0%}"


def _values(row: np.ndarray) -> list[str]:
    if row.dtype.kind == "U":  # cells of a file, as they were
        return [name(str(v)) for v in row[:COLUMNS]]
    return [number(float(v)) for v in np.asarray(row).reshape(-1)[:COLUMNS]]


def _columns(run: Run, inputs: np.ndarray | None, images: bool) -> list[str]:
    if inputs is None or images:
        return []
    width = min(COLUMNS, int(np.prod(inputs.shape[1:])))
    names = run.info.get("inputs", {}).get("columns") or []
    return [str(names[j]) if j < len(names) else f"input {j}" for j in range(width)]
