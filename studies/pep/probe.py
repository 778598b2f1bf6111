"""PEP as a probe: what noise gains, and how much is best, along the epochs beside over-fitting; and example by example.

Over-fitting is test NLL less training NLL. To second order the gain is sigma^2 / 2 times the Laplacian of the log
likelihood plus the trace of the empirical Fisher matrix, per validation image: the Laplacian is negative at a good fit,
the trace never is, and noise gains where the second outweighs the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from basinet import Data, Posterior, score
from basinet.curvature import traces

if TYPE_CHECKING:
    from .table import Row

TRAIN = 5_000  # training images for the NLL there
LOCAL = 400  # validation images for the local theory
PROBES = 16  # directions of the Laplacian
SHOWN = 10  # examples that are named, of those that change the most


def records(row: Row) -> list[dict[str, Any]]:
    """A record for each epoch, and one on single examples."""
    lines = []
    for epochs in (e for e in row.setting.probe if e <= row.setting.epochs):
        lines.append(row.known("probe", str(epochs)) or row.record("probe", method=str(epochs), **_epoch(row, epochs)))
        mean = lines[-1]["mean"]
        row.say(
            f"epoch {epochs:3}: over-fitting {mean['overfitting']:+.4f}  effect {mean['effect']:+.4f}  "
            f"sigma {mean['sigma']:.4f}  Laplacian {mean['laplacian']:+.3g}  Fisher {mean['fisher']:+.3g}"
        )
    lines.append(row.known("examples", "PEP") or row.record("examples", method="PEP", **_examples(row)))
    seen = lines[-1]
    row.say(
        f"examples: {seen['corrected']} corrected and {seen['broken']} broken of {seen['n']}; mean effect "
        f"{seen['effect_wrong']:+.3f} where the network is wrong, {seen['effect_right']:+.4f} where it is right"
    )
    return lines


def _epoch(row: Row, epochs: int) -> dict[str, Any]:
    """A run of e epochs at a constant step size is the beginning of a longer one."""
    maps = row.maps(epochs, members=row.setting.probed)
    noisy = row.noisy(maps)
    few = row.train.take(slice(0, min(TRAIN, row.train.n)))
    rows = []
    for k in range(len(maps)):
        train, test = (score(maps[k], part)["nll"] for part in (few, row.test))
        after = score(noisy[k], row.test, samples=row.setting.samples)["nll"]
        local = _local(row, maps, k)
        [sigma] = noisy.info["curves"]["chosen"][k]
        rows.append(
            {
                "train": train,
                "test": test,
                "overfitting": test - train,
                "effect": test - after,
                "sigma": sigma,
                "laplacian": local.laplacian / local.examples,
                "laplacian_error": local.error / local.examples,
                "fisher": local.fisher / local.examples,
                "predicted": local.gain(sigma),
            }
        )
    return {"members": rows, "mean": {name: sum(r[name] for r in rows) / len(rows) for name in rows[0]}}


def _local(row: Row, maps: Posterior, k: int) -> Any:
    some: Data = row.val.take(slice(0, min(LOCAL, row.val.n))).to(row.engine.place, torch.float32)
    return traces(row.problem, maps.points()[k], some, row.setting.where, PROBES)


def _examples(row: Row) -> dict[str, Any]:
    """What noise does to each test image, of the first seed."""
    maps = row.maps()[0]
    noisy = row.noisy(row.maps())[0]
    before, after = (
        posterior.predict(row.test.inputs, samples)
        for posterior, samples in ((maps, None), (noisy, row.setting.samples))
    )
    targets = row.test.targets
    effect = (after.log_prob(targets) - before.log_prob(targets)).cpu()
    right, then = ((p.probs.argmax(-1).cpu() == targets) for p in (before, after))
    order = effect.argsort(descending=True)
    return {
        "n": len(targets),
        "corrected": int((~right & then).sum()),
        "broken": int((right & ~then).sum()),
        "effect": float(effect.mean()),
        "effect_right": float(effect[right].mean()),
        "effect_wrong": float(effect[~right].mean()) if bool((~right).any()) else 0.0,
        "quantiles": torch.quantile(effect.double(), torch.tensor([0.01, 0.1, 0.5, 0.9, 0.99]).double()).tolist(),
        "most": [{"image": int(i), "effect": float(effect[i]), "class": int(targets[i])} for i in order[:SHOWN]],
        "least": [{"image": int(i), "effect": float(effect[i]), "class": int(targets[i])} for i in order[-SHOWN:]],
        "corrected_images": torch.nonzero(~right & then).flatten().tolist()[:100],
    }
