"""Is the first answer good? The defaults on tables, beside gradient boosting with its own.

Published splits of the nine UCI regression sets, the diabetes set, and tables that are made: a linear one with 1 %
noise, Friedman's first function (also on 1,000 and 100,000 training rows, for the time to a first answer), noise that
depends on the inputs, and heavy tails. Nothing is set by hand:

    MAP                 the first member of the deep ensemble
    deep ensemble       five of them: the default problem (`basinet.defaults`, between whose noise models `pilot`
                        chooses) and recipe (`MAP()`), of whose training rows 15 % say which noise, when to stop and how
                        wide the mixture is (`bn.temper`), as `basinet fit` does it
    gradient boosting   scikit-learn's HistGradientBoostingRegressor, LightGBM and CatBoost, where they are installed,
                        with their defaults on all training rows; as a density, a normal around the prediction with the
                        standard deviation of residuals out of five folds
    networks            RealMLP and TabM of pytabkit, where it is installed, in the same way

The defaults were chosen with test scores of the first splits in view, of all sets but naval, friedman, uneven and tails
(`CHOSEN_ON`): what they are worth is told by those, and by further splits. Records are appended to tables.jsonl, one
for each set, split and method; those that are there are not made again, and several runs, of a set each, may append to
one file. Seconds are of one processor: run with OMP_NUM_THREADS=1.
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

from ..core.nearest import did_you_mean
from ..data import Data, uci
from ..data.columns import moments
from ..data.targets import scores_in_units
from ..defaults import candidates_for
from ..engine import Engine
from ..fit import fit
from ..methods.map import MAP
from ..pilot import pilot
from ..pool import append_record, read_records
from ..posterior import Posterior
from ..predict import RealPredictive
from ..problem.likelihoods import Gaussian
from ..scoring import score
from ..temper import temper
from . import Options, Say

NARROWED_BY = ("sets", "methods", "splits")
OURS = ("MAP", "deep ensemble")
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
MEMBERS, VALIDATION, FOLDS = 5, 0.15, 5
SHOWN = ("rmse", "nll", "crps", "coverage_90")


class Rows(NamedTuple):
    """A table, cut."""

    inputs: np.ndarray  # (n, d)
    targets: np.ndarray  # (n,)
    test_inputs: np.ndarray
    test_targets: np.ndarray


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records that are missing in `options.out`/tables.jsonl, prints the table, and returns all that were
    asked for."""
    if options.folder is None:
        raise ValueError("the study tables reads the files uci_NAME.npz: give --folder with the folder they are in")
    methods = options.methods or tuple(m for m in METHODS if m in OURS or _installed(m))
    for kind, words, known in (("method", methods, METHODS), ("set", options.sets, (*uci.NAMES, *MADE))):
        for one in words:
            if one not in known:
                raise ValueError(f"the study tables has no {kind} {one!r}.{did_you_mean(one, known)}")
    path = options.out / "tables.jsonl"
    records = {_key(r): r for r in read_records(path)} if path.exists() else {}
    asked = [
        (s, k, m) for s in options.sets or (*uci.NAMES, *MADE) for k in range(options.splits or 1) for m in methods
    ]
    for name, split, method in asked:
        if (name, split, method, options.seed) in records:
            continue
        read = partial(_published, options.folder, name) if name in uci.NAMES else MADE[name]
        made = _ours(read(split), options) if method in OURS else {method: _other(read(split), method)}
        for label, (scores, seconds, about) in made.items():
            place = {"study": "tables", "data": name, "split": split, "method": label, "seed": options.seed}
            record = append_record(path, place | about | {"scores": scores, "cpu_seconds": seconds})
            records[_key(record)] = record
            shown = ", ".join(f"{key} {scores[key]:.4g}" for key in SHOWN)
            say(f"{name}, split {split}, {label}: {shown} ({seconds:.1f} s)")
    kept = [records[key] for s, k, m in asked if (key := (s, k, m, options.seed)) in records]
    for line in table(kept):
        say(line)
    return kept


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


def _ours(rows: Rows, options: Options) -> dict[str, tuple[dict[str, float], float, dict[str, Any]]]:
    """Scores, processor seconds and what is known of the defaults: of one member, and of all."""
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
    test = data(rows.test_inputs, rows.test_targets)
    began = time.process_time()
    engine = Engine(device=options.device, progress=False)
    problem, line = pilot(candidates_for(known.inputs, 1, "real"), known, held, seed=options.seed, engine=engine)
    whole = fit(MAP(), problem, known, val=held, members=MEMBERS, seed=options.seed, engine=engine)
    mixture = temper(whole, held, seed=options.seed)
    seconds = time.process_time() - began
    sizes = {"n_train": known.n, "n_val": held.n, "n_test": test.n, "chosen": line}
    made = {}
    for label, posterior in (("MAP", whole[:1]), ("deep ensemble", mixture)):
        made[label] = (scores_in_units(score(posterior, test), unit), seconds, _about(posterior) | sizes)
    return made


def _about(posterior: Posterior) -> dict[str, Any]:
    curves = posterior.info["curves"]
    return {
        "members": len(posterior),
        "steps": [int(steps[-1]) for steps in curves["step"]],
        "noise_factors": [factor[0] for factor in curves["noise_factor"]],
        "spread": 1.0 if posterior.temperature is None else float(posterior.temperature.values),
    }


def _other(rows: Rows, method: str) -> tuple[dict[str, float], float, dict[str, Any]]:
    began = time.process_time()
    folds = np.random.default_rng(0).permutation(len(rows.targets)) % FOLDS
    residuals = np.empty(len(rows.targets))
    for fold in range(FOLDS):
        inside, out = folds != fold, folds == fold
        model = _regressor(method).fit(rows.inputs[inside], rows.targets[inside])
        residuals[out] = rows.targets[out] - model.predict(rows.inputs[out])
    sd = float(np.sqrt(np.mean(residuals**2)))
    made = _regressor(method).fit(rows.inputs, rows.targets).predict(rows.test_inputs)
    seconds = time.process_time() - began
    outputs = torch.from_numpy(np.asarray(made, np.float64)).reshape(1, 1, -1, 1)
    scores = score(RealPredictive(outputs, Gaussian(noise=sd), {}), torch.from_numpy(rows.test_targets).unsqueeze(-1))
    return scores, seconds, {"n_train": len(rows.targets), "n_test": len(rows.test_targets), "residual_sd": sd}


def _regressor(method: str) -> Any:
    module, name, options = OTHERS[method]
    return getattr(import_module(module), name)(**options)


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


def _made(n: int, d: int, function: Callable[[np.ndarray, np.ndarray], np.ndarray], split: int) -> Rows:
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


MADE: dict[str, Callable[[int], Rows]] = {
    "diabetes": _diabetes,
    "linear": partial(_made, 1667, 10, _linear),
    "friedman": partial(_made, 2000, 10, _friedman),
    "friedman_1000": partial(_made, 1111, 10, _friedman),
    "friedman_100000": partial(_made, 111111, 10, _friedman),
    "uneven": partial(_made, 4000, 6, _uneven),
    "tails": partial(_made, 3000, 8, _tails),
}


def _key(record: dict[str, Any]) -> tuple[str, int, str, int]:
    return record["data"], record["split"], record["method"], record["seed"]
