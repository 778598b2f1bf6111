"""Records: one JSON line for each thing that was evaluated, with its seeds, versions and numbers."""

from __future__ import annotations

import json
import os
import platform
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from ..core.version import VERSION
from .files import FileError


def append_record(path: Path, record: dict[str, Any]) -> dict[str, Any]:
    """Adds a record to a file of JSON lines, with time and versions, and returns it."""
    stamped = {
        **record,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"basinet": VERSION, "torch": torch.__version__, "python": platform.python_version()},
    }
    line = json.dumps(stamped, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+b") as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":  # a run was killed while writing: an empty line after what it left says so
                line = "\n\n" + line
        file.write(line.encode())
        file.flush()
        os.fsync(file.fileno())
    return stamped


def read_records(path: Path) -> list[dict[str, Any]]:
    """All records of a file. Lines that were cut short by a kill are left out: the last one, and one before an empty
    line. Any other damage is an error."""
    if not path.is_file():  # a pipe would be waited for
        raise FileError(path, "expected a file of records, which does not exist")
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError) as error:
        raise FileError(path, f"it cannot be read, or is damaged ({error})") from error
    records = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError) as error:
            cut = number == len(lines) or (not lines[number] and number + 1 < len(lines))
            if cut:
                continue
            raise FileError(path, f"line {number} is not a record ({error})") from error
    return records


def salvage_records(path: Path) -> tuple[list[Any], int]:
    """What can be read of a file of records, and how many lines cannot."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError as error:
        raise FileError(path, f"it cannot be read ({error.strerror})") from error
    records: list[Any] = []
    damaged = 0
    for line in filter(str.strip, lines):
        try:
            records.append(json.loads(line))
        except (ValueError, RecursionError):
            damaged += 1
    return records, damaged
