"""Scores against the number of members, added up chunk by chunk: what an ensemble of each size would have scored.

For each size, different random subsets of the members are scored, each with equal weights. The probability of a
target under a subset is the mean of its members' probabilities, so that members are predicted once for all subsets.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from .. import metrics
from ..metrics.classification import calibration_gap, in_bins
from ..predict import ClassPredictive, LabelPredictive, NumberPredictive, Predictive
from ..scoring import BINS, subsets_of
from .units import Unit

SUBSETS = 30  # of each size at most
SIZES = 10  # different sizes at most, evenly from one member to all
EXAMPLES = 20_000  # test examples that the curve is of, at most
NUMBERS = 2**24  # probabilities of subsets that are held at once
WORK = 2e9  # sums of probabilities in all: with very many classes the curve is of fewer examples


class Sizes:
    """Adds up the scores of subsets of M members over chunks of n test examples, then of inputs from outside."""

    def __init__(self, members: int, n: int, unit: Unit, seed: int) -> None:
        count = min(members, SIZES)
        self.sizes = sorted({round(1 + i * (members - 1) / max(1, count - 1)) for i in range(count)})
        self.chosen = [subsets_of(members, size, SUBSETS, seed) for size in self.sizes] if members > 1 else []
        rows = [subset for chosen in self.chosen for subset in chosen]
        self.weights = torch.zeros(len(rows), members)  # (K subsets, M)
        for row, subset in zip(self.weights, rows):
            row[subset] = 1 / len(subset)
        self.unit = unit
        self.most, self.n = min(n, EXAMPLES), 0  # examples that the curve is of, and those that came
        self.chunks: dict[str, list[Tensor]] = {}  # (K, B) of each chunk
        self.labels = 1  # elements of a target that are classes of their own

    def add(self, predictive: Predictive, targets: Tensor) -> None:
        """A chunk of test examples."""
        if not self.chosen:
            return
        each = predictive.outputs[0, 0, 0].numel()
        left = min(self.most, max(100, int(WORK / (each * self.weights.numel())))) - self.n
        take = min(left, len(targets), max(1, NUMBERS // each))
        if take <= 0:
            return
        predictive, targets = _first(predictive, take), targets[:take].to(predictive.outputs.device)
        self.n += take
        inside = predictive.member_mass()[1].to(predictive.outputs.dtype)
        alone = torch.logsumexp(predictive.log_joint(targets) + inside.log()[..., None], 1)  # (M, B)
        log_prob = [torch.logsumexp(alone[c], 0) - math.log(len(c)) for chosen in self.chosen for c in chosen]
        self._put("log_prob", torch.stack(log_prob))
        if isinstance(predictive, (ClassPredictive, LabelPredictive)):
            self._outcomes(predictive, targets)
        else:
            assert isinstance(predictive, NumberPredictive)
            mean, variance = self._numbers(predictive)
            y = predictive.aligned(targets).reshape(take, -1)
            self._put("square", (mean - y).square().mean(-1))
            self._put("uncertainty", variance.mean(-1))

    def add_outside(self, predictive: Predictive) -> None:
        """A chunk of inputs that are out of distribution."""
        if not self.chosen:
            return
        predictive = _first(predictive, max(1, NUMBERS // predictive.outputs[0, 0, 0].numel()))
        if isinstance(predictive, (ClassPredictive, LabelPredictive)):
            parts = [_entropy(predictive, p) for p in self._probs(predictive)]
            self._put("outside", torch.cat(parts))
        else:
            assert isinstance(predictive, NumberPredictive)
            self._put("outside", self._numbers(predictive)[1].mean(-1))

    def rows(self) -> list[dict[str, float]]:
        """One a size: means over subsets, and the standard deviation of the NLL over them."""
        if not self.n:
            return []
        table = {name: torch.cat(parts, -1) for name, parts in self.chunks.items()}
        scores = self._scores(table)
        rows, begin = [], 0
        for size, chosen in zip(self.sizes, self.chosen):
            here = slice(begin, begin + len(chosen))
            begin += len(chosen)
            row: dict[str, float] = {"size": size, "subsets": len(chosen), "n": self.n}
            for name, values in scores.items():
                row[name] = float(values[here].mean())
                if name == "nll":
                    row["nll_sd"] = float(values[here].std(correction=0))
            rows.append({name: value for name, value in row.items() if math.isfinite(value)})
        return rows

    def _scores(self, table: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each score of each subset, (K,)."""
        scores = {"nll": -table["log_prob"].double().mean(-1) + math.log(self.unit.sd)}
        if "square" in table:
            scores["rmse"] = self.unit.power(table["square"].double().mean(-1).sqrt(), 1)
        else:
            confidence, right = (table[name].unflatten(-1, (-1, self.labels)) for name in ("confidence", "right"))
            each = [
                calibration_gap(in_bins(confidence[..., k].contiguous(), right[..., k].to(confidence), BINS))
                for k in range(self.labels)
            ]
            scores |= {
                "brier": table["brier"].double().mean(-1),
                "ece": torch.stack(each).mean(0).double(),
                "accuracy": table["right"].double().mean(-1),
                "auroc": torch.stack([_error_auroc(c, r) for c, r in zip(table["confidence"], table["right"])]),
            }
        if "outside" in table:
            scores["ood_auroc"] = metrics.auroc(table["uncertainty"], table["outside"])
        return scores

    def _outcomes(self, predictive: ClassPredictive | LabelPredictive, targets: Tensor) -> None:
        """Confidence, whether it is right, and the Brier score of each element of the targets; entropy per example."""
        parts: dict[str, list[Tensor]] = {"confidence": [], "right": [], "brier": [], "uncertainty": []}
        y = targets.reshape(len(targets), -1)  # (B, L)
        self.labels = y.shape[1]
        for p in self._probs(predictive):  # (k, B, ...)
            if isinstance(predictive, ClassPredictive):
                best, top = (x.reshape(*x.shape[:2], -1) for x in p.max(-1))
                own = p.gather(-1, targets.long().expand(p.shape[:-1]).unsqueeze(-1)).reshape(best.shape)
                square = p.square().sum(-1).reshape(best.shape) - 2 * own + 1
                right = top == y
            else:
                flat = p.reshape(*p.shape[:2], -1)
                best = torch.maximum(flat, 1 - flat)
                right = (flat > 0.5) == y.bool()
                square = 2 * (flat - y.to(flat)).square()
            parts["confidence"].append(best.flatten(1))
            parts["right"].append(right.flatten(1))
            parts["brier"].append(square.flatten(1))
            parts["uncertainty"].append(_entropy(predictive, p))
        for name, pieces in parts.items():
            self._put(name, torch.cat(pieces))

    def _probs(self, predictive: ClassPredictive | LabelPredictive) -> Iterator[Tensor]:
        """Probabilities of some subsets after others, (k, B, ...)."""
        members = predictive.member_probs
        weights = self.weights.to(members)
        step = max(1, NUMBERS // members[0].numel())
        for block in weights.split(step):
            yield torch.tensordot(block, members, 1)

    def _numbers(self, predictive: NumberPredictive) -> tuple[Tensor, Tensor]:
        """Mean and variance of each subset, (K, B, E)."""
        mean = predictive.member_mean.reshape(*predictive.outputs.shape[::2][:2], -1)  # (M, B, E)
        inside = predictive.member_mass()[1].to(mean)
        parts = predictive.components
        second = torch.einsum("ms,ms...->m...", inside, parts.variance + parts.mean.square()).reshape(mean.shape)
        weights = self.weights.to(mean)
        whole = torch.tensordot(weights, mean, 1)
        return whole, (torch.tensordot(weights, second, 1) - whole.square()).clamp(min=0)

    def _put(self, name: str, values: Tensor) -> None:
        self.chunks.setdefault(name, []).append(values.cpu())


def _first(predictive: Predictive, n: int) -> Predictive:
    """The predictive of the first inputs."""
    if n >= predictive.outputs.shape[2]:
        return predictive
    spread = {"covariance": c[:, :, :n]} if (c := getattr(predictive, "covariance", None)) is not None else {}
    return replace(predictive, outputs=predictive.outputs[:, :, :n], **spread)


def _entropy(predictive: ClassPredictive | LabelPredictive, probs: Tensor) -> Tensor:
    """(k, B), the mean over elements of the entropy of probabilities (k, B, ...)."""
    entropies = predictive.entropy_of(probs)
    return entropies.reshape(*entropies.shape[:2], -1).mean(-1)


def _error_auroc(confidence: Tensor, right: Tensor) -> Tensor:
    """How well doubt tells errors from the rest: the area under the ROC; NaN where all is right, or nothing."""
    doubt = 1 - confidence
    if bool(right.all()) or not bool(right.any()):
        return torch.tensor(math.nan, dtype=torch.float64)
    return metrics.auroc(doubt[right], doubt[~right])
