"""Measures methods against theory: `python docs/tools/theory.py [NAME ...]` writes results/theory.jsonl, which the
pages of the methods show. A line has what `basinet check` prints, without the invariants that all methods share. With
names, the lines of other methods stay as they are."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch

from basinet import __version__
from basinet.methods import discover, find
from basinet.testing import Bench

RECORDS = Path(__file__).parents[2] / "results" / "theory.jsonl"


def main() -> None:
    chosen = [find(name) for name in sys.argv[1:]] or list(discover().values())
    versions = {"basinet": __version__, "torch": torch.__version__, "python": sys.version.split()[0]}
    records = [json.loads(line) for line in RECORDS.read_text().splitlines()] if RECORDS.exists() else []
    for cls in chosen:
        records = [r for r in records if r["subject"] != cls.__name__]
        for check in cls.theory(Bench(cls.__name__)):
            print(f"{cls.__name__}: {check.name}: {check.measured:.3g} of {check.tolerance:.3g}", flush=True)
            records.append(check._asdict() | {"passed": check.passed, "versions": versions})
        records.sort(key=lambda r: r["subject"])
        RECORDS.write_text("\n".join(json.dumps(r) for r in records) + "\n")


if __name__ == "__main__":
    main()
