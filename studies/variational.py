"""What does variational inference gain over one network, and over an ensemble, at the same training?

UCI regression on the published splits (all 20 of the small sets, the first 3 of those above 2,000 rows) with one hidden
layer of 50 ReLU (protein 100), as MC dropout's authors had it, whose own values on the same splits stand beside ours;
`VBLL 50-50` has two, as in its reference package. The digits and, with a folder, the first 10,000 images of
Fashion-MNIST, with two hidden layers of 100, five and three seeds.

Every row trains on the same four fifths of the training rows, and is given the other fifth as validation data, by which
all but the flow end, a learned noise is set and the rate of MC dropout is chosen. Prior N(0, 1) on all weights; real
numbers have one noise, which is learned. A member takes at most the default steps of MAP, and rows are compared at
equal steps: one member with MAP; five members, or MC dropout with one of five rates, with the deep ensemble. On the
first 3 splits or seeds each method has five members, of which the first is the row with one; on the others it has one.
Differences in log likelihood are paired by split; a difference counts where it is over two of its standard errors.

    OMP_NUM_THREADS=1 basinet study variational --folder DATA --out results

runs as many fits side by side as there are cores, the first splits of all sets before the second ones. Records are
appended to variational.jsonl as fits end, one for each set, split and row; those that are there are not made again, so
that a run that was stopped goes on. Runs on several machines (`--sets yacht --out runs/yacht`) have a file each, and
`cat` joins them; on the joined file the study only prints its table.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch

from basinet import (
    IVON,
    MAP,
    VBLL,
    Data,
    Engine,
    FlowVI,
    GaussianVI,
    Laplace,
    MCDropout,
    MeanField,
    Noise,
    Posterior,
    Problem,
    VariationalDropout,
    datasets,
    fit,
    likelihoods,
    score,
)
from basinet.engine import Based, Method
from basinet.networks import MLP
from basinet.tables import uci

from . import Options, Say, append_record, describe, did_you_mean, read_records

NARROWED_BY = ("sets", "methods", "splits")
HERE = True  # it spreads its fits over the processes of this machine
RATES = [0.005, 0.01, 0.05, 0.1, 0.2]  # of MC dropout, the best of which validation chooses
LARGE = 2000  # rows above which a set has FEW splits
MEMBERS = len(RATES)  # of what is compared with the deep ensemble
COMPARED = ("MAP", "deep ensemble")  # what the others are compared with
FEW, SEEDS = 3, {"digits": 5, "fashion_mnist": 3}
IMAGES = 10_000
SHARE = 0.8  # of the training rows that networks are trained on


class Row(NamedTuple):
    """A fit, and the rows of the table it gives."""

    recipe: Method
    ensemble: str | None = None  # what its five members together are called; None: there is no such row
    layers: int = 1  # hidden layers of the network for the UCI sets


ROWS: dict[str, Row] = {
    "MAP": Row(MAP(), "deep ensemble"),
    "mean-field VI": Row(MeanField(), "mean-field VI x5"),
    "mean-field VI, learned prior": Row(MeanField(prior_precision="layers"), "mean-field VI, learned prior x5"),
    "IVON": Row(IVON(), "IVON x5"),
    "low-rank VI": Row(GaussianVI(), "low-rank VI x5"),
    "MC dropout, one of five rates": Row(MCDropout(insert="before", rate=RATES)),  # type: ignore[arg-type]
    "MC dropout, learned rates": Row(MCDropout(insert="before", learned=True), "MC dropout, learned rates x5"),
    "variational dropout": Row(VariationalDropout(), "variational dropout x5"),
    "VBLL": Row(VBLL(), "VBLL x5"),
    "VBLL 50-50": Row(VBLL(), "VBLL 50-50 x5", 2),
    "LA-NF": Row(FlowVI(base=Laplace(structure="full")), "LA-NF x5"),
}


class Job(NamedTuple):
    """One fit on one split of one set."""

    data: str
    split: int
    row: str
    seed: int
    folder: Path | None

    @property
    def members(self) -> int:
        return MEMBERS if self.row in COMPARED or ROWS[self.row].ensemble is None or self.split < FEW else 1

    @property
    def records(self) -> list[tuple[str, int]]:
        """Names of the rows it gives, and the members of each."""
        together = ROWS[self.row].ensemble
        return [(self.row, 1)] + ([(together, MEMBERS)] if together is not None and self.members == MEMBERS else [])


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records that are missing in `options.out`/variational.jsonl, prints the table, and returns all."""
    names = options.methods or tuple(ROWS)
    for name in names:
        if name not in ROWS:
            raise ValueError(f"the study variational has no row {name!r}.{did_you_mean(name, ROWS)}")
    path = options.out / "variational.jsonl"
    records = {_key(r): r for r in read_records(path)} if path.exists() else {}
    jobs = [
        job
        for data, split in sorted(_splits(options, say), key=lambda place: place[1])
        for name in names
        for job in [Job(data, split, name, options.seed, options.folder)]
        if _has(data, name) and any((data, split, row, options.seed) not in records for row, _ in job.records)
    ]
    for number, results in enumerate(_done(jobs), 1):
        for record in results:
            if _key(record) not in records:
                kept = append_record(path, record)
                records[_key(kept)] = kept
                say(f"{number}/{len(jobs)} {kept['data']}, split {kept['split'] + 1}, {kept['method']}: {_words(kept)}")
    for line in (*table(list(records.values())), *summary(list(records.values()))):
        say(line)
    return list(records.values())


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """For each set and row: mean ± standard error over splits, and the paired difference from MAP and the ensemble."""
    row = "{:14} {:>6}  {:32} {:>16} {:>16} {:>18} {:>18}".format
    yield row("set", "splits", "row", "RMSE or accuracy", "log likelihood", "less MAP", "less deep ensemble")
    for data in dict.fromkeys(r["data"] for r in records):
        here = [r for r in records if r["data"] == data]
        for name in _rows():
            of = [r for r in here if r["method"] == name]
            if of:
                paired = (_mean_and_error(differences(here, name, other)) for other in COMPARED)
                scores = (_mean_and_error([r[key] for r in of]) for key in ("quality", "ll"))
                yield row(data, len(of), name, *scores, *paired)
        known = list({r["split"]: r["reference"] for r in here if r["reference"]}.values())
        if known:
            scores = (_mean_and_error([r[key] for r in known]) for key in ("rmse", "ll"))
            yield row(data, len(known), "MC dropout, as published", *scores, "", "")
    yield "± is the standard error over splits or seeds; differences are paired by split. Published: Gal and Ghahramani"
    yield "(2016), on the same splits."


def summary(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """For each row, on how many sets its log likelihood is above and below that of what took the same steps."""
    for name in _rows():
        other = "MAP" if name in ROWS and ROWS[name].ensemble is not None else "deep ensemble"
        above, below, level = list[str](), list[str](), list[str]()
        for data in dict.fromkeys(r["data"] for r in records):
            gaps = differences([r for r in records if r["data"] == data], name, other)
            if len(gaps) > 1:
                error = 2 * stdev(gaps) / math.sqrt(len(gaps))
                (above if fmean(gaps) > error else below if fmean(gaps) < -error else level).append(data)
        if above or below or level:
            named = f" ({', '.join(above)})" if above else ""
            yield (
                f"{name}: log likelihood above that of {other} on {len(above)} of {len(above + below + level)} sets"
                f"{named}, below on {len(below)}, within two standard errors on {len(level)}"
            )


def differences(records: Iterable[dict[str, Any]], row: str, other: str) -> list[float]:
    """Log likelihood of a row less that of another, of each split that has both; records are those of one set."""
    by_name: dict[str, dict[int, float]] = {row: {}, other: {}}
    for r in records:
        if r["method"] in by_name:
            by_name[r["method"]][r["split"]] = r["ll"]
    return [ll - by_name[other][s] for s, ll in by_name[row].items() if s in by_name[other]] if row != other else []


def evaluate(job: Job) -> list[dict[str, Any]]:
    """The records of one fit, in one thread."""
    torch.set_num_threads(1)
    train, val, test, target, reference = _data(job)
    engine = Engine(device="cpu", progress=False, compile=False, processes=1)
    recipe, together, layers = ROWS[job.row]
    problem = _problem(job.data, train, layers)
    began = time.process_time()
    posterior = fit(recipe, problem, train, val=val, members=job.members, seed=job.seed, engine=engine)
    seconds = time.process_time() - began
    posterior, chosen = (posterior, {}) if together is not None else _chosen(posterior, val)
    records = []
    for name, members in job.records:
        part = posterior[:members]
        scores = score(part, test)
        scores = scores if target is None else target.scores(scores)
        records.append(
            {
                "study": "variational",
                "data": job.data,
                "split": job.split,
                "method": name,
                "seed": job.seed,
                "members": members,
                "recipe": describe(part.recipe),
                "chosen": chosen,
                "fitted": job.members,  # members that were trained at once, in `seconds` of processor time
                "steps": _steps(recipe, train.n) * (members if together is not None else job.members),
                "n_train": train.n,
                "n_test": test.n,
                "quality": scores["rmse" if target is not None else "accuracy"],
                "ll": -scores["nll"],
                "scores": {k: v for k, v in scores.items() if isinstance(v, float) and math.isfinite(v)},
                "reference": reference,
                "seconds": seconds,
            }
        )
    return records


def _splits(options: Options, say: Say) -> Iterator[tuple[str, int]]:
    for name in options.without_folder(["digits"], (*SEEDS, *uci.NAMES), say):
        if name in SEEDS:
            count = SEEDS[name]
            datasets.load(name, folder=options.folder)  # a file that is missing is missed before hours of fits
        else:
            known = uci.load(name, options.folder or "")
            count = known.splits if len(known.targets) <= LARGE else FEW
        yield from ((name, k) for k in range(min(count, options.splits or count)))


def _rows() -> Iterator[str]:
    """Rows of the table, in order."""
    for name, row in ROWS.items():
        yield name
        if row.ensemble is not None:
            yield row.ensemble


def _has(data: str, row: str) -> bool:
    return data not in SEEDS or row != "VBLL 50-50"


def _done(jobs: list[Job]) -> Iterator[list[dict[str, Any]]]:
    """The records of jobs as they are done: in a process for each core, or here if there is one job."""
    workers = min(len(jobs), len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    if workers <= 1:
        yield from map(evaluate, jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            for future in as_completed([pool.submit(evaluate, job) for job in jobs]):
                yield future.result()
        finally:  # of a run that fails or is stopped, no further fit begins
            pool.shutdown(wait=False, cancel_futures=True)


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
        return Problem(lambda: MLP(width, 10, hidden=(100, 100)), likelihoods.Categorical())
    hidden = (100 if data == "protein" else 50,) * layers
    return Problem(lambda: MLP(width, 1, hidden=hidden), likelihoods.Gaussian(noise=0.3, learned=True))


def _chosen(posterior: Posterior, val: Data) -> tuple[Posterior, dict[str, float]]:
    """The member whose rate validation prefers."""
    losses = [score(posterior[k], val)["nll"] for k in range(len(posterior))]
    best = min(range(len(losses)), key=losses.__getitem__)
    recipe = posterior[best].recipe
    assert isinstance(recipe, MCDropout) and recipe.rate is not None
    return posterior[best], {"rate": recipe.rate}


def _steps(recipe: Method, n: int) -> int:
    """Planned for one member, with those of what it starts from."""
    before = _steps(recipe.base or MAP(), n) if isinstance(recipe, Based) else 0
    return before + recipe.schedule(n).steps


def _key(record: dict[str, Any]) -> tuple[str, int, str, int]:
    return record["data"], record["split"], record["method"], record["seed"]


def _words(record: dict[str, Any]) -> str:
    chosen = "".join(f"{name} {value:.3g}, " for name, value in record["chosen"].items())
    return f"{record['quality']:.4g}, log likelihood {record['ll']:.4g} ({chosen}{record['seconds']:.1f} s)"


def _mean_and_error(values: Sequence[float]) -> str:
    error = f" ± {stdev(values) / math.sqrt(len(values)):.2g}" if len(values) > 1 else ""
    return f"{fmean(values):.3g}{error}" if values else ""
