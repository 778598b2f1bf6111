"""Is the first answer good for classes? What `basinet fit` gives when nothing is set by hand, beside a linear model and
gradient boosting.

Digits, breast cancer and wine; with a data folder tables whose numbers are cut into classes at their quantiles (boston
in 4, concrete and kin8nm in 2, protein in 3, wine_red by its grades), and Fashion-MNIST (10,000 test images):

    MAP                    one network: the default problem (of tables, `pilot` chooses among candidates) and recipe
                           (`MAP()`), whose step size is chosen for tables. Up to 20,000 rows each member is validated
                           on rows of its own, as in `basinet fit`
    deep ensemble          ten of them
    linear, boosting       scikit-learn's LogisticRegression and HistGradientBoostingClassifier with their defaults, on
                           the training part alone; on Fashion-MNIST they take long, and have to be asked for

Records are appended to classes.jsonl, one for each set, split (a seed of the cut and of the members; of tables that
have them, a published split) and method; those that are there are not made again, unless they are ours and had another
default. Seconds are of the processor: run with OMP_NUM_THREADS=1, or on a GPU read `wall_seconds`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import fmean
from typing import Any

import numpy as np
import torch

from basinet import MAP, Data, datasets, fit, score
from basinet import pilot as choice
from basinet.compare.problems import default_problems
from basinet.compare.references import fit_reference
from basinet.data import Splits
from basinet.engine.method import patience_of
from basinet.pilot import pilot, with_step_of
from basinet.saving import describe_problem
from basinet.tables import uci
from basinet.tables.crossed import ROWS, crossed

from . import Options, Say, append_record, describe, did_you_mean, fingerprint, read_records

NARROWED_BY = ("sets", "methods", "splits", "examples")
QUANTILES = {"boston in 4": 4, "concrete in 2": 2, "kin8nm in 2": 2, "protein in 3": 3}  # classes of equal size
GRADES = {"wine_red by grades": (4.5, 5.5, 6.5)}  # where one class ends
CUT = (*QUANTILES, *GRADES)
SETS = ("digits", "breast_cancer", "wine", *CUT, "fashion_mnist")
NEED_FOLDER = (*CUT, "fashion_mnist")
CHOSEN_ON = ("breast_cancer", "wine")  # with scores of which in view what is tried for classes was chosen
OURS = {"MAP": 1, "deep ensemble": 10}  # members
REFERENCES = ("linear", "boosting")
METHODS = (*OURS, *REFERENCES)
VALIDATION = 0.15  # of the rows of a published split
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
    for name in options.sets or tuple(s for s in SETS if s not in NEED_FOLDER or options.folder is not None):
        for split in range(options.splits or 1):
            splits = _splits(name, split, options)
            today = version(splits)
            methods = options.methods or tuple(m for m in METHODS if m in OURS or name != "fashion_mnist")
            keys = [(name, split, method, options.seed) for method in methods]
            old = [k for k in keys if k in records and k[2] in OURS and records[k]["default"] != today]
            missing = [key[2] for key in keys if key not in records or key in old]
            for method, result in _results(splits, split, missing, options):
                place = {"study": "classes", "data": name, "split": split, "method": method, "seed": options.seed}
                own = {"default": today} if method in OURS else {}
                record = append_record(path, place | own | result)
                records[_key(record)] = record
                shown = ", ".join(f"{key} {record['scores'][key]:.4g}" for key in SHOWN)
                say(f"{name}, split {split}, {method}: {shown} ({record['cpu_seconds']:.1f} s)")
            asked += keys
    kept = [records[key] for key in asked]
    for line in table(kept):
        say(line)
    return kept


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each set and method, means over splits."""
    row = "{:20} {:>6}  {:16} {:>8} {:>9} {:>8} {:>8} {:>8}".format
    yield row("set", "splits", "method", "NLL", "accuracy", "ECE", "Brier", "s")
    for name in dict.fromkeys(r["data"] for r in records):
        for method in METHODS:
            here = [r for r in records if (r["data"], r["method"]) == (name, method)]
            if here:
                means = [f"{fmean(r['scores'][key] for r in here):.4f}" for key in SHOWN]
                chosen = " +" if name in CHOSEN_ON else ""
                yield row(name + chosen, len(here), method, *means, f"{fmean(r['cpu_seconds'] for r in here):.1f}")
    yield "+ a set on which what is tried was chosen."


def version(splits: Splits) -> str:
    """What stands for the default that is measured: candidates, the recipe and its schedule, how validation chooses."""
    problems = [describe_problem(problem) for problem in default_problems(splits)]
    plan = [*MAP().schedule(splits.train.n), patience_of(MAP())]
    rules = [ROWS, choice.STEPS, choice.CLASS_RATES, choice.LONGER, choice.Z_CLASSES]
    return fingerprint([problems, describe(MAP()), plan, OURS, rules])


def _results(
    splits: Splits, split: int, methods: Sequence[str], options: Options
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Each method with what came of it. For ours one problem is chosen; the time of that counts for each."""
    sizes = {"n_train": splits.train.n, "n_val": splits.val.n, "n_test": splits.test.n}
    seed = options.seed + split
    if ours := [m for m in methods if m in OURS]:
        train, val = crossed(splits.train, splits.val, max(OURS.values()), seed)
        given: dict[str, Any] = {"seed": seed, "engine": options.engine()}
        chosen, choosing = _timed(partial(pilot, default_problems(splits), train, val, **given))
    for method in ours:
        recipe = with_step_of(MAP(), chosen.recipe)
        posterior, took = _timed(partial(fit, recipe, chosen.problem, train, val=val, members=OURS[method], **given))
        steps = [int(each[-1]) for each in posterior.info["curves"]["step"]]
        about = {"members": OURS[method], "steps": steps, "recipe": describe(recipe), "chosen": chosen.line}
        seconds = {key: choosing[key] + took[key] for key in took}
        yield method, sizes | about | seconds | {"scores": score(posterior, splits.test)}
    for method in methods:
        if method in REFERENCES:
            predict, took = _timed(partial(fit_reference, method, splits, "classes", options.seed))
            yield method, sizes | took | {"scores": score(predict(splits.test.inputs), splits.test.targets)}


def _timed(work: Callable[[], Any]) -> tuple[Any, dict[str, float]]:
    wall, began = time.perf_counter(), time.process_time()
    result = work()
    return result, {"cpu_seconds": time.process_time() - began, "wall_seconds": time.perf_counter() - wall}


def _splits(name: str, split: int, options: Options) -> Splits:
    """A set, cut."""
    if name in NEED_FOLDER and options.folder is None:
        raise ValueError(f"the set {name} is read from files: give --folder with the folder they are in")
    if name in CUT and options.folder is not None:
        splits = _classes_of(uci.load(name.split()[0], options.folder), name, split, options.seed)
    else:
        splits = datasets.load(name, seed=options.seed + split, folder=options.folder)
    return Splits(**vars(splits) | {"train": options.cut(splits.train), "test": options.cut(splits.test)})


def _classes_of(known: uci.UCISet, name: str, split: int, seed: int) -> Splits:
    """A published split of a regression set, whose targets are cut into classes."""
    order = np.random.default_rng(seed).permutation(known.train[split % known.splits])
    val, train = np.split(order, [round(VALIDATION * len(order))])
    rows = train, val, known.test[split % known.splits]
    count = QUANTILES.get(name, 0)
    edges = np.quantile(known.targets[train], np.arange(1, count) / count) if count else np.array(GRADES[name])
    parts, _ = known.part(*rows)
    classes = [torch.from_numpy(np.digitize(known.targets[some], edges)) for some in rows]
    fitting, held, test = (Data(part.inputs, each) for part, each in zip(parts, classes))
    return Splits(name, fitting, held, test, classes=len(edges) + 1)


def _key(record: dict[str, Any]) -> tuple[str, int, str, int]:
    return record["data"], record["split"], record["method"], record["seed"]
