"""How close is each approximation to the true posterior? Agreement with long Hamiltonian chains, for every method.

A small network on digits (64-10-10, standard normal prior, 300 training images), whose posterior HMC samples: 8 chains
from 8 modes. Every row that `basinet compare` offers is fitted to the same problem, with validation data to stop and
tune where it takes them, and its predictive probabilities of the test images are compared with those of the reference:

    agreement         share of images on which both choose the same class
    total variation   mean of half the sum of |p - q| over classes

The first rows say how close a perfect answer would come: the first half of the reference's chains against the other.
With `--folder` that has the UCI sets, NUTS and MCLMC sample a network with 50 hidden units on 500 rows of concrete:
effective draws of predictions per 1,000 gradients, and of the noise.
"""

from __future__ import annotations

from statistics import median
from typing import Any

from torch import Tensor

from ..compare.rows import choose
from ..data import Data, uci
from ..data.datasets import Splits
from ..diagnose import diagnose
from ..engine import Engine
from ..fit import fit
from ..methods.hmc import HMC
from ..methods.mclmc import MCLMC
from ..methods.nuts import NUTS
from ..metrics import agreement, total_variation
from ..networks import MLP
from ..pool import append_record, describe, read_records
from ..posterior import Posterior
from ..problem import Problem
from ..problem.likelihoods import Categorical, Gaussian
from ..scoring import score
from . import Options, Say

NARROWED_BY = ("methods", "examples")
CHAINS, HIDDEN, TRAINING = 8, 10, 300
REFERENCE = HMC(steps=40_000, warmup=10_000, draws=400)
MEMBERS = 10  # of ensembles
SAMPLERS = {
    "NUTS": NUTS(steps=60_000, warmup=15_000, draws=400),
    "MCLMC": MCLMC(steps=30_000, warmup=10_000, draws=400),
}
ROWS, UNITS = 500, 50  # of the UCI set, and of the hidden layer


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Runs the study and returns its records, which are also in `options.out`/fidelity.jsonl."""
    splits = options.load("digits")
    train = options.cut(splits.train, TRAINING)
    problem = Problem(lambda: MLP(64, 10, hidden=(HIDDEN,)), Categorical())
    records = list(_compared(options, splits, train, problem, say))
    if options.folder is not None:
        records += _sampled(options, say)
    else:
        say("samplers on concrete left out: give --folder with the UCI sets")
    return records


def _compared(options: Options, splits: Splits, train: Data, problem: Problem, say: Say) -> list[dict[str, Any]]:
    engine, pool = Engine(device=options.device, progress=True), options.out / "pool-fidelity"
    path = options.out / "fidelity.jsonl"
    reference = fit(REFERENCE, problem, train, members=CHAINS, seed=options.seed, pool=pool, engine=engine)
    said = diagnose(reference, train)
    say(f"reference: {CHAINS} chains of {said.kept} draws. {said.verdict}")
    truth = _probabilities(reference, splits)
    half = CHAINS // 2
    rows = [("half of the chains", reference[:half], _probabilities(reference[half:], splits))]
    records = [_record(options, path, say, name, made, against, splits) for name, made, against in rows]
    done = {r["method"] for r in read_records(path) if r.get("seed") == options.seed} if path.exists() else set()
    for row in choose("all", MEMBERS, train.n, False).rows:
        wanted = not options.methods or row.label in options.methods or type(row.recipe).__name__ in options.methods
        if row.recipe is None or row.tempered or not wanted or row.label in done:
            continue
        made = fit(
            row.recipe, problem, train, val=splits.val, members=row.members, seed=options.seed, pool=pool, engine=engine
        )
        records.append(_record(options, path, say, row.label, made, truth, splits))
    return records


def _probabilities(posterior: Posterior, splits: Splits) -> Tensor:
    return posterior.predict(splits.test.inputs).probs


def _record(
    options: Options, path: Any, say: Say, name: str, posterior: Posterior, truth: Tensor, splits: Splits
) -> dict[str, Any]:
    probs = _probabilities(posterior, splits)
    close = {"agreement": float(agreement(probs, truth)), "total_variation": float(total_variation(probs, truth))}
    close["nll"] = float(score(posterior, splits.test, seed=options.seed)["nll"])
    say(f"{name:28} agreement {close['agreement']:.3f}  TV {close['total_variation']:.3f}  NLL {close['nll']:.3f}")
    recipe = posterior.parts[0].recipe
    record = {"study": "fidelity", "data": splits.name, "method": name, "seed": options.seed, **close}
    record |= {"members": len(posterior), "n_test": splits.test.n, "seconds": posterior.info.get("seconds")}
    return append_record(path, record | {"recipe": None if recipe is None else describe(recipe)})


def _sampled(options: Options, say: Say) -> list[dict[str, Any]]:
    """Effective draws in function space per 1,000 gradients, on a UCI set."""
    assert options.folder is not None
    known = uci.load("concrete", options.folder)
    count = ROWS if options.examples is None else options.examples
    (data,), _ = known.part(known.train[0][:count])
    inputs = known.inputs.shape[1]
    problem = Problem(lambda: MLP(inputs, 1, hidden=(UNITS,)), Gaussian(noise=0.3, learned=True))
    engine, records = Engine(device=options.device, progress=True), []
    for name, recipe in SAMPLERS.items():
        made = fit(recipe, problem, data, members=CHAINS, seed=options.seed, engine=engine)
        seen = diagnose(made, data)
        gradients = CHAINS * (recipe.total - recipe.warm) / 1000
        bulk = [r.bulk for r in seen.rows if r.name.startswith("prediction")]
        noise = [r.bulk for r in seen.rows if not r.name.startswith(("prediction", "loss"))]
        told = {"ess_per_1000": median(bulk) / gradients, "least_per_1000": min(bulk) / gradients}
        told |= {"noise_ess": min(noise), "rhat": max(r.rhat for r in seen.rows)}
        say(f"{name:8} {told['ess_per_1000']:.2f} effective draws per 1,000 gradients, R-hat {told['rhat']:.3f}")
        record = {"study": "fidelity", "data": "concrete", "method": name, "seed": options.seed, "n_train": data.n}
        records.append(append_record(options.out / "fidelity.jsonl", record | told | {"recipe": describe(recipe)}))
    return records
