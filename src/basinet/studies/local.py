"""When does a deep ensemble beat an ensemble of Bayesian networks?

The question of Jordahn et al. (2025, "On local posterior structure in deep ensembles"), small. Twenty modes on digits
and (with a data folder) Fashion-MNIST (the first 24,000 training images, of which 4,000 tune), trained with a nearly
flat prior, so that single members are over-confident; around each of the same modes PEP, SWAG and its mean SWA, Laplace
approximations and a temperature. NLL, Brier, ECE, accuracy, and AUROC of the entropy against MNIST, for mixtures of 1
to 20 members, each with the difference in NLL to the deep ensemble of the very same members: 95 % bootstrap intervals
over test images, paired.

What is tuned is tuned for each member alone, on validation images and by the predictive that is scored: the size of
PEP's noise, the temperature, the prior precision of the Laplace approximations (probit). The step size of SWA and SWAG
is the one of a few whose SWAG of the first member has the lowest validation NLL.

Records are appended to local.jsonl, one for each set and method; those that are there are not made again.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.nearest import did_you_mean
from ..core.noise import Noise
from ..data import Data, datasets
from ..engine import Engine, Method
from ..fit import fit
from ..methods.laplace import Laplace
from ..methods.map import MAP
from ..methods.pep import PEP
from ..methods.swa import SWA
from ..methods.swag import SWAG
from ..metrics import auroc, bootstrap_difference
from ..networks import MLP
from ..optim import SGD, Adam
from ..pool import append_record, describe, read_records
from ..posterior import Posterior
from ..predict import ClassPredictive
from ..problem import Problem
from ..problem.likelihoods import Categorical
from ..problem.priors import Normal
from ..scoring import score, size_curve
from ..temper import temper
from . import Options, Say

NARROWED_BY = ("sets", "examples")
MEMBERS = 20
SUBSETS = 20  # of the members, at each size
HIDDEN = (100, 100)
EPOCHS = {"digits": 200, "fashion_mnist": 30}
IMAGES, SHARES = 24_000, (5 / 6, 1 / 6)  # first training images of Fashion-MNIST, to train on and to tune
OUTSIDE = 5_000  # first test images of MNIST
RATES = (0.01, 0.05, 0.2)
BASE = "deep ensemble"


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records that are missing in `options.out`/local.jsonl and returns all that were asked for."""
    for name in options.sets:
        if name not in EPOCHS:
            raise ValueError(f"the study local has no set {name!r}.{did_you_mean(name, EPOCHS)}")
    path = options.out / "local.jsonl"
    known = {_key(r): r for r in read_records(path)} if path.exists() else {}
    asked = []
    for name in options.sets or EPOCHS:
        if name != "digits" and options.folder is None:
            say(f"{name} left out: give --folder with {name}.npz and mnist.npz")
            continue
        at = _Set.load(name, options)
        base = _Base.of(at, at.maps())
        for method, make in at.methods(base.posterior, say).items():
            key = (name, method, options.seed, at.train.n)
            if key not in known:
                known[key] = append_record(path, _record(at, method, make(), base))
            asked.append(known[key])
            for row in (known[key]["curve"][0], known[key]["curve"][-1]):
                scores = "  ".join(
                    f"{k} {row[k]:.4f}" for k in ("nll", "brier", "ece", "accuracy", "auroc") if k in row
                )
                told = "" if method == BASE else f"  NLL less that of the deep ensemble: {_interval(row)}"
                say(f"{name:13} {method:30} M={row['size']:2}  {scores}{told}")
    return asked


class _Set(NamedTuple):
    """One data set, and how members are made on it."""

    name: str
    options: Options
    train: Data
    val: Data
    test: Data
    outside: Tensor | None
    problem: Problem
    engine: Engine

    @staticmethod
    def load(name: str, options: Options) -> _Set:
        outside = None
        if name == "digits":
            splits = datasets.load(name, seed=options.seed)
            train, val, test = splits.train, splits.val, splits.test
        else:
            assert options.folder is not None
            images = datasets.load_images(name, options.folder)
            first = images["train"].take(slice(0, IMAGES))
            train, val = first.split(*SHARES, seed=options.seed, stratify=True)
            test = images["test"]
            outside = options.cut(datasets.load_images("mnist", options.folder)["test"], OUTSIDE).inputs
        train, val, test = options.cut(train), options.cut(val), options.cut(test)
        inputs = train.inputs[0].numel()
        problem = Problem(lambda: MLP(inputs, 10, HIDDEN), Categorical(), Normal(scale=10.0))
        return _Set(name, options, train, val, test, outside, problem, Engine(device=options.device, progress=False))

    def maps(self) -> Posterior:
        return self.fit(MAP(epochs=EPOCHS[self.name], optimizer=Adam(lr=1e-3)), members=MEMBERS)

    def methods(self, maps: Posterior, say: Say) -> dict[str, Callable[[], Posterior]]:
        """What is compared, all around the same modes."""
        tuned = Laplace(prior_precision="validation", via="probit")
        laplaces: dict[str, Method] = {
            "Laplace, last layer, full": replace(tuned, structure="full"),
            "Laplace, last layer, Kronecker": replace(tuned, structure="kronecker"),
            "Laplace, all layers, Kronecker": replace(tuned, structure="kronecker", where=None),
        }
        made: dict[str, Callable[[], Posterior]] = {BASE: lambda: maps, "temperature": lambda: temper(maps, self.val)}
        made["PEP"] = lambda: self.fit(PEP(), maps)
        made["SWA"] = lambda: self.fit(SWA(optimizer=self.step_size(maps, say)), maps)
        made["SWAG"] = lambda: self.fit(SWAG(optimizer=self.step_size(maps, say)), maps)
        return made | {name: lambda recipe=recipe: self.fit(recipe, maps) for name, recipe in laplaces.items()}

    def step_size(self, maps: Posterior, say: Say) -> SGD:
        sweep = self.fit(SWAG(optimizer=SGD(lr=list(RATES), momentum=0.9)), maps[:1], len(RATES))  # type: ignore
        tried = {rate: score(sweep[k], self.val, seed=self.options.seed)["nll"] for k, rate in enumerate(RATES)}
        best = min(tried, key=lambda rate: tried[rate])
        say(f"{self.name}: SWAG's step size {best}, by the validation NLL of one member: {tried}")
        return SGD(lr=best, momentum=0.9)

    def fit(self, recipe: Method, start: Posterior | None = None, members: int | None = None) -> Posterior:
        return fit(
            recipe,
            self.problem,
            self.train,
            val=self.val,
            start=start,
            members=members,
            seed=self.options.seed,
            pool=self.options.out / f"pool-{self.name}",
            engine=self.engine,
        )

    def member_probs(self, posterior: Posterior, inputs: Tensor) -> Tensor:
        """(M, B, C)"""
        predictive = posterior.predict(inputs, seed=self.options.seed)
        assert isinstance(predictive, ClassPredictive)
        return predictive.member_probs

    def subsets(self, size: int) -> list[Tensor]:
        """Members at random; all of them where that is all there is."""
        if size in (1, MEMBERS):
            return [torch.tensor(c) for c in itertools.combinations(range(MEMBERS), size)]
        noise = Noise.seed(self.options.seed).split("subsets").split(size)
        return [noise.split(i).permutation(MEMBERS)[:size] for i in range(SUBSETS)]


class _Base(NamedTuple):
    """The deep ensemble, and the log likelihood of each test image at each size."""

    posterior: Posterior
    logs: dict[int, Tensor]

    @staticmethod
    def of(at: _Set, maps: Posterior) -> _Base:
        return _Base(maps, _logs(at, at.member_probs(maps, at.test.inputs)))


def _record(at: _Set, method: str, posterior: Posterior, base: _Base) -> dict[str, Any]:
    probs = at.member_probs(posterior, at.test.inputs)
    targets = at.test.targets.to(probs.device)
    members = ClassPredictive(probs.clamp(min=1e-37).log().unsqueeze(1), Categorical())  # samples are averaged by now
    rows = size_curve(members, targets, range(1, MEMBERS + 1), SUBSETS, at.options.seed)
    outside = None if at.outside is None else at.member_probs(posterior, at.outside)
    for row, ours in zip(rows, _logs(at, probs).values()):
        size = int(row["size"])
        found = bootstrap_difference(-ours, -base.logs[size])
        row |= {"over_ensemble": float(found.difference), "low": float(found.low), "high": float(found.high)}
        if outside is not None:
            chosen = [c.to(probs.device) for c in at.subsets(size)]
            each = [float(auroc(*(members.entropy_of(p[c].mean(0)) for p in (probs, outside)))) for c in chosen]
            row["auroc"] = sum(each) / len(each)
    seconds = sum(part.info.get("seconds", 0.0) for part in posterior.parts)
    return {
        "study": "local",
        "data": at.name,
        "method": method,
        "seed": at.options.seed,
        "members": MEMBERS,
        "subsets": SUBSETS,
        "recipe": describe(posterior.recipe),
        "chosen": _chosen(posterior),
        "hidden": list(HIDDEN),
        "prior": describe(at.problem.prior),
        "n_train": at.train.n,
        "n_val": at.val.n,
        "n_test": at.test.n,
        "n_outside": 0 if outside is None else outside.shape[1],
        "seconds": seconds,
        "curve": rows,
    }


def _logs(at: _Set, probs: Tensor) -> dict[int, Tensor]:
    """The log likelihood of each test image, (B,), mean over mixtures of so many members."""
    index = at.test.targets.to(probs.device).expand(len(probs), -1).unsqueeze(-1)
    true = probs.gather(-1, index).squeeze(-1).double().clamp(min=1e-37)  # (M, B)
    found = {}
    for size in range(1, MEMBERS + 1):
        found[size] = torch.stack([true[c.to(true.device)].mean(0).log() for c in at.subsets(size)]).mean(0)
    return found


def _chosen(posterior: Posterior) -> dict[str, list[float]]:
    """What was tuned, one value a member."""
    if posterior.temperature is not None:
        return {"temperature": posterior.temperature.values.tolist()}
    curves = posterior.info.get("curves", {})
    if "chosen" in curves:
        return {"sigma": [row[0] for row in curves["chosen"]]}
    return {"prior_factor": [row[0] for row in curves["prior_factor"]]} if "prior_factor" in curves else {}


def _interval(row: dict[str, Any]) -> str:
    return f"{row['over_ensemble']:+.4f} ({row['low']:+.4f} to {row['high']:+.4f})"


def _key(record: dict[str, Any]) -> tuple[str, str, int, int]:
    return record["data"], record["method"], record["seed"], record["n_train"]
