"""Is the first answer good? The defaults on tables, beside gradient boosting with its own.

Published splits of the nine UCI regression sets, the diabetes set, and synthetic tables: a linear one with 1 %
noise, Friedman's first function (also on 1,000, 15,000 and 100,000 training rows, for the time to a first answer),
noise that depends on the inputs, and heavy tails. Nothing is set by hand:

    MAP                 one network: the default problem (`basinet.defaults`, among whose candidates `pilot` chooses)
                        and recipe (`MAP()`). Of the training rows 15 %, up to 20,000 rows others for each member, say
                        which candidate, when to stop and how wide the prediction is (`bn.temper`), as in `basinet fit`
    deep ensemble       ten of them, as `basinet fit` trains
    TabM-like           `BatchEnsemble()`, points that share their weights but for factors, in place of `MAP()`
    gradient boosting   scikit-learn's HistGradientBoostingRegressor, LightGBM and CatBoost, where they are installed,
                        with their defaults on all training rows; as a density, a normal around the prediction with the
                        standard deviation of residuals out of five folds
    networks            RealMLP and TabM of pytabkit, where it is installed, one fit with their defaults: a fifth of
                        the training rows says when it ends, and the standard deviation of their residuals is that of
                        the density

The defaults were chosen with test scores of the first splits in view, of all sets but naval, friedman, uneven and tails
(`CHOSEN_ON`): what they are worth is told by those, and by further splits. Records are appended to tables.jsonl, one
for each set, split and method; those that are there are not made again, and several runs, of a set each, may append to
one file. Records of ours say in `default` which default they had: those of another are made again, and the last one of
a set, split and method counts. Seconds are of one processor: run with OMP_NUM_THREADS=1.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib import import_module
from statistics import fmean
from typing import Any, NamedTuple

import numpy as np
import torch

from basinet import MAP, BatchEnsemble, Data, Posterior, fit, likelihoods, score, temper
from basinet import pilot as choice
from basinet.defaults import candidates_for
from basinet.engine.method import patience_of
from basinet.pilot import pilot, with_step_of
from basinet.predict import RealPredictive
from basinet.saving import describe_problem
from basinet.tables import uci
from basinet.tables.columns import moments
from basinet.tables.crossed import ROWS, crossed
from basinet.tables.targets import scores_in_units

from . import Options, Say, append_record, describe, did_you_mean, fingerprint, read_records

NARROWED_BY = ("sets", "methods", "splits")
OURS = ("MAP", "deep ensemble", "TabM-like")
BOOSTED = {
    "scikit-learn boosting": ("sklearn.ensemble", "HistGradientBoostingRegressor", {"random_state": 0}),
    "LightGBM": ("lightgbm", "LGBMRegressor", {"random_state": 0, "n_jobs": 1, "verbose": -1}),
    "CatBoost": (
        "catboost",
        "CatBoostRegressor",
        {"random_seed": 0, "thread_count": 1, "verbose": 0, "allow_writing_files": False},
    ),
}
NETWORKS = {
    "RealMLP": ("pytabkit", "RealMLP_TD_Regressor", {"random_state": 0, "n_threads": 1, "device": "cpu"}),
    "TabM": ("pytabkit", "TabM_D_Regressor", {"random_state": 0, "n_threads": 1, "device": "cpu"}),
}
OTHERS = BOOSTED | NETWORKS
METHODS = (*OURS, *OTHERS)
CHOSEN_ON = ("yacht", "concrete", "energy", "kin8nm", "diabetes", "linear", "boston", "wine_red", "power", "protein")
MEMBERS, VALIDATION, FOLDS = 10, 0.15, 5
SHOWN = ("rmse", "nll", "crps", "coverage_90")


class Rows(NamedTuple):
    """A table, cut."""

    inputs: np.ndarray  # (n, d)
    targets: np.ndarray  # (n,)
    test_inputs: np.ndarray
    test_targets: np.ndarray


class Result(NamedTuple):
    """What came of a method."""

    scores: dict[str, float]  # in units of the target
    seconds: float  # of the processor
    about: dict[str, Any]  # what else its record says


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records that are missing in `options.out`/tables.jsonl, prints the table, and returns all that were
    asked for."""
    if options.folder is None:
        raise ValueError("the study tables reads the files uci_NAME.npz: give --folder with the folder they are in")
    methods = options.methods or tuple(m for m in METHODS if m in OURS or _installed(m))
    for kind, words, known in (("method", methods, METHODS), ("set", options.sets, (*uci.NAMES, *UNPUBLISHED))):
        for one in words:
            if one not in known:
                raise ValueError(f"the study tables has no {kind} {one!r}.{did_you_mean(one, known)}")
    path = options.out / "tables.jsonl"
    today = version()
    records = {_key(r): r for r in read_records(path)} if path.exists() else {}
    records = {key: r for key, r in records.items() if r["method"] not in OURS or r.get("default") == today}
    asked = [(s, k) for s in options.sets or (*uci.NAMES, *UNPUBLISHED) for k in range(options.splits or 1)]
    for name, split in asked:
        missing = [m for m in methods if (name, split, m, options.seed) not in records]
        read = partial(_published, options.folder, name) if name in uci.NAMES else UNPUBLISHED[name]
        for method, (scores, seconds, about) in _results(read, split, missing, options):
            place = {"study": "tables", "data": name, "split": split, "method": method, "seed": options.seed}
            own = {"default": today} if method in OURS else {}
            record = append_record(path, place | own | about | {"scores": scores, "cpu_seconds": seconds})
            records[_key(record)] = record
            shown = ", ".join(f"{key} {scores[key]:.4g}" for key in SHOWN)
            say(f"{name}, split {split}, {method}: {shown} ({seconds:.1f} s)")
    kept = [records[key] for s, k in asked for m in methods if (key := (s, k, m, options.seed)) in records]
    for line in table(kept):
        say(line)
    return kept


def version() -> str:
    """What stands for the default that is measured: its candidates for some inputs, recipes and their schedules."""
    inputs = torch.linspace(-1, 1, 1000).unsqueeze(-1)
    candidates = candidates_for(inputs, 1, "real", targets=inputs.exp(), zero=0.0)
    problems = [describe_problem(problem) for problem in candidates]
    recipes = [MAP(), BatchEnsemble()]
    plans = [[*recipe.schedule(n), patience_of(recipe)] for recipe in recipes for n in (1_000, 15_000, 100_000)]
    rules = [ROWS, choice.STEPS, choice.RATES, choice.LONGER, choice.Z_NOISE, choice.Z_WARP, choice.Z_RATE]
    return fingerprint([problems, [describe(recipe) for recipe in recipes], plans, MEMBERS, VALIDATION, *rules])


def table(records: Sequence[dict[str, Any]]) -> Iterator[str]:
    """A line for each set and method, means over splits; the best boosting by RMSE has a star."""
    row = "{:12} {:>6}  {:24} {:>9} {:>8} {:>9} {:>8} {:>7}".format
    yield row("set", "splits", "method", "RMSE", "NLL", "CRPS", "in 90 %", "s")
    for name in dict.fromkeys(r["data"] for r in records):
        of = {m: [r for r in records if r["data"] == name and r["method"] == m] for m in METHODS}
        errors = {m: fmean(r["scores"]["rmse"] for r in of[m]) for m in BOOSTED if of[m]}
        for method, here in of.items():
            if here:
                means = [fmean(r["scores"][key] for r in here) for key in SHOWN]
                seconds = fmean(r["cpu_seconds"] for r in here)
                star = " *" if errors and method == min(errors, key=lambda m: errors[m]) else ""
                chosen = " +" if name in CHOSEN_ON else ""
                cells = (f"{means[0]:.4g}", f"{means[1]:.3f}", f"{means[2]:.4g}", f"{means[3]:.3f}", f"{seconds:.1f}")
                yield row(name + chosen, len(here), method + star, *cells)
    yield "+ a set on whose first split the defaults were chosen. * the best boosting by RMSE."


def _results(
    read: Callable[[int], Rows], split: int, methods: Sequence[str], options: Options
) -> Iterator[tuple[str, Result]]:
    """Each method with what came of it."""
    rows = read(split) if methods else None
    if rows is not None and (ours := [m for m in methods if m in OURS]):
        yield from _ours(rows, ours, options)
    if rows is not None:
        yield from ((m, _other(rows, m)) for m in methods if m not in OURS)


def _ours(rows: Rows, methods: Sequence[str], options: Options) -> Iterator[tuple[str, Result]]:
    """One problem is chosen for all of them; the time of that counts for each."""
    order = np.random.default_rng(options.seed).permutation(len(rows.targets))
    cut = max(1, round(VALIDATION * len(order)))
    val, train = order[:cut], order[cut:]
    scales = [moments(rows.inputs[train, d], f"column {d}") for d in range(rows.inputs.shape[1])]
    mean, sd = np.array(scales).T
    centre, unit = moments(rows.targets[train], "target")

    def data(inputs: np.ndarray, targets: np.ndarray) -> Data:
        x, y = torch.from_numpy((inputs - mean) / sd).float(), torch.from_numpy((targets - centre) / unit).float()
        return Data(x, y.unsqueeze(-1))

    known, held = (data(rows.inputs[i], rows.targets[i]) for i in (train, val))
    known, held = crossed(known, held, MEMBERS, options.seed)
    test = data(rows.test_inputs, rows.test_targets)
    engine = options.engine()
    began = time.process_time()
    problems = candidates_for(known.inputs, 1, "real", targets=known.targets, zero=-centre / unit)
    problem, tried, line = pilot(problems, known, held, seed=options.seed, engine=engine)
    choosing = time.process_time() - began
    for method in methods:
        recipe = with_step_of(BatchEnsemble() if method == "TabM-like" else MAP(), tried)
        members = MEMBERS if method == "deep ensemble" else 1
        began = time.process_time()
        whole = fit(recipe, problem, known, val=held, members=members, seed=options.seed, engine=engine)
        posterior = temper(whole, held, seed=options.seed)
        seconds = choosing + time.process_time() - began
        sizes = {"n_train": known.n, "n_val": held.n, "n_test": test.n, "chosen": line}
        yield method, Result(scores_in_units(score(posterior, test), unit), seconds, _about(posterior) | sizes)


def _about(posterior: Posterior) -> dict[str, Any]:
    curves = posterior.info["curves"]
    return {
        "members": len(posterior),
        "steps": [int(steps[-1]) for steps in curves["step"]],
        "noise_factors": [factor for each in curves["noise_factor"] for factor in each],
        "spread": 1.0 if posterior.temperature is None else float(posterior.temperature.values),
    }


def _other(rows: Rows, method: str) -> Result:
    make = _maker(method)
    began = time.process_time()
    model, residuals = (_stopped if method in NETWORKS else _folded)(make, rows)
    sd = float(np.sqrt(np.mean(residuals**2)))
    mean = model.predict(rows.test_inputs)
    seconds = time.process_time() - began
    outputs = torch.from_numpy(np.asarray(mean, np.float64)).reshape(1, 1, -1, 1)
    scores = score(
        RealPredictive(outputs, likelihoods.Gaussian(noise=sd), {}), torch.from_numpy(rows.test_targets).unsqueeze(-1)
    )
    return Result(scores, seconds, {"n_train": len(rows.targets), "n_test": len(rows.test_targets), "residual_sd": sd})


def _folded(make: Callable[[], Any], rows: Rows) -> tuple[Any, np.ndarray]:
    """A model of all rows, and residuals of those that models of the other folds have not seen."""
    folds = np.random.default_rng(0).permutation(len(rows.targets)) % FOLDS
    residuals = np.empty(len(rows.targets))
    for fold in range(FOLDS):
        inside, out = folds != fold, folds == fold
        model = make().fit(rows.inputs[inside], rows.targets[inside])
        residuals[out] = rows.targets[out] - model.predict(rows.inputs[out])
    return make().fit(rows.inputs, rows.targets), residuals


def _stopped(make: Callable[[], Any], rows: Rows) -> tuple[Any, np.ndarray]:
    """A model whose training ends by a fold of the rows, as many as pytabkit takes by default, and their residuals."""
    held = np.random.default_rng(0).permutation(len(rows.targets)) % FOLDS == 0
    model = make().fit(rows.inputs, rows.targets, val_idxs=np.flatnonzero(held))
    return model, rows.targets[held] - model.predict(rows.inputs[held])


def _maker(method: str) -> Callable[[], Any]:
    module, name, options = OTHERS[method]
    return partial(getattr(import_module(module), name), **options)


def _installed(method: str) -> bool:
    try:
        import_module(OTHERS[method][0])
    except ImportError:
        return False
    return True


def _published(folder: Any, name: str, split: int) -> Rows:
    known = uci.load(name, folder)
    train, test = known.train[split % known.splits], known.test[split % known.splits]
    return Rows(known.inputs[train], known.targets[train], known.inputs[test], known.targets[test])


def _diabetes(split: int) -> Rows:
    from sklearn.datasets import load_diabetes

    inputs, targets = load_diabetes(return_X_y=True, scaled=False)
    return _cut(inputs, targets.astype(np.float64), split)


def _cut(inputs: np.ndarray, targets: np.ndarray, split: int) -> Rows:
    """Nine tenths to train on."""
    order = np.random.default_rng(split).permutation(len(targets))
    train, test = np.split(order, [round(0.9 * len(order))])
    return Rows(inputs[train], targets[train], inputs[test], targets[test])


def _synthetic(n: int, d: int, function: Callable[[np.ndarray, np.ndarray], np.ndarray], split: int) -> Rows:
    """A table of uniform inputs in (0, 1) and targets that are a function of them and of standard normal noise."""
    rng = np.random.default_rng(1000 + split)
    x, noise = rng.uniform(size=(n, d)), rng.standard_normal(n)
    return _cut(x, function(x, noise), split)


def _linear(x: np.ndarray, noise: np.ndarray) -> np.ndarray:
    y = x @ np.linspace(-1, 1, x.shape[1])
    return (y - y.mean()) / y.std() + 0.01 * noise


def _friedman(x: np.ndarray, noise: np.ndarray) -> np.ndarray:
    waves = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2
    return waves + 10 * x[:, 3] + 5 * x[:, 4] + noise


def _uneven(x: np.ndarray, noise: np.ndarray) -> np.ndarray:
    z = 4 * x - 2
    return np.sin(2 * z[:, 0]) + z[:, 1] * z[:, 2] + 0.5 * np.exp(z[:, 3] - 1) * noise


def _tails(x: np.ndarray, noise: np.ndarray) -> np.ndarray:
    z = 4 * x - 2
    return np.exp(z[:, 0] + 0.5 * z[:, 1] * z[:, 2] + 0.3 * noise)


UNPUBLISHED: dict[str, Callable[[int], Rows]] = {
    "diabetes": _diabetes,
    "linear": partial(_synthetic, 1667, 10, _linear),
    "friedman": partial(_synthetic, 2000, 10, _friedman),
    "friedman_1000": partial(_synthetic, 1111, 10, _friedman),
    "friedman_15000": partial(_synthetic, 16667, 10, _friedman),
    "friedman_100000": partial(_synthetic, 111111, 10, _friedman),
    "uneven": partial(_synthetic, 4000, 6, _uneven),
    "tails": partial(_synthetic, 3000, 8, _tails),
}


def _key(record: dict[str, Any]) -> tuple[str, int, str, int]:
    return record["data"], record["split"], record["method"], record["seed"]
