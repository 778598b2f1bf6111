"""How does a deep ensemble improve with its size, and is its error what theory says?

Size curves of NLL, Brier and ECE for 1 to 20 members on digits and (with a data folder) Fashion-MNIST, beside the mean
of the single members; and on regression, the mean squared error of an ensemble of n members against
(v + (n - 1) c) / n, where v is the mean squared error of a member and c the mean product of the errors of two.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from basinet import MAP, Engine, Noise, fit, score, size_curve
from basinet.compare import default_problem
from basinet.predict import RealPredictive

from . import Options, Say, append_record, describe

NARROWED_BY = ("examples",)
MEMBERS = 20
SUBSETS = 30


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Runs the study and returns its records, which are also in `options.out`/size.jsonl."""
    engine = options.engine(progress=True)
    records = []
    for name, recipe in (("digits", MAP(epochs=50)), ("fashion_mnist", MAP(epochs=20))):
        if name == "fashion_mnist" and not options.has_files(name, [name], say):
            continue
        splits = options.load(name)
        problem, train, test = default_problem(splits), splits.train, splits.test
        pool = options.out / f"pool-{name}"
        maps = fit(recipe, problem, train, members=MEMBERS, seed=options.seed, pool=pool, engine=engine)
        predictive = maps.predict(test.inputs)
        targets = test.targets.to(predictive.outputs.device)
        rows = size_curve(predictive, targets, range(1, MEMBERS + 1), SUBSETS, options.seed)
        for row in rows:
            say(
                f"{name} M={row['size']:2}  "
                + "  ".join(f"{k} {row[k]:.4f}" for k in ("nll", "brier", "ece", "accuracy"))
            )
        record = {"study": "size", "data": name, "n_train": train.n, "n_test": test.n, "seed": options.seed}
        record |= {
            "curve": rows,
            "recipe": describe(recipe),
            "seconds": maps.info["seconds"],
            "scores": score(maps, test),
        }
        records.append(append_record(options.out / "size.jsonl", record))
    records.append(append_record(options.out / "size.jsonl", _identity(options, engine, say)))
    return records


def _identity(options: Options, engine: Engine, say: Say) -> dict[str, Any]:
    """The error of ensembles of n against (v + (n - 1) c) / n, on the gap regression toy."""
    splits = options.load("gaps")
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
    assert splits.ood is not None
    curves = {}
    for part, data in (("test", splits.test), ("between the clusters", splits.ood)):
        predictive = maps.predict(data.inputs)
        assert isinstance(predictive, RealPredictive)
        truth = data.targets.to(predictive.outputs.device).reshape(predictive.member_mean.shape[1:])
        curves[part] = _error_rows((predictive.member_mean - truth).flatten(1).double().cpu(), options.seed)
        for row in curves[part]["rows"]:
            text = f"squared error {row['measured']:.6f}, (v + (n - 1) c) / n = {row['theory']:.6f}"
            say(f"gaps, {part}, n={row['n']:2}  {text}")
    base = {"study": "size", "data": "gaps", "seed": options.seed, "recipe": describe(recipe)}
    return base | {"n_test": splits.test.n, "n_ood": splits.ood.n, "identity": curves}


def _error_rows(errors: Tensor, seed: int) -> dict[str, Any]:
    """v, c, and for some n the mean squared error of ensembles of n, from the members' errors (M, B)."""
    m = len(errors)
    products = errors @ errors.T / errors.shape[1]
    v = float(products.diagonal().mean())
    c = float((products.sum() - products.diagonal().sum()) / (m * (m - 1)))
    rows = []
    for n in (1, 2, 5, 10, 20):
        chosen = [Noise.seed(seed).split(n).split(i).permutation(m)[:n] for i in range(1000)]
        measured = torch.stack([errors[i].mean(0).square().mean() for i in chosen])
        se = float(measured.std() / len(measured) ** 0.5)
        rows.append({"n": n, "theory": (v + (n - 1) * c) / n, "measured": float(measured.mean()), "se": se})
    return {"v": v, "c": c, "rows": rows}
