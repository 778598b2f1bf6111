"""Conformal prediction: sets of classes and intervals that contain the truth with a stated probability.

Calibration examples are scored by how badly predictions fit their targets, and a prediction holds every target that
scores no more than the k-th smallest of the n scores, k = ceil((n + 1) level). Where calibration examples and new ones
are exchangeable, that is the truth with probability k / (n + 1), or more where scores tie: over both, and not for each
input. An example whose target has several elements scores as the worst of them, so that all are held together.

    split    |y - mean|, so the interval is mean -+ t
    scaled   |y - mean| / sd, so mean -+ t sd (Lei et al. 2018)
    cqr      how far y lies outside the predictive quantiles (1 -+ level) / 2 (Romano et al. 2019)
    lac      1 - p(y), so all classes above one probability (Sadinle et al. 2019, "least ambiguous" classifiers)
    aps      the probability of all classes more probable than y, and u of y's own, u uniform (Romano et al. 2020)
    raps     the same, and a penalty for each rank of y beyond `free` (Angelopoulos et al. 2021)
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from ..core.noise import Noise

Kind = Literal["split", "scaled", "cqr", "lac", "aps", "raps"]
OF_NUMBERS: tuple[Kind, ...] = ("scaled", "split", "cqr")
OF_CLASSES: tuple[Kind, ...] = ("lac", "aps", "raps")
TURNS = 8.0  # of the random number of an input, for a nat in its log-probabilities


class Conformal(NamedTuple):
    """How predictions become sets or intervals."""

    kind: Kind
    level: float  # the probability with which they contain the truth
    threshold: float  # the largest score of a target that they hold
    n: int  # the number of examples that were scored to find it
    free: int = 0  # raps: the ranks that cost nothing
    penalty: float = 0.0  # raps: what each further rank costs
    empty: bool = (
        False  # whether a set may be empty; else it has the most probable class, and contains the truth more often
    )
    seed: int = 0  # of u (aps, raps), which is a function of the seed and of the probabilities of an input


def needed(level: float) -> int:
    """The least number of examples that calibrates a level: level / (1 - level), rounded up."""
    exact = Fraction(str(level))
    return math.ceil(exact / (1 - exact))


def promised(n: int, n_test: int, level: float) -> tuple[float, float]:
    """Mean and standard deviation of the share of test examples that are held after one calibration on n examples:
    beta-binomial with parameters k and n + 1 - k."""
    mean = math.ceil(round((n + 1) * level, 9)) / (n + 1)
    return mean, math.sqrt(mean * (1 - mean) / (n + 2) * ((n + 1) / n_test + 1))


def calibrated(scores: Tensor, level: float) -> float:
    """The k-th smallest of n scores, k = ceil((n + 1) level) with the level as written: 0.9 is nine tenths."""
    n = len(scores)
    k = math.ceil((n + 1) * Fraction(str(level)))
    if k > n:
        raise ValueError(
            f"a level of {level} needs at least {needed(level)} calibration examples, got {n}: use more, or a lower "
            "level"
        )
    return float(scores.double().sort().values[k - 1])


def class_scores(probs: Tensor, rule: Conformal) -> Tensor:
    """The score that each class would have if it were the truth, (..., C)."""
    probs = probs.double()
    if rule.kind == "lac":
        return 1 - probs
    order = by_probability(probs)
    ranked = probs.gather(-1, order)
    beyond = (torch.arange(1, probs.shape[-1] + 1, device=probs.device) - rule.free).clamp_min(0)
    scores = ranked.cumsum(-1) - ranked + _chance(probs, rule.seed) * ranked + rule.penalty * beyond
    return torch.empty_like(scores).scatter(-1, order, scores)


def class_sets(probs: Tensor, rule: Conformal) -> Tensor:
    """The classes that score no more than the threshold, (..., C)."""
    held = class_scores(probs, rule) <= rule.threshold
    if rule.empty:
        return held
    return held.scatter(-1, by_probability(probs)[..., :1], True)


def by_probability(probs: Tensor) -> Tensor:
    """The classes from most to least probable, (..., C); of equally probable ones the first in number comes first."""
    return probs.argsort(dim=-1, descending=True, stable=True)


def _chance(probs: Tensor, seed: int) -> Tensor:
    """A uniform number for each input, (..., 1): a weighted sum of its log-probabilities, folded often into 0 ... 1.

    The sum is continuous: probabilities that another batch rounds otherwise have nearly the same number, and the same
    input has the same set, on its own or in a batch.
    """
    noise = Noise.seed(seed, probs.device).split("conformal")
    weights = 1 + noise.uniform(probs.new_empty(probs.shape[-1]))
    turns = TURNS * (probs.clamp(min=1e-30).log() * weights).sum(-1, keepdim=True)
    return (2 * (turns - turns.floor()) - 1).abs()
