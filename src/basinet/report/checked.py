"""What a run folder may hold, field by field: whatever is of another type or shape is left out before anything is
computed from it, so that the rest of the report never sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any

import numpy as np

Arrays = dict[str, np.ndarray]
LARGEST = 1e150  # of numbers: the squares of larger ones are infinite
LONGEST = 120  # characters of a name


def record(raw: Any) -> dict[str, Any] | None:
    """A record with the fields that are what they should be; None where it cannot be a row."""
    if not isinstance(raw, dict) or not isinstance(raw.get("method"), str) or "scores" not in raw:
        return None
    fields = _fields(raw, RECORD)
    return fields | {"scores": fields.get("scores", {}), "method": name(raw["method"])}


def information(raw: Mapping[str, Any]) -> dict[str, Any]:
    """What run.json says, without the fields that are not what they should be."""
    return _fields(raw, INFORMATION)


def predictions(raw: Mapping[str, np.ndarray]) -> Arrays:
    """The arrays of numbers that have one row for each example, as many as the log likelihoods if there are any,
    else as most have; and the uncertainties of other inputs, which may be more or fewer."""
    numbers = {key: numeric for key, array in raw.items() if (numeric := _numbers(key, array)) is not None}
    lengths = [len(array) for key, array in numbers.items() if key != "ood_uncertainty"]
    if not lengths:
        return {}
    n = len(numbers["log_prob"]) if "log_prob" in numbers else max(lengths, key=lengths.count)
    kept = {key: array for key, array in numbers.items() if key == "ood_uncertainty" or len(array) == n}
    for one, other in (("confidence", "correct"), ("top_probs", "top_classes")):
        if not (one in kept and other in kept and kept[one].shape == kept[other].shape):
            kept = {key: array for key, array in kept.items() if key not in (one, other)}
    return kept


def examples(raw: Mapping[str, np.ndarray], info: Mapping[str, Any]) -> Arrays:
    """Targets as numbers, and inputs as the information about them says they are."""
    kept: Arrays = {}
    targets, inputs = raw.get("targets"), raw.get("inputs")
    if targets is not None and targets.dtype.kind in "fiub" and targets.ndim in (1, 2) and targets.size:
        kept["targets"] = targets
    if inputs is None or inputs.ndim < 2 or not inputs.size:
        return kept
    images = (info.get("inputs") or {}).get("kind") == "images"
    pictures = inputs.dtype == np.uint8 and (inputs.ndim == 3 or (inputs.ndim == 4 and inputs.shape[3] in (1, 3)))
    rows = inputs.dtype.kind in "fiubU" and inputs.ndim == 2
    return kept | ({"inputs": inputs} if (pictures if images else rows) else {})


def name(text: str) -> str:
    """A name as the page can show it: not too long, and of characters that can be written."""
    plain = text.encode("utf-8", "replace").decode()
    if len(plain) <= LONGEST:
        return plain
    return f"{plain[: LONGEST - 10]}… {sha256(plain.encode()).hexdigest()[:8]}"  # different names stay different


def _fields(raw: Mapping[str, Any], known: Mapping[str, Callable[[Any], Any]]) -> dict[str, Any]:
    return {key: value for key, check in known.items() if (value := check(raw.get(key))) is not None}


def _number(value: Any) -> float | int | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if abs(value) <= LARGEST else None  # NaN is not, either


def _whole(value: Any) -> int | None:
    return value if isinstance(_number(value), int) else None


def _count(value: Any) -> int | None:
    number = _whole(value)
    return number if number is not None and number >= 0 else None


def _some(value: Any) -> int | None:
    return _count(value) or None


def _flag(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def _text(value: Any) -> str | None:
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else None


def _name(value: Any) -> str | None:
    return name(value) if isinstance(value, str) else None


def _listed(of: Callable[[Any], Any]) -> Callable[[Any], list[Any] | None]:
    """A list whose values are all of a kind."""

    def check(value: Any) -> list[Any] | None:
        if not isinstance(value, list):
            return None
        items = [of(v) for v in value]
        return None if any(v is None for v in items) else items

    return check


def _mapped(of: Callable[[Any], Any]) -> Callable[[Any], dict[str, Any] | None]:
    """A dict; values of another kind are left out."""

    def check(value: Any) -> dict[str, Any] | None:
        if not isinstance(value, dict):
            return None
        return {name(key): item for key, v in value.items() if (item := of(v)) is not None}

    return check


def _having(*names: str, word: str = "") -> Callable[[Any], list[dict[str, Any]] | None]:
    """A list of dicts, of which those that have all of these numbers, and the word, are kept."""

    def check(value: Any) -> list[dict[str, Any]] | None:
        if not isinstance(value, list):
            return None
        dicts = [row for row in value if isinstance(row, dict) and (not word or isinstance(row.get(word), str))]
        rows = [row for row in dicts if all(_number(row.get(n)) is not None for n in names)]
        return [{name(k): v for k, v in row.items() if _number(v) is not None or k == word} for row in rows]

    return check


def _curves(value: Any) -> dict[str, Any] | None:
    """Curves as they are, if no number in them is too large to be shown."""
    return {name(k): v for k, v in value.items() if _shallow(v)} if isinstance(value, dict) else None


def _shallow(value: Any, depth: int = 3) -> bool:
    """Numbers in lists of lists."""
    if isinstance(value, list):
        return depth > 0 and all(_shallow(v, depth - 1) for v in value)
    return value is None or isinstance(value, float) or _number(value) is not None


def _ood(value: Any) -> dict[str, Any] | None:
    if not isinstance(value, dict) or _number(value.get("auroc")) is None:
        return None
    fields = {"auroc": value["auroc"], "name": _name(value.get("name")), "n": _count(value.get("n"))}
    fields["auroc_epistemic"] = _number(value.get("auroc_epistemic"))
    return {key: v for key, v in fields.items() if v is not None}


def _shift(value: Any) -> dict[str, Any] | None:
    """Scores under corruptions: rows of a word, a severity and numbers."""
    if not isinstance(value, dict):
        return None
    rows = _having("severity", "nll", word="corruption")(value.get("rows"))
    named = [{**row, "corruption": name(row["corruption"])} for row in rows or ()]
    return {"n": _count(value.get("n")) or 0, "rows": named} if named else None


def _chains(value: Any) -> dict[str, Any] | None:
    """What was found of chains: a verdict, and draws of a few quantities."""
    if not isinstance(value, dict) or not isinstance(value.get("verdict"), str):
        return None
    lines = _listed(_listed(_number))
    fields = {"every": _some, "trace": lines, "ranks": lines, "autocorrelation": lines}
    shown: dict[str, Any] = {}
    for key, raw in (value.get("shown") or {}).items() if isinstance(value.get("shown"), dict) else ():
        entry = _fields(raw, fields) if isinstance(raw, dict) else {}
        full = len(entry) == len(fields) and all(entry[n] and all(entry[n]) for n in fields if n != "every")
        if full and len({len(of) for of in entry["ranks"]}) == 1:
            shown[name(key)] = entry
    rows = _having(word="name")(value.get("rows")) or []
    named = [{**row, "name": name(row["name"])} for row in rows]
    known = value.get("converged")
    converged = {"converged": known} if isinstance(known, bool) else {}
    return {"verdict": _text(value["verdict"]), "rows": named, "shown": shown, **converged}


def _inputs(value: Any) -> dict[str, Any] | None:
    return _fields(value, {"kind": _name, "columns": _listed(_name)}) if isinstance(value, dict) else None


def _numbers(key: str, array: np.ndarray) -> np.ndarray | None:
    """An array as plain numbers, one row or more, one or two axes; None where it is no such thing."""
    if array.dtype.kind not in "fiub" or array.ndim not in (1, 2) or not array.size:
        return None
    if key == "correct":
        return array.astype(bool)
    if key in ("top_probs", "top_classes") and array.ndim != 2:
        return None
    if key == "top_classes":
        return array if array.dtype.kind in "iu" else None
    alone = ("log_prob", "total", "test_uncertainty", "ood_uncertainty", "aleatoric", "between", "within")
    if key in alone and array.ndim != 1:
        return None
    return array if array.dtype == np.float32 else array.astype(np.float64)


RECORD: dict[str, Callable[[Any], Any]] = {
    "data": _name,
    "scores": _mapped(_number),
    "members": _some,
    "asked": _some,
    "seed": _whole,
    "n_train": _count,
    "n_test": _count,
    "fit_seconds": _number,
    "own_seconds": _number,
    "predict_seconds": _number,
    "steps": _number,
    "draws": _number,
    "size_curve": _having("size"),
    "curves": _curves,
    "training": lambda value: value if isinstance(value, dict) else None,
    "spread": _name,
    "tempered": _flag,
    "crossed": _flag,
    "temperature": _listed(_number),
    "reference": _flag,
    "unset": _name,
    "ood": _ood,
    "chains": _chains,
    "shift": _shift,
    "sets": _having("level", "coverage", "low", "high", "size", word="kind"),
    "arrays": _text,
    "recipe": lambda value: value,
    "time": _name,
    "versions": _mapped(_name),
}
INFORMATION: dict[str, Callable[[Any], Any]] = {
    "format": _whole,
    "finished": _flag,
    "command": _listed(_text),
    "data": _name,
    "description": _text,
    "kind": _name,
    "classes": _listed(_name),
    "target": _name,
    "unit": _name,
    "n_train": _count,
    "n_val": _count,
    "n_test": _count,
    "budget": lambda value: value,
    "network": _text,
    "parameters": _count,
    "warnings": _listed(_text),
    "chosen": _text,
    "inputs": _inputs,
    "seeds": _listed(_whole),
    "planned": _listed(_name),
    "failed": _mapped(_text),
    "versions": _mapped(_name),
    "created": _name,
}
