"""The target of a table, a column or several: how it becomes targets, and how predictions and scores return to it."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ..core.registry import Saved
from .columns import LARGEST, moments, standardised
from .values import Values, listed, missing, numbers, refuse, texts, typed

if TYPE_CHECKING:
    from ..predict import ClassPredictive, LabelPredictive, RealPredictive
    from .table import Table

_POWERS = {  # of the target's unit, in a score; the others have none
    **dict.fromkeys(("rmse", "mae", "crps", "width_90", "interval_width"), 1),
    **dict.fromkeys(("mse", "variance", "aleatoric", "epistemic", "between", "within"), 2),
}
SMALLEST = 1e-15  # standard deviation of a real target; the largest is its inverse


class Target(Saved, kind="target"):
    """The target column, or several of labels. `name` is that of the file."""

    what: ClassVar[Literal["classes", "labels", "real"]]
    name: str

    @property
    @abstractmethod
    def outputs(self) -> int:
        """How many outputs a network needs for it."""

    @property
    @abstractmethod
    def in_words(self) -> str:
        """What it is, in two words."""

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns of the file that it is."""
        return (self.name,)

    @abstractmethod
    def encode(self, values: Values, label: str) -> Tensor:
        """One column: (N,) class indices or labels, or (N, 1) standardised numbers. `label` says in errors whose values
        they are."""

    def read(self, table: Table) -> Tensor:
        """The targets of a table."""
        return self.encode(table.column(self.name), f"{table.name}: target {self.name!r}")

    @abstractmethod
    def predictions(self, predictive: Any, level: float) -> dict[str, Any]:
        """Columns, one row per input, in the target's own terms."""

    @abstractmethod
    def scores(self, scores: Mapping[str, float]) -> dict[str, float]:
        """What `bn.score` says of standardised targets, in the target's own units."""


@dataclass(frozen=True, kw_only=True)
class Classes(Target):
    """A target that is one of several names."""

    what: ClassVar[Literal["classes", "labels", "real"]] = "classes"

    name: str
    values: tuple[str, ...]  # class k is values[k]

    @property
    def outputs(self) -> int:
        return len(self.values)

    @property
    def in_words(self) -> str:
        return f"{len(self.values):,} classes"

    def encode(self, values: Values, label: str) -> Tensor:
        names = texts(values)
        refuse_missing_targets(values, label)
        place = {value: k for k, value in enumerate(self.values)}
        index = np.array([place.get(v, -1) for v in names], np.int64)  # type: ignore[arg-type]
        expected = f"expected classes that were there in training ({listed(self.values, 10)})"
        refuse(index < 0, np.array(names, object), label, expected)
        return torch.from_numpy(index)

    def predictions(self, predictive: ClassPredictive, level: float) -> dict[str, Any]:
        """The most probable class, entropy = aleatoric + epistemic in nats, and the probability of each class. A
        predictive without samples has neither of the two parts. One that is calibrated (`bn.conformal`) has
        conformal_set too, the names of the classes inside, with bars between them."""
        probs = predictive.probs.double().cpu().numpy()
        parts = {"entropy": predictive.entropy}
        if "within" in predictive.parts:
            parts |= {"aleatoric": predictive.aleatoric, "epistemic": predictive.epistemic}
        columns = {
            "class": [self.values[k] for k in probs.argmax(1)],
            **{name: x.double().cpu().numpy() for name, x in parts.items()},
            **{f"p_{value}": probs[:, k] for k, value in enumerate(self.values)},
        }
        if predictive.conformal is not None:
            inside = predictive.conformal_set.cpu().numpy()
            columns["conformal_set"] = ["|".join(v for v, here in zip(self.values, row) if here) for row in inside]
        return columns

    def scores(self, scores: Mapping[str, float]) -> dict[str, float]:
        return dict(scores)


@dataclass(frozen=True, kw_only=True)
class Labels(Target):
    """Several columns of labels, each of which is present (1, true) or not (0, false) in a row."""

    what: ClassVar[Literal["classes", "labels", "real"]] = "labels"

    name: str  # as it was asked for
    columns: tuple[str, ...]  # label k is columns[k]

    @property
    def outputs(self) -> int:
        return len(self.columns)

    @property
    def in_words(self) -> str:
        return f"{len(self.columns):,} label{'s' * (len(self.columns) > 1)}"

    @property
    def sources(self) -> tuple[str, ...]:
        return self.columns

    def encode(self, values: Values, label: str) -> Tensor:
        refuse_missing_targets(values, label)
        read = numbers(typed(values), label)
        refuse((read != 0) & (read != 1), values, label, "expected labels, 0 or 1 (or false and true)")
        return torch.from_numpy(read.astype(np.int64))

    def read(self, table: Table) -> Tensor:
        each = [self.encode(table.column(name), f"{table.name}: label {name!r}") for name in self.columns]
        return torch.stack(each, 1)

    def predictions(self, predictive: LabelPredictive, level: float) -> dict[str, Any]:
        """Entropy = aleatoric + epistemic in nats, summed over labels, and the probability of each label."""
        parts = {"entropy": predictive.entropy}
        if "within" in predictive.parts:
            parts |= {"aleatoric": predictive.aleatoric, "epistemic": predictive.epistemic}
        probs = predictive.probs.double().cpu().numpy()
        return {
            **{name: x.double().sum(1).cpu().numpy() for name, x in parts.items()},
            **{f"p_{name}": probs[:, k] for k, name in enumerate(self.columns)},
        }

    def scores(self, scores: Mapping[str, float]) -> dict[str, float]:
        return dict(scores)


@dataclass(frozen=True, kw_only=True)
class Real(Target):
    """A target that is a number. The network sees z = (y - mean) / sd.

    Back in units of y: means and quantiles q become mean + sd q, standard deviations and errors are multiplied by sd,
    variances by sd^2, and since p(y) = p(z) / sd, the negative log likelihood grows by log sd.
    """

    what: ClassVar[Literal["classes", "labels", "real"]] = "real"

    name: str
    mean: float  # of the training rows
    sd: float  # of the training rows, divisor N; 1 where they are all equal

    @staticmethod
    def fit(name: str, values: Values, label: str) -> Real:
        """From the training rows."""
        mean, sd = moments(numbers(values, label), label)
        if not (SMALLEST <= sd <= 1 / SMALLEST and abs(mean) < LARGEST):
            raise ValueError(
                f"{label}: expected a standard deviation from {SMALLEST:g} to {1 / SMALLEST:g}, whose square 32 bits "
                f"hold, and a mean below {LARGEST:g}, got {sd:.3g} and {mean:.3g}; use another unit, or its logarithm "
                "where a few values are far larger than the others"
            )
        return Real(name=name, mean=mean, sd=sd)

    @property
    def outputs(self) -> int:
        return 1

    @property
    def in_words(self) -> str:
        return "a number"

    @property
    def zero(self) -> float:
        """What the network sees of a target of 0."""
        return -self.mean / self.sd

    def encode(self, values: Values, label: str) -> Tensor:
        refuse_missing_targets(values, label)
        z = standardised(numbers(values, label), self.mean, self.sd, values, label)
        return torch.from_numpy(z).to(torch.get_default_dtype()).unsqueeze(-1)

    def predictions(self, predictive: RealPredictive, level: float) -> dict[str, Any]:
        """Mean, sd (its square is aleatoric + epistemic), and the central interval that holds `level`; of a predictive
        that is calibrated (`bn.conformal`) conformal_low and conformal_high too, at the level of its calibration."""
        low, high = (self.back(q) for q in predictive.interval(level))
        aleatoric, epistemic = (self.sd**2 * _column(x) for x in (predictive.aleatoric, predictive.epistemic))
        columns = {
            "mean": self.back(predictive.mean),
            "sd": np.sqrt(aleatoric + epistemic),
            "aleatoric": aleatoric,
            "epistemic": epistemic,
            "low": low,
            "high": high,
        }
        if predictive.conformal is None:
            return columns
        low, high = (self.back(q) for q in predictive.conformal_interval)
        return columns | {"conformal_low": low, "conformal_high": high}

    def scores(self, scores: Mapping[str, float]) -> dict[str, float]:
        return scores_in_units(scores, self.sd)

    def back(self, z: Tensor) -> np.ndarray:
        """(N,) standardised values in units of the target."""
        return self.mean + self.sd * _column(z)


def scores_in_units(scores: Mapping[str, float], sd: float) -> dict[str, float]:
    """Scores of targets that were divided by `sd`, in units of the target; the NLL by + log sd."""
    scaled = {name: value * sd ** _POWERS.get(name, 0) for name, value in scores.items()}
    return scaled | {"nll": scores["nll"] + math.log(sd)}


def refuse_missing_targets(values: Values, label: str) -> None:
    """A target is never filled in."""
    gone = missing(values)
    if gone.any():
        rows = f"{int(gone.sum()):,} missing, the first in row {int(gone.argmax()) + 1}"
        raise ValueError(f"{label}: expected a target in every row, got {rows}; take those rows out of the file")


def _column(x: Tensor) -> np.ndarray:
    return x.detach().double().cpu().reshape(len(x)).numpy()
