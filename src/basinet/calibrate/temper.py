"""Recalibration of any posterior by validation data: temperature and vector scaling of classes and labels, a factor on
the spread of real numbers, or their quantiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.golden import golden_section
from ..data import Data, Stream
from ..engine.progress import Progress
from ..posterior import Posterior
from ..predict import ClassPredictive, Predictive, RealPredictive
from ..predict import log_likelihood as log_of
from ..predict.average import averaged
from ..problem.likelihoods import ClassLikelihood, LabelLikelihood, Likelihood, RealLikelihood
from ..scoring import check_calibrating, predicted_with_weights
from .own_rows import mixture_factor
from .temperature import LEAST, Of, Temperature, tempered

RANGE = (0.1, 10.0)  # of T, widened up to a thousandfold
ITERATIONS = 30  # of golden section: T to a relative 1e-6
SPREAD = 0.2  # of the prior on factors and shifts of classes around the temperature; 1 over-fits 360 examples of digits
NEWTON = 100  # steps at most; some ten are enough
STRETCHES = 20  # of the distribution function, at most, whose shares recalibrate quantiles
EACH = 20  # validation targets in a stretch, at least on average: their share is known to about a fifth


def temper(
    posterior: Posterior, val: Data | Stream, of: Of | None = None, *, samples: int | None = None, seed: int = 0
) -> Posterior:
    """The posterior with a temperature: it predicts, scores, slices, saves and loads as before.

    Classes and labels: of="members" (the default) finds a T for each member by its own validation NLL and predicts with
    softmax(f / T); of="average" finds one T for the average p of all and predicts with p^(1/T), renormalised.
    of="classes" is vector scaling: a factor a_c and a shift b_c for each class, and softmax(a log p + b) of the
    average. A few validation examples do not determine that many numbers, so a normal prior of standard deviation 0.2
    keeps them near a = 1/T, b = 0; on the data that it is tuned on it is never worse than T.

    Real numbers: T is a factor on the spread, by which every deviation from the mean is multiplied; means stay.
    of="average" (the default: members that are calibrated one by one make a mixture that is too wide) finds one T for
    the mixture and keeps its parts in proportion; of="members" finds one for each member around its own mean.
    of="quantiles" recalibrates the distribution function itself, where the shape is wrong and not only the width: on
    up to 20 stretches of equal probability it gets the share of validation targets that fell there (one example is
    added to each stretch). It is for one number per input, and leaves no parts of the variance.

    Where validation data have rows of each member's own (`Data.held_out`), members are judged on theirs, and the spread
    of the mixture of real numbers follows from how far two members differ where neither was trained
    (`calibrate/own_rows.py`). The average of classes and quantiles cannot be judged there.

    `samples` and `seed` are those of `predict`: tune with what you deploy. `posterior.temperature` holds the values;
    those it had before are replaced. Weights of the validation data multiply their log likelihood. Where the NLL falls
    without end as T does, every example being right, T is 1; where it falls as T grows, as around a network that was
    not trained, T is where the search ends. Both are warned of.
    """
    check_calibrating(posterior, val, rows=True)
    of = _checked(posterior.problem.likelihood, of)
    if isinstance(val, Data) and val.rows is not None:
        values = _on_own_rows(posterior, val, of, samples, seed)
        return Posterior(posterior.parts, posterior.weights, Temperature(of, values))
    alone = Posterior(posterior.parts)
    whole = Posterior(posterior.parts, posterior.weights)
    if of == "quantiles":
        return Posterior(whole.parts, whole.weights, Temperature(of, _shares(whole, val, samples, seed)))
    groups = [alone[k] for k in range(len(alone))] if of == "members" else [whole]
    seen = [list(_predicted(one, val, of, samples, seed)) for one in groups]
    factors = [_best(one) for one in seen]
    values = torch.tensor(factors if of == "members" else factors[0], dtype=torch.float64)
    if of == "classes":
        values = _vector(seen[0], 1 / factors[0])
    return Posterior(whole.parts, whole.weights, Temperature(of, values))


def _on_own_rows(posterior: Posterior, val: Data, of: Of, samples: int | None, seed: int) -> Tensor:
    """The values where each member was validated on rows of its own."""
    numbers = isinstance(posterior.problem.likelihood, RealLikelihood)
    if of in ("classes", "quantiles") or (of == "average" and not numbers):
        raise ValueError(
            f"of={of!r} needs validation examples that no member was trained on, and these have rows of each member's "
            "own: give data without rows, or of='members'"
        )
    alone = Posterior(posterior.parts)
    each = [alone[k] for k in range(len(alone))]
    own = [val.member(member.k) for member in posterior.members]
    seen = [list(_predicted(one, part, "members", samples, seed)) for one, part in zip(each, own)]
    if of == "members":
        return torch.tensor([_best(one) for one in seen], dtype=torch.float64)
    spread = _best([piece for one in seen for piece in one])
    rows = val.rows[[member.k for member in posterior.members]]  # type: ignore[index]
    pieces = [[piece.predictive for piece in one] for one in seen]
    factor = mixture_factor(pieces, rows.cpu(), posterior.weights, spread)
    return torch.tensor(spread * factor, dtype=torch.float64)


def ways_of(likelihood: Likelihood) -> tuple[Of, ...]:
    """What can be recalibrated under a likelihood, the default first; nothing of counts."""
    if isinstance(likelihood, ClassLikelihood):
        return "members", "average", "classes"
    if isinstance(likelihood, LabelLikelihood):
        return "members", "average"
    return ("average", "members", "quantiles") if isinstance(likelihood, RealLikelihood) else ()


def _checked(likelihood: Likelihood, of: Of | None) -> Of:
    """What is recalibrated, where the likelihood allows it."""
    name, fitting = type(likelihood).__name__, ways_of(likelihood)
    if not fitting:
        raise TypeError(
            f"temperatures are for classes, labels and real numbers, and the likelihood is {name}: bn.conformal "
            "calibrates intervals of counts"
        )
    if of is None:
        return fitting[0]
    if of not in fitting:
        raise ValueError(f"expected {' or '.join(f'of={way!r}' for way in fitting)} under {name}, got of={of!r}")
    return of


class _Seen(NamedTuple):
    """What one member, or the average, said of some validation examples, and the truth."""

    predictive: Predictive
    targets: Tensor
    exponents: Tensor | None  # of the densities of elements
    weights: Tensor | None  # of examples, (B,)


def _predicted(posterior: Posterior, val: Data | Stream, of: Of, samples: int | None, seed: int) -> Iterator[_Seen]:
    one = Temperature("members", torch.ones(1)) if of == "members" else Temperature("average", torch.ones(()))
    for predictive, targets, exponents, weights in predicted_with_weights(posterior, val, samples, None, seed):
        scaled = tempered(predictive, one)
        there = scaled.outputs.device
        yield _Seen(replace(scaled, outputs=scaled.outputs.double()), targets.to(there), exponents, weights)


def _best(seen: list[_Seen]) -> float:
    numbers = isinstance(seen[0].predictive, RealPredictive)

    def log_likelihood(t: float) -> float:
        # the average of classes is one member by now, and one member of numbers is its own average
        at = Temperature("average", torch.tensor(t)) if numbers else Temperature("members", torch.tensor([t]))
        return sum(log_of(tempered(s.predictive, at), s.targets, s.exponents, s.weights) for s in seen)

    search = golden_section(log_likelihood, *RANGE, ITERATIONS)
    if search.edge is None:
        return search.best
    n = sum(len(s.targets) for s in seen)
    falls = f"no best temperature: the NLL of the {n} validation examples still falls at T = {search.best:.3g}"
    if search.edge == "low":  # T = 0 would be sure of everything
        why = "every target is hit" if numbers else "every example is classified correctly"
        Progress("", 0).warn(
            f"{falls}, as it does when {why}. Predictions stay as they were, T = 1: use more validation data"
        )
        return 1.0
    why = "the spread is tiny compared with the errors" if numbers else "predictions are worse than equal probabilities"
    Progress("", 0).warn(f"{falls}, as it does when {why}. It is used, but check the network first: was it trained?")
    return search.best


def _shares(posterior: Posterior, val: Data | Stream, samples: int | None, seed: int) -> Tensor:
    """The share of validation targets in each of some stretches of the distribution function, of equal length."""
    levels, counts = [], []
    for predictive, targets, _, weights in predicted_with_weights(posterior, val, samples, None, seed):
        assert isinstance(predictive, RealPredictive)
        tempered(predictive, Temperature("quantiles", torch.ones(1)))  # says where there are several numbers per input
        levels.append(predictive.cdf(targets).flatten().cpu())
        counts.append(torch.ones(len(targets)).double() if weights is None else weights.double().cpu())
    pit, weight = torch.cat(levels), torch.cat(counts)
    n = int((weight > 0).sum())
    if n < 2 * EACH:
        raise ValueError(f"of='quantiles' needs at least {2 * EACH} validation examples, got {n}: use of='average'")
    k = min(STRETCHES, n // EACH)
    held = torch.bincount((pit * k).long().clamp(max=k - 1), weight, minlength=k)
    return (held + 1) / (weight.sum() + k)


def _vector(seen: list[_Seen], start: float) -> Tensor:
    """Factors and shifts (2, C) of the average's log-probabilities, by Newton's method: the problem is convex."""
    rows = []
    for predictive, targets, exponents, weights in seen:
        assert isinstance(predictive, ClassPredictive)
        logs = averaged(predictive).clamp(min=LEAST)
        each = torch.ones(targets.shape).to(logs) if exponents is None else exponents.to(logs)
        if weights is not None:
            each = each * weights.to(logs).reshape(-1, *[1] * (each.dim() - 1))
        rows.append((logs.reshape(-1, logs.shape[-1]), targets.to(logs.device).reshape(-1).long(), each.reshape(-1)))
    x, y, w = (torch.cat(parts) for parts in zip(*rows))
    x, y, w = x[w > 0], y[w > 0], w[w > 0, None]
    c = x.shape[-1]
    truth = torch.nn.functional.one_hot(y, c).to(x)
    centre = torch.cat((x.new_full((c,), start), x.new_zeros(c)))

    def objective(v: Tensor) -> Tensor:
        logs = (v[:c] * x + v[c:]).log_softmax(-1)
        return -(w * logs * truth).sum() + (v - centre).square().sum() / (2 * SPREAD**2)

    values, now = centre, objective(centre)
    for _ in range(NEWTON):
        p = (values[:c] * x + values[c:]).softmax(-1)
        off = w * (p - truth)
        gradient = torch.cat(((off * x).sum(0), off.sum(0))) + (values - centre) / SPREAD**2
        both = w.sqrt() * torch.cat((p * x, p), 1)  # (n, 2 C)
        aa, ab, bb = ((w * p * x**k).sum(0).diag() for k in (2, 1, 0))
        hessian = torch.cat((torch.cat((aa, ab), 1), torch.cat((ab, bb), 1))) - both.T @ both
        step = torch.linalg.solve(hessian + torch.eye(2 * c).to(x) / SPREAD**2, gradient)
        length, new = 1.0, objective(values - step)
        while new > now and length > 1e-6:
            length /= 2
            new = objective(values - length * step)
        if not new < now:
            break
        values, now = values - length * step, new
    return values.reshape(2, c).cpu()
