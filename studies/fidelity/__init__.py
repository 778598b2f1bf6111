"""How close is each approximation to the true posterior? Long chains stand for the truth.

    digits    a network 64-10-10 on 300 images: agreement and total variation of every method with long HMC
    concrete  a network 8-50-1 on 500 rows: predictive means and spreads of every method beside those of long HMC
    cifar10   ResNet-20 with filter response norm and swish: every method beside published HMC probabilities
    samplers  NUTS and MCLMC on concrete: effective draws of predictions per gradient, and whether they agree
    started   MCLMC from a deep ensemble beside the ensemble alone, on the published splits of small UCI sets

Without `--sets` all of them run; those that need files are left out, in words, without `--folder`. What is in
`--out`/fidelity.jsonl is not made again, and members are kept in pools beside it, so that a run continues where it was
stopped. The small sets want a CPU (`--device cpu`), where rows and splits run in processes of one thread each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from .. import Options, Say, did_you_mean
from . import cifar, samplers, small, started
from .records import Book

NARROWED_BY = ("sets", "methods", "splits", "examples")
SETS: dict[str, tuple[Callable[[Options, Book, Say], Iterator[dict[str, Any]]], bool]] = {
    "digits": (small.digits, False),  # and whether it reads files
    "concrete": (small.concrete, True),
    "samplers": (samplers.sampled, True),
    "started": (started.started, True),
    "cifar10": (cifar.compared, True),
}


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records that are missing in `options.out`/fidelity.jsonl, and returns all that were asked for."""
    for name in options.sets:
        if name not in SETS:
            raise ValueError(f"the study fidelity has no set {name!r}.{did_you_mean(name, SETS)}")
    records: list[dict[str, Any]] = []
    for name in options.without_folder([n for n, (_, reads) in SETS.items() if not reads], list(SETS), say):
        make, _ = SETS[name]
        records += make(options, Book.of(options, name), say)
    return records
