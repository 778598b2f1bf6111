"""A run folder as the report reads it: what `basinet compare` wrote, checked, with a notice for whatever is missing."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from ..pool import FileError
from ..pool.arrays import read_arrays
from ..pool.records import salvage_records
from . import checked
from .checked import Arrays
from .measures import Difference, paired_differences

FORMAT = 1  # of run.json
SEEDS = 3  # from which on there is a standard error over seeds: two may be close by chance


@dataclass(frozen=True)
class Row:
    """One line of the comparison: a recipe with its number of members, over all seeds."""

    name: str
    records: list[dict[str, Any]]  # one per seed, in the order of seeds
    arrays: list[Arrays]  # what each seed predicted for the test examples; empty where the file is missing

    @property
    def members(self) -> int:
        """Of an ensemble whose seeds lost some to divergence: the most that a seed has."""
        return max(_members(r) for r in self.records)

    @property
    def reference(self) -> bool:
        """Whether it is not a posterior, but a simple model to compare them with."""
        return all(r.get("reference") is True for r in self.records)

    @property
    def temperature(self) -> float:
        """What its predictions were tempered with, the mean over members and seeds; NaN where they were not."""
        temperatures = [v for r in self.records for v in r.get("temperature", [])]
        return math.fsum(temperatures) / len(temperatures) if temperatures else math.nan

    @property
    def members_in_words(self) -> str:
        """How many there are, and of how many that were asked for."""
        counts, asked = sorted({_members(r) for r in self.records}), _asked(self.records[0])
        count = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        return count if counts == [asked] else f"{count} of {asked}"

    @property
    def seeds(self) -> list[int]:
        return [r.get("seed", 0) for r in self.records]

    def values(self, key: str) -> list[float]:
        """A number of the record, of each seed that has it: one of its scores, or one beside them."""
        scores = (r["scores"].get(key, r.get(key)) for r in self.records)
        return [float(v) for v in scores if isinstance(v, (int, float))]

    def value(self, key: str) -> float:
        """Its mean over seeds; NaN where none has it."""
        values = self.values(key)
        return math.fsum(values) / len(values) if values else math.nan

    def error(self, key: str) -> float:
        """The standard error of that mean; NaN for fewer than SEEDS seeds."""
        values = self.values(key)
        return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) >= SEEDS else math.nan

    def have(self, *names: str) -> list[Arrays]:
        """The arrays of the seeds that have all of these."""
        return [a for a in self.arrays if all(n in a for n in names)]

    def by_seed(self, name: str) -> dict[int, np.ndarray]:
        """One array of each seed that has it."""
        return {s: a[name] for s, a in zip(self.seeds, self.arrays) if name in a}

    def joined(self, name: str) -> np.ndarray | None:
        """One array of all seeds, one after another; None where none has it."""
        arrays = [a[name] for a in self.have(name)]
        alike = [a for a in arrays if a.shape[1:] == arrays[0].shape[1:]]
        return np.concatenate(alike) if alike else None


@dataclass(frozen=True)
class Run:
    """Everything the report knows."""

    folder: Path
    info: dict[str, Any]  # run.json; empty for a folder of an older version
    rows: list[Row]  # by NLL, the best first
    test: Arrays  # targets and inputs of the test examples, where they were kept
    notices: list[str] = field(default_factory=list)  # what is missing, damaged or left out, and why

    @property
    def kind(self) -> str:
        """classes, labels or real; for an older folder by the scores there are."""
        known = self.info.get("kind")
        return known if known in ("classes", "labels", "real") else _guess(self.rows)

    @property
    def data(self) -> str:
        return str(self.info.get("data") or self.rows[0].records[0].get("data", self.folder.name))

    @property
    def seeds(self) -> list[int]:
        return sorted({s for row in self.rows for s in row.seeds})

    @property
    def unit(self) -> str:
        return str(self.info.get("unit") or "")

    @property
    def n_test(self) -> int:
        return int(self.info.get("n_test") or self.rows[0].records[0].get("n_test", 0))

    @property
    def finished(self) -> bool:
        return bool(self.info.get("finished", True))

    @property
    def missing(self) -> list[str]:
        """Planned rows of which some seed is not there, though it did not fail."""
        seeds = self.info.get("seeds") or []
        done: dict[str, set[int]] = {}
        for row in self.rows:
            done.setdefault(str(row.records[0]["method"]), set()).update(row.seeds)
        planned = [label for label in self.info.get("planned") or [] if label not in self.failed]
        return [label for label in planned if not set(seeds or [0]) <= done.get(label, set())]

    @property
    def failed(self) -> dict[str, str]:
        """Rows that could not be fitted, and why."""
        return dict(self.info.get("failed") or {})

    @property
    def leader(self) -> Row:
        """The best row that is a posterior; the best of all where none is."""
        return next((row for row in self.rows if not row.reference), self.rows[0])

    @cached_property
    def differences(self) -> dict[str, Difference]:
        """By how much the NLL of other rows is above the best one's, paired by test example and by the seeds that both
        have. Rows without predictions for the same examples are left out."""
        best = self.rows[0].by_seed("log_prob")
        alike: dict[tuple[int, ...], list[tuple[Row, dict[int, np.ndarray]]]] = {}  # rows that share the same seeds
        for row in self.rows[1:]:
            own = row.by_seed("log_prob")
            common = tuple(s for s in own if s in best and own[s].shape == best[s].shape)
            if common and len({own[s].shape for s in common}) == 1:
                alike.setdefault(common, []).append((row, own))
        named: dict[str, Difference] = {}
        with np.errstate(invalid="ignore"):  # infinite less infinite
            for seeds, rows in alike.items():
                gaps = [[best[s].astype(np.float64) - own[s] for s in seeds] for _, own in rows]  # (R, S, B)
                intervals = paired_differences(np.moveaxis(np.array(gaps), 0, -1))
                named |= {row.name: d for (row, _), d in zip(rows, intervals)}
        return {row.name: named[row.name] for row in self.rows if row.name in named}

    def class_name(self, number: int) -> str:
        names = self.info.get("classes") or []
        return str(names[number]) if 0 <= number < len(names) else str(number)


def _members(record: dict[str, Any]) -> int:
    return int(record.get("members", 1))


def _asked(record: dict[str, Any]) -> int:
    """Members that were to be trained; some may have diverged."""
    return int(record.get("asked") or _members(record))


def read_run(folder: Path) -> Run:
    """Reads a run folder. What cannot be shown without is an error; all else that is missing becomes a notice."""
    if not folder.is_dir():
        raise FileError(folder, "there is no such folder: give the one that `basinet compare` wrote")
    if not (folder / "records.jsonl").is_file():
        raise FileError(folder, "it has no records.jsonl: give a folder that `basinet compare` wrote a row into")
    notices: list[str] = []
    info = _read_info(folder / "run.json", notices)
    records = _read_records(folder / "records.jsonl", notices)
    rows = _rows(folder, _of_one_data_set(records, info, notices), notices)
    rows.sort(key=_rank)
    test = checked.examples(_read_arrays(folder / "test.npz", notices), info) if info else {}
    return Run(folder, info, rows, test, notices)


def _rank(row: Row) -> tuple[float, float]:
    """By NLL, of equal ones (but for rounding) the cheaper first, those without one last."""
    nll, seconds = row.value("nll"), row.value("fit_seconds")
    return math.inf if math.isnan(nll) else round(nll, 6), 0.0 if math.isnan(seconds) else seconds


def _read_info(path: Path, notices: list[str]) -> dict[str, Any]:
    if not path.is_file():
        notices.append(
            "This folder has no run.json: an older version of basinet wrote it. This page shows what its records "
            "contain; for the rest, run basinet compare again with another --out (move pool/ there, so that members "
            "are not trained again)."
        )
        return {}
    try:
        info = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError, OSError) as error:
        raise FileError(path, f"it is damaged or cut short, or not JSON ({error})") from error
    if not isinstance(info, dict) or type(info.get("format")) is not int:
        raise FileError(path, "it was not written by basinet: it has no format number")
    if info["format"] > FORMAT:
        raise FileError(
            path, f"it has format {info['format']:.9g}, newer than this basinet reads ({FORMAT}): upgrade basinet"
        )
    known = checked.information(info)
    lost = [key for key in checked.INFORMATION if info.get(key) is not None and key not in known]
    if lost:
        notices.append(f"run.json was altered: {', '.join(lost)} is not what it should be and was left out.")
    return known


def _read_records(path: Path, notices: list[str]) -> list[dict[str, Any]]:
    """The records of a file that can be rows; a notice says how many lines cannot."""
    raw, damaged = salvage_records(path)
    checks = [(checked.record(r), r) for r in raw if not isinstance(r, dict) or "scores" in r]
    records = [record for record, _ in checks if record is not None]
    damaged += len(checks) - len(records)
    if damaged:
        notices.append(f"{path.name}: {damaged} line{'s are' if damaged > 1 else ' is'} damaged and left out.")
    if not records:
        raise FileError(path, "it has no rows yet: wait until `basinet compare` has finished one")
    return records


def _of_one_data_set(records: list[dict[str, Any]], info: dict[str, Any], notices: list[str]) -> list[dict[str, Any]]:
    name = info.get("data") or records[-1].get("data")
    kept = [r for r in records if r.get("data") == name]
    if not kept:
        raise FileError(
            "records.jsonl", f"none of its {len(records)} rows is of the data set {name!r} that run.json names"
        )
    if len(kept) < len(records):
        others = sorted({str(r.get("data")) for r in records} - {str(name)})
        notices.append(f"The folder also has rows of other data sets, which are left out: {', '.join(others)}.")
    return kept


def _rows(folder: Path, records: Sequence[dict[str, Any]], notices: list[str]) -> list[Row]:
    """Rows in the order they came; of a (label, members asked for, seed) that was run again, the last."""
    grouped: dict[tuple[str, int], dict[int, dict[str, Any]]] = {}
    for r in records:
        grouped.setdefault((r["method"], _asked(r)), {})[r.get("seed", 0)] = r
    labels = [label for label, _ in grouped]
    rows = []
    for (label, asked), by_seed in grouped.items():
        name = label if labels.count(label) == 1 else f"{label} ({asked})"
        ordered = [by_seed[s] for s in sorted(by_seed)]
        arrays = [checked.predictions(_of_record(folder, r, notices)) for r in ordered]
        rows.append(Row(name, ordered, arrays))
    return rows


def _of_record(folder: Path, record: dict[str, Any], notices: list[str]) -> Arrays:
    name = record.get("arrays")
    if not name:
        return {}
    path = folder / name
    if ".." in path.parts or Path(name).is_absolute() or "\0" in name:
        notices.append(f"The arrays of {record['method']} are outside the folder and were left out.")
        return {}
    return _read_arrays(path, notices)


def _read_arrays(path: Path, notices: list[str]) -> Arrays:
    """Arrays of a file; none, and a notice, where it is missing or damaged."""
    try:
        return read_arrays(path)
    except FileError as error:
        if not path.exists():
            notices.append(f"{path.name} is missing: everything that needs its predictions is left out.")
        else:
            notices.append(f"{path.name} is damaged or cut short and was left out ({error.reason}).")
    except OSError as error:  # a name that no file can have
        notices.append(f"The file of some predictions cannot be opened and was left out ({error.strerror}).")
    return {}


def _guess(rows: Sequence[Row]) -> str:
    return "classes" if not math.isnan(rows[0].value("brier")) else "real"
