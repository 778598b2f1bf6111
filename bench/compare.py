"""What a comparison costs when its rows share their networks, against running each row alone, in one run.

    python bench/compare.py                     digits, six rows on ten networks, on the CPU (a few minutes)
    python bench/compare.py --out results/bench-compare.jsonl

Alone, every row has a pool of its own and trains the networks it starts from. The ratio is of wall-clock seconds of
the whole, fitting, predicting and writing included; lower is better. `ideal` is what sharing could save of fitting
alone: the sum over rows of their own stages and of the networks once, over the sum with the networks of each.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import basinet as bn
from basinet.engine.method import Entry
from basinet.pool import append_record, read_records

MEMBERS = 10
ROWS = (
    Entry("deep ensemble", bn.MAP(), MEMBERS),
    Entry("mixture of Laplaces", bn.Laplace(), MEMBERS),
    Entry("mixture of Kronecker Laplaces", bn.Laplace(where=None, structure="kronecker"), MEMBERS),
    Entry("PEP ensemble", bn.PEP(), MEMBERS),
    Entry("SWA ensemble", bn.SWA(), MEMBERS),
    Entry("MultiSWAG", bn.SWAG(), MEMBERS),
)


def timed(entries: tuple[Entry, ...], data: str, out: Path) -> tuple[float, list[dict[str, Any]]]:
    began = time.perf_counter()
    bn.compare(data, entries, out=out)
    return time.perf_counter() - began, read_records(out / "records.jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="digits")
    parser.add_argument("--rows", type=int, default=len(ROWS), help="how many of the rows")
    parser.add_argument("--out", type=Path, help="file of JSON lines to which the record is added")
    chosen = parser.parse_args()
    rows = ROWS[: chosen.rows]
    with TemporaryDirectory() as folder:
        timed((Entry("warm", bn.MAP(epochs=1), 2),), chosen.data, Path(folder) / "warm")
        shared, records = timed(rows, chosen.data, Path(folder) / "shared")
        alone = {row.label: timed((row,), chosen.data, Path(folder) / str(i))[0] for i, row in enumerate(rows)}
    own = {r["method"]: r["own_seconds"] for r in records}
    whole = sum(r["fit_seconds"] for r in records)
    record = {
        "bench": "compare",
        "data": chosen.data,
        "members": MEMBERS,
        "rows": [row.label for row in rows],
        "threads": torch.get_num_threads(),
        "shared_seconds": shared,
        "alone_seconds": alone,
        "own_seconds": own,
        "ratio": shared / sum(alone.values()),
        "ideal": sum(own.values()) / whole,
    }
    for label in alone:
        print(f"{label:32} alone {alone[label]:7.1f} s, its own part when shared {own[label]:7.1f} s")
    print(f"{len(rows)} rows: {shared:.1f} s shared, {sum(alone.values()):.1f} s alone, ratio {record['ratio']:.2f}")
    if chosen.out is not None:
        append_record(chosen.out, record)


if __name__ == "__main__":
    main()
