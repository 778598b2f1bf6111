"""Is the first answer good for classes? The default before and after training ended when it is done, beside boosting.

Digits, breast cancer and wine, and with a data folder Fashion-MNIST (10,000 test images). Nothing is set by hand:

    MAP, deep ensemble     one and five networks by the default problem and recipe (`MAP()`): validation says when each
                           member stops, and at which state
    ... for 1000 steps     what the default was before: 1,000 steps for any data, and the last state of each member
    scikit-learn boosting  HistGradientBoostingClassifier with its defaults; on Fashion-MNIST it takes long, and has to
                           be asked for

Records are appended to classes.jsonl, one for each set, split (a seed of the cut and of the members) and method; those
that are there are not made again, unless they are ours and had another default. Seconds are of the processor: run with
OMP_NUM_THREADS=1, or on a GPU read `wall_seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from statistics import fmean
from typing import Any

from basinet import MAP, datasets, fit, score
from basinet.compare import default_problem
from basinet.compare.references import fit_reference
from basinet.data import Splits
from basinet.engine.method import patience_of
from basinet.saving import describe_problem

from . import Options, Say, append_record, describe, did_you_mean, fingerprint, read_records

NARROWED_BY = ("sets", "methods", "splits", "examples")
SETS = ("digits", "breast_cancer", "wine", "fashion_mnist")
BEFORE = 1000  # steps
OURS = {"MAP": 1, "deep ensemble": 5, "MAP for 1000 steps": 1, "deep ensemble for 1000 steps": 5}  # members
BOOSTING = "scikit-learn boosting"
METHODS = (*OURS, BOOSTING)
SHOWN = ("nll", "accuracy", "ece", "brier")


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records that are missing in `options.out`/classes.jsonl, prints the table, and returns all that were
    asked for."""
    for kind, words, known in (("method", options.methods, METHODS), ("set", options.sets, SETS)):
        for one in words:
            if one not in known:
                raise ValueError(f"the study classes has no {kind} {one!r}.{did_you_mean(one, known)}")
    path = options.out / "classes.jsonl"
    records = {_key(r): r for r in read_records(path)} if path.exists() else {}
    asked = []
    for name in options.sets or tuple(s for s in SETS if s != "fashion_mnist" or options.folder is not None):
        for split in range(options.splits or 1):
            splits = datasets.load(name, seed=options.seed + split, folder=options.folder)
            splits = Splits(**vars(splits) | {"train": options.cut(splits.train), "test": options.cut(splits.test)})
            today = _version(splits)
            for method in options.methods or tuple(m for m in METHODS if m in OURS or name != "fashion_mnist"):
                key = (name, split, method, options.seed)
                asked.append(key)
                before = records.get(key)
                if before is None or (method in OURS and before["default"] != today):
                    place = {"study": "classes", "data": name, "split": split, "method": method, "seed": options.seed}
                    own = {"default": today} if method in OURS else {}
                    records[key] = append_record(path, place | own | _result(splits, method, split, options))
                    shown = ", ".join(f"{score} {records[key]['scores'][score]:.4g}" for score in SHOWN)
                    say(f"{name}, split {split}, {method}: {shown} ({records[key]['cpu_seconds']:.1f} s)")
    kept = [records[key] for key in asked]
    for line in table(kept):
        say(line)
    return kept


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each set and method, means over splits."""
    row = "{:14} {:>6}  {:28} {:>8} {:>9} {:>8} {:>8} {:>8}".format
    yield row("set", "splits", "method", "NLL", "accuracy", "ECE", "Brier", "s")
    for name in dict.fromkeys(r["data"] for r in records):
        for method in METHODS:
            here = [r for r in records if (r["data"], r["method"]) == (name, method)]
            if here:
                means = [f"{fmean(r['scores'][key] for r in here):.4f}" for key in SHOWN]
                yield row(name, len(here), method, *means, f"{fmean(r['cpu_seconds'] for r in here):.1f}")


def _result(splits: Splits, method: str, split: int, options: Options) -> dict[str, Any]:
    sizes = {"n_train": splits.train.n, "n_val": splits.val.n, "n_test": splits.test.n}
    wall, began = time.perf_counter(), time.process_time()
    if method == BOOSTING:
        scored: Any = fit_reference("boosting", splits, "classes", options.seed)(splits.test.inputs)
        about: dict[str, Any] = {}
    else:
        recipe, val = _recipe(method, splits.train.n), None if "steps" in method else splits.val
        engine = options.engine()
        given: dict[str, Any] = {"val": val, "members": OURS[method], "seed": options.seed + split, "engine": engine}
        scored = fit(recipe, default_problem(splits), splits.train, **given)
        steps = [int(each[-1]) for each in scored.info["curves"]["step"]]
        about = {"members": OURS[method], "steps": steps, "recipe": describe(recipe)}
    seconds = {"cpu_seconds": time.process_time() - began, "wall_seconds": time.perf_counter() - wall}
    truth: Any = splits.test.targets if method == BOOSTING else splits.test
    return sizes | about | seconds | {"scores": score(scored, truth)}


def _recipe(method: str, n: int) -> MAP:
    if "steps" not in method:
        return MAP()
    batch = min(MAP().batch_size or n, n)
    return MAP(epochs=max(1, round(BEFORE * batch / n)))


def _version(splits: Splits) -> str:
    """What stands for the default that is measured."""
    plan = [*MAP().schedule(splits.train.n), patience_of(MAP())]
    return fingerprint([describe_problem(default_problem(splits)), describe(MAP()), plan, OURS, BEFORE])


def _key(record: dict[str, Any]) -> tuple[str, int, str, int]:
    return record["data"], record["split"], record["method"], record["seed"]
