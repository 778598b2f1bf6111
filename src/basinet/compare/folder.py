"""The run folder: what was planned, a record per row and seed, arrays per example, the test part, the pool of members.

    run.json        what is compared, on what, and whether all of it is there
    records.jsonl   one line per label and seed
    arrays/*.npz    one file per record: numbers per example
    test.npz        targets and inputs of the test part
    pool/           members, shared by all rows

A run that was stopped goes on: a record of the same row, recipe, seed, data, network and version is not made again.
"""

from __future__ import annotations

import json
import math
import platform
import re
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..core.version import VERSION
from ..pool import FileError, append_record, describe, fingerprint, unlike
from ..pool.arrays import write_arrays
from ..pool.files import alone, atomically
from ..pool.records import salvage_records
from .rows import Row

FORMAT = 1
OTHER = "other data, another network or other weights"  # what records are of that cannot be used
Say = Callable[[str], None]


class RunFolder:
    """A run folder that is written to. `about` is what run.json says beside its own fields; `of` stands for the data
    and the problem."""

    def __init__(
        self, path: Path, about: dict[str, Any], of: str, rows: Sequence[Row], seeds: Sequence[int], say: Say
    ) -> None:
        self.path, self.of = path, of
        with self._alone():
            self._take_over(about, rows, seeds, say)

    def _take_over(self, about: dict[str, Any], rows: Sequence[Row], seeds: Sequence[int], say: Say) -> None:
        """Keeps what still holds of an earlier run in the folder."""
        path, of = self.path, self.of
        before = read_run(path)
        if self._records.exists() and not self._records.is_file():
            raise FileError(self._records, "expected a file of records: give another --out")
        old, damaged = salvage_records(self._records) if before is not None and self._records.exists() else ([], 0)
        self.about = {
            "format": FORMAT,
            "finished": False,
            **about,
            "of": of,
            "seeds": list(seeds),
            "failed": {},
            "versions": versions(),
            "created": (before or {}).get("created") or datetime.now(UTC).isoformat(timespec="seconds"),
        }
        kept = self._kept(old, damaged, before, rows, say)
        self.known = {(r["method"], r["seed"]): r for r in kept}
        labels = [row.label for row in rows]
        self.about["planned"] = labels + sorted({r["method"] for r in kept} - set(labels))
        self.about["seeds"] = sorted({*seeds, *(r["seed"] for r in kept)})
        if len(kept) < len(old) + damaged:
            lines = "".join(json.dumps(r, allow_nan=False) + "\n" for r in kept)
            atomically(self._records, lambda temporary: Path(temporary).write_text(lines))
        self._write()

    def add(self, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> dict[str, Any]:
        """Writes the arrays, then the record that names them."""
        name = f"arrays/{_file_name(record['method'])}-{record['seed']}.npz"
        write_arrays(self.path / name, arrays)
        whole = finite(record | {"of": self.of, "arrays": name, "arrays_checksum": _checksum_of(self.path / name)})
        with self._alone():
            return append_record(self._records, whole | {"checksum": _checksum(whole)})

    def fail(self, label: str, reason: str) -> None:
        """Says in run.json that a row has no records, and why."""
        self.about["failed"][label] = reason
        self._write()

    def finish(self) -> None:
        """Says that everything is there."""
        self.about["finished"] = True
        self._write()

    def _alone(self) -> AbstractContextManager[None]:
        """While no other process writes records here."""
        return alone(self.path / ".records.lock")

    @property
    def _records(self) -> Path:
        return self.path / "records.jsonl"

    def _write(self) -> None:
        text = json.dumps(finite(self.about), indent=1, allow_nan=False) + "\n"
        atomically(self.path / "run.json", lambda temporary: Path(temporary).write_text(text))

    def _kept(
        self, old: list[Any], damaged: int, before: dict[str, Any] | None, rows: Sequence[Row], say: Say
    ) -> list[dict[str, Any]]:
        """The records that still hold; what was changed since the others is said, and that some are damaged."""
        planned = {row.label: row for row in rows}
        newest: dict[tuple[str, int], dict[str, Any]] = {}
        reasons: Counter[str] = Counter({"damage": damaged} if damaged else {})
        other = _other_network(before, self.about)
        for record in old:
            reason = OTHER if other else self._unfit(record, planned, before)
            if reason:
                reasons[reason] += 1
            else:
                newest[record["method"], record["seed"]] = record
        for reason, count in reasons.items():
            say(f"{self.path}: {count} record{'s are' if count > 1 else ' is'} of {reason}: not used")
        return list(newest.values())

    def _unfit(self, record: Any, planned: dict[str, Row], before: dict[str, Any] | None) -> str:
        """Why a record cannot be used; empty where it can."""
        if not isinstance(record, dict):
            return "damage"
        versions = record.get("versions")
        version = versions.get("basinet") if isinstance(versions, dict) else None
        if record.get("of") != self.of:
            return OTHER
        if version != VERSION:
            return f"version {str(version)[:40]} of basinet, not {VERSION}"
        if record.get("checksum") != _checksum(record):
            return "damage, or was altered"
        row = planned.get(record["method"])
        if row is None and before is not None and _text(before) != _text(self.about):
            return "another budget"
        asked = [record["recipe"], record["asked"], record["tempered"], record.get("crossed", False)]
        if row is not None and asked != [describe(row.recipe), row.members, row.tempered, row.crossed]:
            return "another recipe, or another number of members"
        path = self.path / record["arrays"]
        if not path.is_file():
            return "arrays that are gone"
        return "" if _checksum_of(path) == record["arrays_checksum"] else "arrays that are damaged"


def _other_network(before: dict[str, Any] | None, now: dict[str, Any]) -> bool:
    """Whether the records of a run are of a network that computes something else."""
    if not now.get("computes"):
        return False
    try:
        return before is not None and bool(unlike(before["computes"], now["computes"]))
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError):  # of an older run, or edited by hand
        return True


def read_run(path: Path) -> dict[str, Any] | None:
    """What run.json says; None where there is no run yet. A folder of another version is refused with what to do."""
    if path.exists() and not path.is_dir():
        raise FileError(path, "expected a folder for the run, got a file")
    file = path / "run.json"
    if not file.exists():
        if (path / "records.jsonl").exists():
            raise FileError(
                path,
                "this run folder was written by an older basinet: it has records.jsonl and no run.json. Nothing was "
                "changed; give another --out (its pool can be moved there: members are not trained again)",
            )
        return None
    if not file.is_file():
        raise FileError(file, "expected the file of a run, got something else: give another --out")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        number = int(content["format"])
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError, OSError) as error:
        raise FileError(file, f"it is damaged, or not the file of a run ({error}): give another --out") from error
    if number != FORMAT:
        newer = "a newer basinet than this one: upgrade basinet" if number > FORMAT else "no basinet we know"
        raise FileError(file, f"it has format {number}, of {newer}, or give another --out")
    return content


def versions() -> dict[str, str]:
    """What a run depends on beside its own settings."""
    return {
        "basinet": VERSION,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def finite(value: Any) -> Any:
    """A JSON value with None in the place of numbers for which JSON has no word."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _text(about: dict[str, Any]) -> str | None:
    """The budget of a run in a word."""
    budget = about.get("budget")
    return budget.get("text") if isinstance(budget, dict) else None


def _checksum(record: dict[str, Any]) -> str:
    """What stands for a record but for when and with which versions it was written."""
    own = {key: value for key, value in record.items() if key not in ("checksum", "time", "versions")}
    return fingerprint(own)


def _checksum_of(path: Path) -> str:
    return sha256(path.read_bytes()).hexdigest()


def _file_name(label: str) -> str:
    """A label as the name of a file; different labels stay different."""
    plain = re.sub(r"[^a-z0-9]+", "-", label.lower()).strip("-")[:60]
    return plain if plain == label.lower().replace(" ", "-") else f"{plain}-{describe_text(label)}"


def describe_text(text: str) -> str:
    """Eight hexadecimal digits that stand for a text."""
    return sha256(text.encode()).hexdigest()[:8]
