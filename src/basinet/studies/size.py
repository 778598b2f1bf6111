"""How does a deep ensemble improve with its size, and is its error what theory says?

Size curves of NLL, Brier and ECE for 1 to 20 members on digits and (with a data folder) Fashion-MNIST, beside the mean
of the single members; and on regression, the mean squared error of an ensemble of n members against (v + (n - 1) c) / n,
where v is the mean squared error of a member and c the mean product of the errors of two.
"""

from __future__ import annotations

from typing import Any

import torch

from ..compare import default_problem
from ..core.noise import Noise
from ..data import datasets
from ..engine import Engine
from ..fit import fit
from ..methods.map import MAP
from ..pool import append_record, describe
from ..predict import RealPredictive
from ..problem.likelihoods import aligned
from ..scoring import score, size_curve
from . import Options, Say

MEMBERS = 20
SUBSETS = 30


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Runs the study and returns its records, which are also in `options.out`/size.jsonl."""
    engine = Engine(device=options.device, progress=True)
    records = []
    for name, recipe in (("digits", MAP(epochs=50)), ("fashion_mnist", MAP(epochs=20))):
        if name == "fashion_mnist" and options.folder is None:
            say("fashion_mnist left out: give --folder with fashion_mnist.npz")
            continue
        splits = datasets.load(name, seed=options.seed, folder=options.folder)
        problem = default_problem(splits)
        pool = options.out / f"pool-{name}"
        maps = fit(recipe, problem, splits.train, members=MEMBERS, seed=options.seed, pool=pool, engine=engine)
        predictive = maps.predict(splits.test.inputs)
        targets = splits.test.targets.to(predictive.outputs.device)
        rows = size_curve(predictive, targets, range(1, MEMBERS + 1), SUBSETS, options.seed)
        for row in rows:
            say(
                f"{name} M={row['size']:2}  "
                + "  ".join(f"{k} {row[k]:.4f}" for k in ("nll", "brier", "ece", "accuracy"))
            )
        record = {"study": "size", "data": name, "n_test": splits.test.n, "seed": options.seed, "curve": rows}
        record |= {"recipe": describe(recipe), "seconds": maps.info["seconds"], "scores": score(maps, splits.test)}
        records.append(append_record(options.out / "size.jsonl", record))
    records.append(append_record(options.out / "size.jsonl", _identity(options, engine, say)))
    return records


def _identity(options: Options, engine: Engine, say: Say) -> dict[str, Any]:
    """The error of ensembles of n against (v + (n - 1) c) / n, on the gap regression toy."""
    splits = datasets.load("gaps", seed=options.seed)
    recipe = MAP(epochs=300)
    maps = fit(
        recipe,
        default_problem(splits),
        splits.train,
        members=MEMBERS,
        seed=options.seed,
        pool=options.out / "pool-gaps",
        engine=engine,
    )
    predictive = maps.predict(splits.test.inputs)
    assert isinstance(predictive, RealPredictive)
    targets = splits.test.targets.to(predictive.outputs.device)
    errors = (predictive.member_mean - aligned(predictive.outputs[0, 0], targets)).flatten(1).double()  # (M, B)
    products = errors @ errors.T / errors.shape[1]  # second moments of the members' errors
    v = float(products.diagonal().mean())
    c = float((products.sum() - products.diagonal().sum()) / (MEMBERS * (MEMBERS - 1)))
    rows = []
    for n in (1, 2, 5, 10, 20):
        keys = Noise.seed(options.seed).split(n)
        chosen = [keys.split(i).permutation(MEMBERS)[:n].to(errors.device) for i in range(1000)]
        measured = float(torch.stack([errors[i].mean(0).square().mean() for i in chosen]).mean())
        rows.append({"n": n, "theory": (v + (n - 1) * c) / n, "measured": measured})
        say(f"gaps n={n:2}  squared error {measured:.6f}, (v + (n - 1) c) / n = {rows[-1]['theory']:.6f}")
    return {
        "study": "size",
        "data": "gaps",
        "seed": options.seed,
        "n_test": splits.test.n,
        "recipe": describe(recipe),
        "identity": {"v": v, "c": c, "rows": rows},
    }
