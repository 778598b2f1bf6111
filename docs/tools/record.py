"""One row of every method on two small sets, with every default: `python docs/tools/record.py` writes
results/methods.jsonl, which the pages of the methods show.

`python docs/tools/record.py IVON PEP --sets digits` measures some of them again. Each record has the NLL of the one
network that it was compared with. What was trained is kept in runs/docs-SET, so that a run that was stopped resumes.
"""

from __future__ import annotations

import argparse
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import basinet as bn
from basinet.engine.method import Entry

ROOT = Path(__file__).parents[2]
PATH = ROOT / "results" / "methods.jsonl"
SETS = ("diabetes", "digits")
MEMBERS = 4  # of rows that are ensembles or chains
KEPT = ("members", "n", "nll", "reference", "difference", "low", "high", "fit_seconds", "steps")


def main() -> None:
    rows = {name: cls.lineup()[0] for name, cls in bn.methods.discover().items() if cls.lineup()}
    options = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    options.add_argument("methods", nargs="*", default=list(rows), help="default: all")
    options.add_argument("--sets", nargs="+", default=SETS, choices=SETS)
    given = options.parse_args()
    for data in given.sets:
        for method in given.methods:
            record = measured(method, rows[method], data)
            print(json.dumps(record), flush=True)
            write(record)


def measured(method: str, row: Entry, data: str) -> dict[str, Any]:
    """The row of one method on one set, beside one network. Where its training fails, the record says so."""
    asked = [bn.MAP.lineup()[0], row._replace(members=MEMBERS) if row.members > 1 else row]
    record: dict[str, Any] = {"recipe": method, "label": row.label, "data": data}
    said: list[str] = []
    compared = bn.compare(
        data, asked[method == "MAP" :], against="MAP", out=ROOT / "runs" / f"docs-{data}", say=said.append
    )
    rows = {row["method"]: row for row in compared.summary}
    if row.label in rows:
        record |= {key: rows[row.label][key] for key in KEPT if key in rows[row.label]}
    else:
        record["failed"] = next(line for line in said if line.startswith(f"{row.label} is left out"))
    return record | {
        "reference_nll": rows["MAP"]["nll"],
        "seed": 0,
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"basinet": bn.__version__, "torch": torch.__version__},
    }


def write(record: dict[str, Any]) -> None:
    """Puts a record in the place of the older one, or at the end."""
    lines = PATH.read_text().splitlines() if PATH.exists() else []
    records = {(r["data"], r["recipe"]): r for r in map(json.loads, lines)} | {
        (record["data"], record["recipe"]): record
    }
    PATH.write_text("".join(json.dumps(records[key]) + "\n" for key in sorted(records)))


if __name__ == "__main__":
    main()
