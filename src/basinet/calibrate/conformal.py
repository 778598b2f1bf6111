"""Sets and intervals with a guarantee: a posterior calibrated so that they contain the truth as often as stated."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from ..core.nearest import did_you_mean
from ..core.noise import Noise
from ..data import Data, Stream
from ..posterior import Posterior
from ..predict import ClassPredictive, NumberPredictive, Via
from ..problem.likelihoods import ClassLikelihood, NumberLikelihood
from ..scoring import check_calibrating, predicted
from .conformal_sets import (
    OF_CLASSES,
    OF_NUMBERS,
    Conformal,
    Kind,
    by_probability,
    calibrated,
    class_scores,
    class_sets,
    needed,
)

SHARE = 5  # every fifth example chooses the penalty of raps; the others calibrate
PENALTIES = (0.001, 0.01, 0.1, 0.2, 0.5)  # to choose among, as Angelopoulos et al. do


def conformal(
    posterior: Posterior,
    val: Data | Stream,
    kind: Kind | None = None,
    level: float = 0.9,
    *,
    penalty: tuple[int, float] | None = None,
    empty: bool = False,
    samples: int | None = None,
    via: Via | None = None,
    seed: int = 0,
) -> Posterior:
    """The posterior with a calibration: its predictions have `conformal_interval` (numbers: low and high) or
    `conformal_set` (classes: true for those inside), which contain the truth with probability `level`.

    The guarantee is for examples exchangeable with `val`, on average over them, and holds for any model; a better model
    has smaller sets. `val` must not have been used for training or tuning. `kind` is "scaled" (the default for numbers:
    the residual in predictive standard deviations), "split" (the residual) or "cqr" (the distance from predictive
    quantiles). For classes it is "lac" (the default: all classes above one probability, since no sets with the same
    coverage are smaller on average), "aps" (the most probable ones until they have enough together, randomised: larger
    sets, whose coverage of hard inputs is closer to that of easy ones) or "raps" (the same with a penalty on large
    sets). `penalty` is raps's (free ranks, cost of each further one); by default a fifth of `val` chooses it for the
    smallest sets, and the rest calibrates. Without `empty`, a set that would be empty has the most probable class, so
    that sets of a model that is right more often than `level` contain the truth more often.

    It is saved with the posterior; `posterior.conformal` has its values. A slice, a mixture, other weights or another
    temperature are other predictions and have none: calibrate last. `samples` and `via` are those of `predict`:
    calibrate with what you deploy. `seed` draws the random part of aps and raps.
    """
    check_calibrating(posterior, val)
    if not 0 < level < 1:
        raise ValueError(f"expected a level between 0 and 1, got {level}")
    kind = _kind(posterior, kind)
    plain = replace(posterior, conformal=None)
    if kind in OF_CLASSES:
        rule = Conformal(kind, float(level), math.inf, 0, *_checked(kind, penalty), empty, seed)
        probs, targets, mask = _predicted(plain, val, samples, via)
        if kind == "raps" and penalty is None:
            rule, rest = _penalised(probs, targets, mask, rule)
            probs, targets, mask = probs[rest], targets[rest], mask[rest]
        scores = _worst(_of_truth(class_scores(probs, rule), targets), mask)
    else:
        if penalty is not None or empty:
            raise ValueError(f"penalty= and empty= are for sets of classes, and kind is {kind!r}: leave them out")
        rule = Conformal(kind, float(level), math.inf, 0)
        scores = _of_numbers(plain, val, rule, samples, via)
    return replace(posterior, conformal=rule._replace(threshold=calibrated(scores, rule.level), n=len(scores)))


def kinds_of(posterior: Posterior) -> tuple[Kind, ...]:
    """The kinds of sets that a posterior can have, its default first; none for labels."""
    likelihood = posterior.problem.likelihood
    if isinstance(likelihood, ClassLikelihood):
        return OF_CLASSES
    return OF_NUMBERS if isinstance(likelihood, NumberLikelihood) else ()


def _kind(posterior: Posterior, kind: Kind | None) -> Kind:
    fitting, name = kinds_of(posterior), type(posterior.problem.likelihood).__name__
    if not fitting:
        raise TypeError(
            f"expected a likelihood of classes or numbers, which have conformal sets or intervals, got {name}: labels "
            "have none"
        )
    if kind is None:
        return fitting[0]
    if kind not in fitting:
        raise ValueError(f"expected a kind for the likelihood {name}, got {kind!r}.{did_you_mean(str(kind), fitting)}")
    return kind


def _checked(kind: Kind, penalty: tuple[int, float] | None) -> tuple[int, float]:
    """Free ranks and cost; none where none were given."""
    if penalty is None:
        return 0, 0.0
    if kind != "raps":
        raise ValueError(f"penalty= is for kind='raps', and kind is {kind!r}: leave it out")
    if len(penalty) != 2 or penalty[0] != int(penalty[0]) or penalty[0] < 0 or not 0 <= penalty[1] < math.inf:
        raise ValueError(f"expected penalty=(free ranks, cost of each further rank), none negative, got {penalty}")
    return int(penalty[0]), float(penalty[1])


def _of_numbers(
    posterior: Posterior, val: Data | Stream, rule: Conformal, samples: int | None, via: Via | None
) -> Tensor:
    parts = []
    for predictive, targets, mask in predicted(posterior, val, samples, via, seed=0):
        assert isinstance(predictive, NumberPredictive)
        scores = predictive.conformal_scores(targets, rule)
        parts.append(_worst(scores, torch.ones_like(scores, dtype=torch.bool) if mask is None else mask))
    return torch.cat(parts)


def _predicted(
    posterior: Posterior, val: Data | Stream, samples: int | None, via: Via | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities (n, ..., C), targets (n, ...), and which of them count."""
    rows = []
    for predictive, targets, mask in predicted(posterior, val, samples, via, seed=0):
        assert isinstance(predictive, ClassPredictive)
        probs = predictive.probs
        here = torch.ones_like(targets, dtype=torch.bool) if mask is None else mask
        rows.append((probs, targets.to(probs.device), here.to(probs.device)))
    probs, targets, mask = (torch.cat(parts) for parts in zip(*rows))
    return probs, targets, mask


def _of_truth(scores: Tensor, targets: Tensor) -> Tensor:
    return scores.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)


def _worst(scores: Tensor, mask: Tensor) -> Tensor:
    """The largest score of each example, of those of which something counts."""
    here = mask.to(scores.device).reshape(len(scores), -1)
    return torch.where(here, scores.reshape(len(scores), -1), -math.inf).amax(1)[here.any(1)]


def _penalised(probs: Tensor, targets: Tensor, mask: Tensor, rule: Conformal) -> tuple[Conformal, Tensor]:
    """The rule with the penalty that makes the smallest sets of some of the examples, and the numbers of the others.

    As many ranks are free as the truth needs at this level; of penalties that do equally well, the least.
    """
    n = len(probs)
    order = Noise.seed(rule.seed, probs.device).split("penalty").permutation(n)
    some, rest = order[: n // SHARE], order[n // SHARE :]
    if len(some) < needed(rule.level):
        raise ValueError(
            f"a level of {rule.level} with a penalty chosen by a fifth of val needs at least "
            f"{SHARE * needed(rule.level)} examples, got {n}: use more, or penalty=(free, cost)"
        )
    probs, targets, mask = probs[some], targets[some], mask[some]
    ranks = (by_probability(probs) == targets.unsqueeze(-1)).long().argmax(-1) + 1
    free = int(calibrated(_worst(ranks.double(), mask), rule.level))

    def size(cost: float) -> float:
        tried = rule._replace(free=free, penalty=cost)
        scores = _worst(_of_truth(class_scores(probs, tried), targets), mask)
        held = class_sets(probs, tried._replace(threshold=calibrated(scores, rule.level)))
        return float(held.sum(-1)[mask].double().mean())

    return rule._replace(free=free, penalty=min(PENALTIES, key=size)), rest
