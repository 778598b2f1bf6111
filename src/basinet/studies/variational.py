"""What does variational inference gain over one network, and over an ensemble, at the same training?

UCI regression on the published splits (all 20 of the small sets, the first 3 of those above 2,000 rows) with one hidden
layer of 50 ReLU (protein 100), as MC dropout's authors had it, whose own values on the same splits stand beside ours;
`VBLL 50-50` has two, as in its reference package. The digits and, with a folder, the first 10,000 images of
Fashion-MNIST, with two hidden layers of 100, five and three seeds.

Every row trains on the same four fifths of the training rows, and is given the other fifth as validation data, by which
MAP, MC dropout and VBLL stop and the rate of MC dropout is chosen. Prior N(0, 1) on all weights; real numbers have one
noise, which is learned. A member takes at most the default steps of MAP; the deep ensemble has five members, all other
rows one: `steps` in the records says what was planned, and `seconds` what it took on one thread.

    OMP_NUM_THREADS=1 basinet study variational --folder DATA --out results

runs one split after another in as many processes as there are cores. Records are appended to variational.jsonl, one for
each set, split and row; those that are there are not made again, so that a run that was stopped goes on.
"""

from __future__ import annotations

import math
import multiprocessing
import os
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch

from ..core.nearest import did_you_mean
from ..core.noise import Noise
from ..data import Data, datasets, uci
from ..engine import Engine, Method
from ..engine.method import plan_of
from ..fit import fit
from ..methods.gaussian_vi import GaussianVI
from ..methods.ivon import IVON
from ..methods.map import MAP
from ..methods.mc_dropout import MCDropout
from ..methods.mean_field import MeanField
from ..methods.variational_dropout import VariationalDropout
from ..methods.vbll import VBLL
from ..networks import MLP
from ..pool import append_record, describe, read_records
from ..posterior import Posterior
from ..problem import Problem
from ..problem.likelihoods import Categorical, Gaussian
from ..scoring import score
from . import Options, Say

NARROWED_BY = ("sets", "methods", "splits")
RATES = [0.005, 0.01, 0.05, 0.1, 0.2]  # of MC dropout, the best of which validation chooses
LARGE = 2000  # rows above which a set has FEW splits
FEW, SEEDS = 3, {"digits": 5, "fashion_mnist": 3}
IMAGES = 10_000
SHARE = 0.8  # of the training rows that networks are trained on


class Row(NamedTuple):
    """A row of the table."""

    recipe: Method
    members: int = 1
    layers: int = 1  # hidden layers of the network for the UCI sets


ROWS: dict[str, Row] = {
    "MAP": Row(MAP()),
    "deep ensemble": Row(MAP(), 5),
    "mean-field VI": Row(MeanField()),
    "mean-field VI, learned prior": Row(MeanField(prior_precision="layers")),
    "IVON": Row(IVON()),
    "low-rank VI": Row(GaussianVI()),
    "MC dropout": Row(MCDropout(insert="before", rate=RATES), len(RATES)),  # type: ignore[arg-type]
    "MC dropout, learned rates": Row(MCDropout(insert="before", learned=True)),
    "variational dropout": Row(VariationalDropout()),
    "VBLL": Row(VBLL()),
    "VBLL 50-50": Row(VBLL(), 1, 2),
}


class Job(NamedTuple):
    """One split of one set, and the rows that are missing of it."""

    data: str
    split: int
    rows: tuple[str, ...]
    seed: int
    folder: Path | None


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records that are missing in `options.out`/variational.jsonl, prints the table, and returns all."""
    names = options.methods or tuple(ROWS)
    for name in names:
        if name not in ROWS:
            raise ValueError(f"the study variational has no row {name!r}.{did_you_mean(name, ROWS)}")
    path = options.out / "variational.jsonl"
    records = {_key(r): r for r in read_records(path)} if path.exists() else {}
    jobs = []
    for data, split in _splits(options, say):
        missing = [n for n in names if (data, split, n, options.seed) not in records and _has(data, n)]
        jobs += [Job(data, split, tuple(missing), options.seed, options.folder)] if missing else []
    for number, made in enumerate(_done(jobs), 1):
        for record in made:
            kept = append_record(path, record)
            records[_key(kept)] = kept
            say(f"{number}/{len(jobs)} {kept['data']}, split {kept['split'] + 1}, {kept['method']}: {_words(kept)}")
    for line in table(list(records.values())):
        say(line)
    return list(records.values())


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """For each set and row: mean ± standard error over splits, and the paired difference from MAP and the ensemble."""
    row = "{:14} {:>6}  {:30} {:>16} {:>16} {:>18} {:>18}".format
    yield row("set", "splits", "row", "RMSE or accuracy", "log likelihood", "less MAP", "less deep ensemble")
    for data in dict.fromkeys(r["data"] for r in records):
        here = {(r["split"], r["method"]): r for r in records if r["data"] == data}
        for name in ROWS:
            of = {s: r for (s, m), r in here.items() if m == name}
            if not of:
                continue
            paired = []
            for other in ("MAP", "deep ensemble"):
                both = [r["ll"] - here[s, other]["ll"] for s, r in of.items() if (s, other) in here]
                paired.append(_mean_and_error(both) if both and name != other else "")
            scores = (_mean_and_error([r[key] for r in of.values()]) for key in ("quality", "ll"))
            yield row(data, len(of), name, *scores, *paired)
        known = {s: r["reference"] for (s, _), r in here.items() if r["reference"]}.values()
        if known:
            scores = (_mean_and_error([r[key] for r in known]) for key in ("rmse", "ll"))
            yield row(data, len(known), "MC dropout, as published", *scores, "", "")
    yield "± is the standard error over splits or seeds; differences are paired by split. Published: Gal and Ghahramani"
    yield "(2016), on the same splits."


def evaluate(job: Job) -> list[dict[str, Any]]:
    """The records of some rows on one split, in one thread."""
    torch.set_num_threads(1)
    train, val, test, target, reference = _data(job)
    engine = Engine(device="cpu", progress=False, compile=False, processes=1)
    made = []
    for name in job.rows:
        recipe, members, layers = ROWS[name]
        problem = _problem(job.data, train, layers)
        posterior = fit(recipe, problem, train, val=val, members=members, seed=job.seed, engine=engine)
        seconds = sum(x[0] for x in posterior.info.get("curves", {}).get("seconds", [])) or _seconds(posterior)
        posterior, chosen = _chosen(posterior, val) if name == "MC dropout" else (posterior, {})
        scores = score(posterior, test)
        scores = scores if target is None else target.scores(scores)
        first = posterior.recipe
        assert first is not None
        made.append(
            {
                "study": "variational",
                "data": job.data,
                "split": job.split,
                "method": name,
                "seed": job.seed,
                "members": len(posterior),
                "recipe": describe(first),
                "chosen": chosen,
                "steps": plan_of(first, train.n).steps * members,
                "n_train": train.n,
                "n_test": test.n,
                "quality": scores["rmse" if target is not None else "accuracy"],
                "ll": -scores["nll"],
                "scores": {k: v for k, v in scores.items() if isinstance(v, float) and math.isfinite(v)},
                "reference": reference,
                "seconds": seconds,
            }
        )
    return made


def _splits(options: Options, say: Say) -> Iterator[tuple[str, int]]:
    asked = options.sets or (*uci.NAMES, *SEEDS)
    for name in asked:
        if options.folder is None and name != "digits":
            say(f"left out, for want of --folder with its file: {name}")
            continue
        if name in SEEDS:
            count = SEEDS[name]
        else:
            known = uci.load(name, options.folder or "")
            count = known.splits if len(known.targets) <= LARGE else FEW
        yield from ((name, k) for k in range(min(count, options.splits or count)))


def _has(data: str, row: str) -> bool:
    return data not in SEEDS or row != "VBLL 50-50"


def _done(jobs: list[Job]) -> Iterator[list[dict[str, Any]]]:
    """The records of jobs as they are done: in a process for each core, or here where there is one job."""
    workers = min(len(jobs), os.cpu_count() or 1)
    if workers <= 1:
        yield from map(evaluate, jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(evaluate, job) for job in jobs]):
            yield future.result()


def _data(job: Job) -> tuple[Data, Data, Data, Any, dict[str, float]]:
    """Training, validation and test data, the units of a real target, and MC dropout's published values."""
    if job.data in SEEDS:
        splits = datasets.load(job.data, seed=job.split, folder=job.folder)
        train = splits.train if splits.train.n <= IMAGES else splits.train.take(slice(0, IMAGES))
        if splits.val is not None:
            return train, splits.val, splits.test, None, {}
        cut = int(SHARE * train.n)
        return train.take(slice(0, cut)), train.take(slice(cut, train.n)), splits.test, None, {}
    known = uci.load(job.data, job.folder or "")
    rows = known.train[job.split]
    order = rows[Noise.seed(1000 * job.seed + job.split).split("validation").permutation(len(rows)).numpy()]
    cut = int(SHARE * len(rows))
    (train, val, test), target = known.part(order[:cut], order[cut:], known.test[job.split])
    reference = {"rmse": float(known.reference_rmse[job.split]), "ll": float(known.reference_ll[job.split])}
    return train, val, test, target, reference


def _problem(data: str, train: Data, layers: int) -> Problem:
    width = train.inputs[0].numel()
    if data in SEEDS:
        return Problem(lambda: MLP(width, 10, hidden=(100, 100)), Categorical())
    hidden = (100 if data == "protein" else 50,) * layers
    return Problem(lambda: MLP(width, 1, hidden=hidden), Gaussian(noise=0.3, learned=True))


def _chosen(posterior: Posterior, val: Data) -> tuple[Posterior, dict[str, float]]:
    """The member whose rate validation prefers."""
    losses = [score(posterior[k], val)["nll"] for k in range(len(posterior))]
    best = min(range(len(losses)), key=losses.__getitem__)
    recipe = posterior[best].recipe
    assert isinstance(recipe, MCDropout) and recipe.rate is not None
    return posterior[best], {"rate": recipe.rate}


def _seconds(posterior: Posterior) -> float:
    parts = posterior.info.get("parts", [])
    return sum(x[0] for part in parts for x in part["curves"]["seconds"])


def _key(record: dict[str, Any]) -> tuple[str, int, str, int]:
    return record["data"], record["split"], record["method"], record["seed"]


def _words(record: dict[str, Any]) -> str:
    chosen = "".join(f"{name} {value:.3g}, " for name, value in record["chosen"].items())
    return f"{record['quality']:.4g}, log likelihood {record['ll']:.4g} ({chosen}{record['seconds']:.1f} s)"


def _mean_and_error(values: Iterable[float]) -> str:
    found = list(values)
    error = f" ± {stdev(found) / math.sqrt(len(found)):.2g}" if len(found) > 1 else ""
    return f"{fmean(found):.3g}{error}"
