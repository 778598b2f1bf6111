"""The records of the study: which are there, how one is added, and work that runs in several processes."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .. import Options, append_record, read_records

Record = dict[str, Any]
SPARE = 2  # cores that are left to others


class Book(NamedTuple):
    """The records of one set and one seed."""

    path: Path
    name: str  # of the set
    seed: int
    there: dict[tuple[str, str | None, int | None], Record]  # by method, data and split

    @staticmethod
    def of(options: Options, name: str) -> Book:
        """What is in the folder already."""
        path = options.out / "fidelity.jsonl"
        kept = read_records(path) if path.exists() else []
        mine = [r for r in kept if r.get("set") == name and r.get("seed") == options.seed]
        return Book(path, name, options.seed, {_key(r): r for r in mine})

    def add(self, record: Record) -> Record:
        """Writes a record and returns it, as it is in the file."""
        full = {"study": "fidelity", "set": self.name, "seed": self.seed, **record}
        written = append_record(self.path, full)
        self.there[_key(written)] = written
        return written

    def get(self, method: str, data: str | None = None, split: int | None = None) -> Record | None:
        """The record of a method, if there is one."""
        return self.there.get((method, data, split))


def spread(function: Callable[..., Any], tasks: Sequence[tuple[Any, ...]], device: str | None) -> Iterator[Any]:
    """`function(*task)` of each task as they end: on a CPU of many cores in processes of one thread each, else one
    after another in this one."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    workers = min(len(tasks), cores - SPARE) if device == "cpu" else 1
    if workers < 2:
        yield from (function(*task) for task in tasks)
        return
    context = multiprocessing.get_context("spawn")  # threads of torch do not survive a fork
    with ProcessPoolExecutor(workers, context, initializer=torch.set_num_threads, initargs=(1,)) as processes:
        for done in as_completed([processes.submit(function, *task) for task in tasks]):
            yield done.result()


def _key(record: Record) -> tuple[str, str | None, int | None]:
    return record["method"], record.get("data"), record.get("split")
