"""Scores: how good predictions are, for a predictive in memory or streamed for a posterior of any size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Normal

from . import metrics
from .core.noise import Noise
from .core.tree import leaves, tree_map
from .data import Data
from .posterior import Posterior
from .predict import ClassPredictive, Predictive, RealPredictive, forward
from .problem.likelihoods import aligned

BUDGET = 512 * 2**20  # bytes that outputs and what is computed from them may take while streaming
LEVEL = 0.9  # of the interval whose coverage is reported


def score(
    predictions: Predictive | Posterior,
    truth: Tensor | Data,
    *,
    bins: int = 15,
    samples: int | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Scores of predictions against the truth, lower is better but for accuracy and coverage.

    Classes: nll, brier (sum over classes), ece (`bins` of equal width), accuracy, and the mean entropy with its
    parts. Regression: nll, rmse, crps, coverage_90, and the mean variance with its parts. Given a posterior and data,
    inputs are predicted in chunks, so that memory does not grow with their number; `samples` and `seed` are those of
    `predict`.
    """
    if isinstance(predictions, Posterior):
        if not isinstance(truth, Data):
            raise TypeError(
                f"a posterior is scored on bn.Data, got {type(truth).__name__}: pass splits.test, or score a predictive"
            )
        return _summary(_streamed(predictions, truth, samples, seed), bins)
    if isinstance(truth, Data):
        truth = truth.targets
    _check_targets(predictions, truth)
    return _summary(_pieces(predictions, truth), bins)


def size_curve(
    predictive: Predictive,
    targets: Tensor,
    sizes: Sequence[int] | None = None,
    subsets: int = 30,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Scores against the number of members, from one pass of predictions.

    For each size, up to `subsets` different random subsets of the members are scored; a row has the mean (`nll`,
    ...), the standard deviation over subsets (`nll_sd`), and the mean score of the single members beside it
    (`nll_members`).
    """
    m = len(predictive)
    sizes = list(sizes) if sizes is not None else list(range(1, m + 1))
    if any(not 1 <= size <= m for size in sizes):
        raise ValueError(f"expected sizes among 1 ... {m}, the number of members, got {sizes}")
    if subsets < 1:
        raise ValueError(f"expected at least one subset, got {subsets}")
    _check_targets(predictive, targets)
    singles = [_brief(predictive[i], targets) for i in range(m)]
    alone = {name: math.fsum(row[name] for row in singles) / m for name in singles[0]}
    rows = []
    for size in sizes:
        chosen = _subsets(m, size, subsets, Noise.seed(seed).split(size))
        found = [singles[c[0]] if size == 1 else _brief(predictive[c], targets) for c in chosen]
        row: dict[str, float] = {"size": size, "subsets": len(chosen)}
        for name in alone:
            values = torch.tensor([f[name] for f in found], dtype=torch.float64)
            row |= {
                name: float(values.mean()),
                f"{name}_sd": float(values.std(correction=0)),
                f"{name}_members": alone[name],
            }
        rows.append(row)
    return rows


def _check_targets(predictive: Predictive, targets: Tensor) -> None:
    if not isinstance(targets, Tensor):
        raise TypeError(f"expected targets as a tensor, got {type(targets).__name__}")
    predictive.likelihood.check(predictive.outputs[0, 0], targets) if len(targets.unique()) > 1 else None
    if targets.shape[0] != predictive.outputs.shape[2]:
        raise ValueError(f"expected {predictive.outputs.shape[2]} targets, one a prediction, got {targets.shape[0]}")


def _pieces(predictive: Predictive, targets: Tensor) -> dict[str, Tensor]:
    """What the scores are computed from, one row an example (or an element of its event shape)."""
    targets = targets.to(predictive.outputs.device)
    parts = {"aleatoric": predictive.aleatoric, "between": predictive.between, "within": predictive.within}
    pieces = {"log_prob": predictive.log_prob(targets)} | {k: v.reshape(-1) for k, v in parts.items()}
    if isinstance(predictive, ClassPredictive):
        probs = predictive.probs
        return pieces | {"probs": probs.reshape(-1, probs.shape[-1]), "targets": targets.reshape(-1)}
    assert isinstance(predictive, RealPredictive)
    y = aligned(predictive.outputs[0, 0], targets)
    low, high = predictive.interval(LEVEL)
    return pieces | {
        "error": (predictive.mean - y).reshape(-1),
        "crps": _crps(predictive, y).reshape(-1),
        "covered": ((low <= y) & (y <= high)).reshape(-1),
    }


def _crps(predictive: RealPredictive, y: Tensor) -> Tensor:
    parts = predictive.components
    if not isinstance(parts, Normal):
        raise TypeError(f"CRPS is known for mixtures of normals, not of {type(parts).__name__}")
    mean, sd = parts.loc.flatten(0, 1), parts.scale.expand_as(parts.loc).flatten(0, 1)
    return metrics.crps_gaussian_mixture(mean, sd, y, predictive.mass.flatten())


def _summary(pieces: dict[str, Tensor], bins: int) -> dict[str, float]:
    scores: dict[str, Any] = {"n": len(pieces["log_prob"]), "nll": -pieces["log_prob"].mean()}
    if "probs" in pieces:
        probs, targets = pieces["probs"], pieces["targets"]
        scores |= {
            "brier": metrics.brier(probs, targets),
            "ece": metrics.ece(probs, targets, bins=bins),
            "accuracy": metrics.accuracy(probs, targets),
        }
        whole = "entropy"
    else:
        scores |= {
            "rmse": pieces["error"].square().mean().sqrt(),
            "crps": pieces["crps"].mean(),
            "coverage_90": pieces["covered"].double().mean(),
        }
        whole = "variance"
    parts = {k: pieces[k].mean() for k in ("aleatoric", "between", "within")}
    scores |= {whole: sum(parts.values()), "epistemic": parts["between"] + parts["within"], **parts}
    return {k: float(v) for k, v in scores.items()}


def _brief(predictive: Predictive, targets: Tensor) -> dict[str, float]:
    """The scores of a size curve: those that need neither entropies nor quantiles."""
    targets = targets.to(predictive.outputs.device)
    scores: dict[str, Any] = {"nll": -predictive.log_prob(targets).mean()}
    if isinstance(predictive, ClassPredictive):
        probs, y = predictive.probs.flatten(0, -2), targets.reshape(-1)
        scores |= {
            "brier": metrics.brier(probs, y),
            "ece": metrics.ece(probs, y),
            "accuracy": metrics.accuracy(probs, y),
        }
    else:
        assert isinstance(predictive, RealPredictive)
        y = aligned(predictive.outputs[0, 0], targets)
        scores |= {"rmse": metrics.rmse(predictive.mean, y), "crps": _crps(predictive, y).mean()}
    return {k: float(v) for k, v in scores.items()}


def _subsets(m: int, size: int, most: int, noise: Noise) -> list[list[int]]:
    """Different subsets of `size` out of m: all of them where they are few, else `most` at random."""
    if math.comb(m, size) <= most:
        return [list(c) for c in itertools.combinations(range(m), size)]
    found: dict[tuple[int, ...], None] = {}
    for attempt in itertools.count():
        found[tuple(sorted(noise.split(attempt).permutation(m)[:size].tolist()))] = None
        if len(found) == most:
            return [list(c) for c in found]
    raise AssertionError("unreachable")


def _streamed(posterior: Posterior, data: Data, samples: int | None, seed: int) -> dict[str, Tensor]:
    """The pieces of all examples, predicted chunk by chunk."""
    inputs = posterior._inputs(data.inputs)
    draws = posterior.draws(samples, seed)
    kept = [d.kept() for d in draws]
    probe = posterior[0].predict(tree_map(lambda x: x[:1], inputs), samples=1, seed=seed).outputs
    each = sum(len(d) * d.samples for d in draws) * probe.numel() * probe.element_size()
    step = max(1, min(data.n, BUDGET // (5 * each)))  # outputs, their softmax, logarithms and products live together
    rows = []
    for begin in range(0, leaves(inputs)[0].shape[0], step):
        part = tree_map(lambda x, b=begin: x[b : b + step], inputs)
        made = [(d, *forward(d, part, k)) for d, k in zip(draws, kept)]
        rows.append(_pieces(posterior.assemble(made), data.targets[begin : begin + step]))
    posterior.problem.likelihood.check(probe[0, 0], data.targets) if len(data.targets.unique()) > 1 else None
    return {name: torch.cat([r[name] for r in rows]) for name in rows[0]}
