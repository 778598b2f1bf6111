"""What a comparison costs when its rows share their networks, against running each row alone, in one run.

    python bench/compare.py                     digits, six rows on ten networks, on the CPU (a few minutes)
    python bench/compare.py --out results/bench-compare.jsonl

Alone, every row has a pool of its own and trains the networks it starts from. Ratios are of the whole, fitting,
predicting and writing included, in seconds of the processor (`ratio`, steady on a busy machine) and of the clock
(`clock_ratio`); lower is better. With k rows that cost nothing but their networks it would be 1 / k.
"""

from __future__ import annotations

import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch
from shared import options

import basinet as bn
from basinet.engine.method import Entry
from basinet.pool import append_record

MEMBERS = 10
ROWS = (
    Entry("deep ensemble", bn.MAP(), MEMBERS),
    Entry("mixture of Laplaces", bn.Laplace(), MEMBERS),
    Entry("mixture of Kronecker Laplaces", bn.Laplace(where=None, structure="kronecker"), MEMBERS),
    Entry("PEP ensemble", bn.PEP(), MEMBERS),
    Entry("SWA ensemble", bn.SWA(), MEMBERS),
    Entry("MultiSWAG", bn.SWAG(), MEMBERS),
)


class Seconds(NamedTuple):
    processor: float
    clock: float


def timed(entries: tuple[Entry, ...], data: str, out: Path) -> Seconds:
    began = time.process_time(), time.perf_counter()
    bn.compare(data, entries, out=out, engine=bn.Engine(processes=1))
    return Seconds(time.process_time() - began[0], time.perf_counter() - began[1])


def main() -> None:
    parser = options(__doc__, ["cpu"])
    parser.add_argument("--data", default="digits")
    parser.add_argument("--rows", type=int, default=len(ROWS), help="how many of the rows")
    chosen = parser.parse_args()
    rows = ROWS[: chosen.rows]
    with TemporaryDirectory() as folder:
        timed((Entry("warm", bn.MAP(epochs=1), 2),), chosen.data, Path(folder) / "warm")
        shared = timed(rows, chosen.data, Path(folder) / "shared")
        alone = {row.label: timed((row,), chosen.data, Path(folder) / str(i)) for i, row in enumerate(rows)}
    processor, clock = (sum(one[i] for one in alone.values()) for i in (0, 1))
    record = {
        "bench": "compare",
        "data": chosen.data,
        "members": MEMBERS,
        "rows": [row.label for row in rows],
        "threads": torch.get_num_threads(),
        "shared": shared._asdict(),
        "alone": {label: one._asdict() for label, one in alone.items()},
        "ratio": shared.processor / processor,
        "clock_ratio": shared.clock / clock,
    }
    for label, one in alone.items():
        print(f"{label:32} alone {one.processor:7.1f} s of the processor, {one.clock:7.1f} s of the clock")
    print(f"{len(rows)} rows shared: {shared.processor:.1f} s of the processor, {shared.clock:.1f} s of the clock")
    print(f"{len(rows)} rows alone: {processor:.1f} s of the processor, {clock:.1f} s of the clock")
    print(f"ratio {record['ratio']:.2f}, by the clock {record['clock_ratio']:.2f}")
    if chosen.out is not None:
        append_record(chosen.out, record)


if __name__ == "__main__":
    main()
