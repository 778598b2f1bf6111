"""Scores: how good predictions are, of a predictive in memory or, chunk by chunk, of a posterior of any size."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from . import metrics
from .core.noise import Noise
from .core.tree import take, tree_map
from .data import Data, Piece, Stream, counted, some, weighed
from .metrics.binning import by_width
from .metrics.classification import Spacing
from .posterior import Posterior
from .predict import ClassPredictive, CountPredictive, LabelPredictive, NumberPredictive, Predictive, Via, crps
from .problem.likelihoods import ClassLikelihood, Likelihood

BUDGET = 512 * 2**20  # bytes that outputs and what is computed from them may take while streaming
BLOCK = 2**22  # probabilities that are put into bins at once
BINS = 15  # of confidence
LEVEL = 0.9  # of the interval whose coverage is reported


def score(
    predictions: Predictive | Posterior,
    truth: Tensor | Data | Stream,
    *,
    bins: int = BINS,
    samples: int | None = None,
    via: Via | None = None,
    seed: int = 0,
) -> dict[str, float]:
    """Scores of predictions against the truth; lower is better, except for accuracy and coverage.

    Classes: nll, brier (sum over classes), ece (`bins` of equal width), accuracy, adaptive_ece (bins of equal mass),
    classwise_ece, aurc (area under the risk of an error over coverage, by the probability of the top class), and the
    mean entropy with its parts. Labels: the same, each label as two classes, where calibration errors are means over
    labels of the error of each, accuracy the share of labels that are right, and nll that of all labels of an example
    together. Real numbers and counts: nll, rmse, crps, coverage_90 (of counts, whose intervals end at whole numbers,
    0.9 or more), width_90 (of the same intervals), mae (of the mean), quantile_error (mean distance of observed from
    nominal coverage of the quantiles; of counts by randomised PIT with `seed`), and the mean variance with its parts.

    Given a posterior and data, or a stream, of which one pass is scored, inputs are predicted in chunks, so that memory
    does not grow with their number; `samples`, `via` and `seed` are those of `predict`. Predictions without samples
    (via "probit" and "bridge") have only the entropy and its part between members.

    Examples and elements of weight zero in the data are left out; other weights do not matter here. Where data have
    rows of each member's own (`Data.held_out`, `Data.folds`), members are scored one by one on theirs, as they were
    before any `temper`, and all of these examples count alike.
    """
    if isinstance(predictions, Posterior):
        if not isinstance(truth, (Data, Stream)):
            raise TypeError(
                f"a posterior is scored on bn.Data, got {type(truth).__name__}: pass splits.test, or score a predictive"
            )
        pairs: list[tuple[Posterior, Data | Stream]] = [(predictions, truth)]
        if isinstance(truth, Data) and truth.rows is not None:
            alone = Posterior(predictions.parts)
            pairs = [(alone[i], truth.member(member.k)) for i, member in enumerate(alone.members)]
        chunks = (chunk for one, data in pairs for chunk in predicted(one, data, samples, via, seed))
        return summary_of([pieces_of(*chunk, bins) for chunk in chunks], bins, seed)
    if isinstance(truth, Stream):
        raise TypeError("a predictive in memory is scored on its targets: score a stream with the posterior itself")
    mask = counted(truth) if isinstance(truth, Data) else None
    targets = truth.targets if isinstance(truth, Data) else truth
    _check_targets(predictions, targets)
    return summary_of([pieces_of(predictions, targets, mask, bins)], bins, seed)


def size_curve(
    predictive: Predictive,
    targets: Tensor,
    sizes: Sequence[int] | None = None,
    subsets: int = 30,
    seed: int = 0,
) -> list[dict[str, float]]:
    """Scores against the number of members, from one pass of predictions.

    For each size, up to `subsets` different random subsets of the members are scored; a row has the mean (`nll`,
    ...), the standard deviation over subsets (`nll_sd`), and the mean score of single members
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
        chosen = subsets_of(m, size, subsets, seed)
        scores = [singles[c[0]] if size == 1 else _brief(predictive[c], targets) for c in chosen]
        row: dict[str, float] = {"size": size, "subsets": len(chosen)}
        for name in alone:
            values = torch.tensor([f[name] for f in scores], dtype=torch.float64)
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
    check_fit(predictive.likelihood, predictive.outputs[0, 0], targets)
    if targets.shape[0] != predictive.outputs.shape[2]:
        raise ValueError(f"expected {predictive.outputs.shape[2]} targets, one per prediction, got {targets.shape[0]}")


def check_fit(likelihood: Likelihood, outputs: Tensor, targets: Tensor) -> None:
    """Checks targets as the likelihood does, except that scores, unlike fits, may be of one class only."""
    if not isinstance(likelihood, ClassLikelihood) or len(targets.unique()) > 1:
        likelihood.check(outputs, targets)


def pieces_of(
    predictive: Predictive, targets: Tensor, mask: Tensor | None = None, bins: int = BINS
) -> dict[str, Tensor]:
    """What the scores are computed from: one row per example for log_prob, an element of the targets for the rest; and
    `residuals` (labels, bins, classes), summed over rows, in the place of all probabilities."""
    device = predictive.outputs.device
    targets = targets.to(device)
    here = torch.ones(targets.shape, dtype=torch.bool, device=device) if mask is None else mask.to(device)
    some = here.reshape(len(here), -1).any(1)  # examples of which something counts
    flat = here.reshape(-1)
    pieces = {"log_prob": predictive.log_prob(targets, mask)[some]}
    for name in predictive.parts:
        pieces[name] = getattr(predictive, name).reshape(-1)[flat]
    if isinstance(predictive, (ClassPredictive, LabelPredictive)):
        probs, label = (x[flat] for x in _rows(predictive))
        own, labels = targets.reshape(-1)[flat].long(), int(_rows(predictive)[1].max()) + 1
        best, top = probs.max(-1)
        return pieces | {
            "entropy": predictive.entropy.reshape(-1)[flat],
            "confidence": best,
            "right": torch.where(best.isnan(), best, (top == own).to(best.dtype)),
            "brier": probs.square().sum(-1) - 2 * probs.gather(-1, own[:, None])[:, 0] + 1,
            "label": label,
            "residuals": _residuals(probs, own, label, labels, bins),
        }
    assert isinstance(predictive, NumberPredictive)
    y = predictive.aligned(targets)
    low, high = predictive.interval(LEVEL)
    upto = predictive.cdf(y)
    elements = {
        "error": predictive.mean - y,
        "crps": crps(predictive, y),
        "covered": (low <= y) & (y <= high),
        "width": high - low,
        "below": predictive.cdf(y - 1) if isinstance(predictive, CountPredictive) else upto,  # F just below the target
        "upto": upto,
    } | ({} if predictive.parts else {"variance": predictive.variance})
    return pieces | {name: x.reshape(-1)[flat] for name, x in elements.items()}


def summary_of(parts: Sequence[dict[str, Tensor]], bins: int = BINS, seed: int = 0) -> dict[str, float]:
    """The scores, from the pieces of chunks."""
    pieces = {name: torch.cat([part[name] for part in parts]) for name in parts[0] if name != "residuals"}
    scores: dict[str, Any] = {"n": len(pieces["log_prob"]), "nll": -pieces["log_prob"].mean()}
    if "label" in pieces:
        residuals = torch.stack([part["residuals"] for part in parts]).sum(0)
        confidence, right, label = pieces["confidence"], pieces["right"], pieces["label"]
        counts = torch.bincount(label, minlength=len(residuals))  # rows of each label
        each = residuals.abs().sum(1).mean(-1) / counts.clamp(min=1)
        scores |= {
            "brier": pieces["brier"].mean(),
            "ece": _over_labels(confidence, right, label, bins, "width"),
            "accuracy": right.mean(),
            "adaptive_ece": _over_labels(confidence, right, label, bins, "mass"),
            "classwise_ece": each[counts > 0].mean(),
            "aurc": metrics.aurc(1 - confidence, 1 - right),
        }
        whole = "entropy"
    else:
        pit = metrics.randomized_pit(pieces["below"].double(), pieces["upto"].double(), seed)
        scores |= {
            "rmse": pieces["error"].square().mean().sqrt(),
            "crps": pieces["crps"].mean(),
            "coverage_90": pieces["covered"].double().mean(),
            "width_90": pieces["width"].mean(),
            "mae": pieces["error"].abs().mean(),
            "quantile_error": metrics.quantile_calibration_error(pit),
        }
        whole = "variance"
    split: dict[str, Tensor] = {k: pieces[k].mean() for k in ("aleatoric", "between", "within") if k in pieces}
    if "within" in split:
        scores |= {whole: sum(split.values()), "epistemic": split["between"] + split["within"]}
    else:
        scores |= {whole: pieces[whole].mean()}
    scores |= split
    return {k: float(v) for k, v in scores.items()}


def _rows(predictive: ClassPredictive | LabelPredictive) -> tuple[Tensor, Tensor]:
    """Class probabilities, one row per element of the targets, and the number of the label it is (0 for classes)."""
    p = predictive.probs
    if isinstance(predictive, ClassPredictive):
        rows = p.reshape(-1, p.shape[-1])
        return rows, torch.zeros(len(rows), dtype=torch.long, device=p.device)
    label = torch.arange(p.numel(), device=p.device) % (p.shape[-1] if p.dim() > 1 else 1)
    return torch.stack((1 - p, p), -1).reshape(-1, 2), label


def _residuals(probs: Tensor, targets: Tensor, label: Tensor, labels: int, bins: int) -> Tensor:
    """Sums of p(c) - 1[c = y] over the rows whose p(c) lies in a bin, (labels, bins, classes): what the classwise
    calibration error is made of."""
    classes = probs.shape[-1]
    sums = torch.zeros(labels * bins * classes, dtype=torch.float64, device=probs.device)
    step = max(1, BLOCK // classes)
    for p, y, k in zip(probs.split(step), targets.split(step), label.split(step)):
        gap = p.to(torch.float64, copy=True)
        gap[torch.arange(len(y), device=y.device), y] -= 1
        place = k[:, None] * bins + by_width(p, bins)  # (rows, classes)
        index = place * classes + torch.arange(classes, device=p.device)
        sums.scatter_add_(0, index.reshape(-1), gap.reshape(-1))
    return sums.reshape(labels, bins, classes)


def _over_labels(confidence: Tensor, right: Tensor, label: Tensor, bins: int, spacing: Spacing) -> Tensor:
    """The mean over labels of the calibration error."""
    each = [(confidence[label == k], right[label == k]) for k in label.unique()]
    return torch.stack([metrics.calibration_gap(metrics.in_bins(c, r, bins, spacing)) for c, r in each]).mean()


def _brief(predictive: Predictive, targets: Tensor) -> dict[str, float]:
    """The scores of a size curve: those that need neither entropies nor quantiles."""
    targets = targets.to(predictive.outputs.device)
    scores: dict[str, Any] = {"nll": -predictive.log_prob(targets).mean()}
    if isinstance(predictive, (ClassPredictive, LabelPredictive)):
        summary = summary_of([pieces_of(predictive, targets)])
        scores |= {name: summary[name] for name in ("brier", "ece", "accuracy")}
    else:
        assert isinstance(predictive, NumberPredictive)
        y = predictive.aligned(targets)
        scores |= {"rmse": metrics.rmse(predictive.mean, y.to(predictive.mean)), "crps": crps(predictive, y).mean()}
    return {k: float(v) for k, v in scores.items()}


def subsets_of(m: int, size: int, most: int, seed: int = 0) -> list[list[int]]:
    """Different subsets of `size` out of m: all of them where they are few, else `most` at random."""
    if math.comb(m, size) <= most:
        return [list(c) for c in itertools.combinations(range(m), size)]
    noise, chosen = Noise.seed(seed).split(size), dict[tuple[int, ...], None]()
    for attempt in itertools.count():
        chosen[tuple(sorted(noise.split(attempt).permutation(m)[:size].tolist()))] = None
        if len(chosen) == most:
            return [list(c) for c in chosen]
    raise AssertionError("unreachable")


def check_calibrating(posterior: Posterior, val: Data | Stream, rows: bool = False) -> None:
    """Refuses anything but a posterior and data to calibrate it on: with rows of each member's own only where `rows`
    says so."""
    if not isinstance(posterior, Posterior):
        raise TypeError(f"expected a posterior, got {type(posterior).__name__}")
    if not isinstance(val, (Data, Stream)):
        raise TypeError(f"expected val as bn.Data(inputs, targets), got {type(val).__name__}")
    if isinstance(val, Data) and val.rows is not None and not rows:
        raise ValueError(
            "expected validation examples that no member was trained on, got data with rows of each member's own: "
            "keep a part of the data for this"
        )


def predicted(
    posterior: Posterior, data: Data | Stream, samples: int | None, via: Via | None, seed: int
) -> Iterator[tuple[Predictive, Tensor, Tensor | None]]:
    """Predictions of all examples, chunk by chunk, each with its targets and the mask of those that count."""
    for predictive, piece in _chunks(posterior, data, samples, via, seed):
        yield predictive, piece.targets, counted(piece)


def predicted_with_weights(
    posterior: Posterior, val: Data | Stream, samples: int | None = None, via: Via | None = None, seed: int = 0
) -> Iterator[tuple[Predictive, Tensor, Tensor | None, Tensor | None]]:
    """The same where something is tuned: with the exponents of elements and the weights of examples (B,)."""
    for predictive, piece in _chunks(posterior, val, samples, via, seed):
        yield predictive, piece.targets, *weighed(piece)


def _chunks(
    posterior: Posterior, data: Data | Stream, samples: int | None, via: Via | None, seed: int
) -> Iterator[tuple[Predictive, Piece]]:
    predictors = posterior.predictors(samples, via, seed, keep=True)
    first = tree_map(lambda x: x[:1], some(data).inputs)
    probe = posterior[0].predict(first, samples=1, via=via, seed=seed).outputs
    each = sum(len(p) * p.draws.samples for p in predictors) * probe.numel() * probe.element_size()
    step = max(1, BUDGET // (5 * each))  # outputs, their softmax, logarithms and products live together
    place = 0  # of an input in the whole, which its noise depends on
    for part in data.once() if isinstance(data, Stream) else (data,):
        check_fit(posterior.problem.likelihood, probe[0, 0], part.targets)
        inputs, weights = posterior._inputs(part.inputs), part.weights
        for begin in range(0, len(part.targets), step):
            here = slice(begin, begin + step)
            outputs = [predictor(take(inputs, here), begin=place + begin) for predictor in predictors]
            own = None if weights is None else weights[here]
            yield posterior.assemble(outputs), Piece(take(part.inputs, here), part.targets[here], own)
        place += len(part.targets)
