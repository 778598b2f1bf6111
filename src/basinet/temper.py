"""Temperature and vector scaling of any posterior over classes or labels, by the validation NLL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .core.golden import golden_section
from .data import Data, Stream
from .posterior import Posterior
from .predict import ClassPredictive, Predictive, Temperature, tempered
from .predict import log_likelihood as log_of
from .predict.temperature import LEAST, Of, averaged
from .problem.likelihoods import ClassLikelihood, LabelLikelihood
from .scoring import check_calibrating, predicted_with_weights

RANGE = (0.1, 10.0)  # of T, widened up to a thousandfold
ITERATIONS = 30  # of golden section: T to a relative 1e-6
SPREAD = 0.2  # of the prior on factors and shifts of classes around the temperature; 1 over-fits 360 examples of digits
NEWTON = 100  # steps at most; some ten are enough


def temper(
    posterior: Posterior, val: Data | Stream, of: Of = "members", *, samples: int | None = None, seed: int = 0
) -> Posterior:
    """The posterior with a temperature: it predicts, scores, slices, saves and loads as before.

    of="members" finds a T for each member by its own validation NLL and predicts with softmax(f / T); of="average"
    finds one T for the average p of all and predicts with p^(1/T), renormalised. of="classes" is vector scaling: a
    factor a_c and a shift b_c for each class, and softmax(a log p + b) of the average. Few validation examples do not
    determine so many numbers, so a normal prior of standard deviation 0.2 keeps them near a = 1/T, b = 0; on the data
    that it is tuned on it is never worse than T. `samples` and `seed` are those of `predict`: tune with what you
    deploy. `posterior.temperature` holds the values; those it had before are replaced. Weights of the validation data
    multiply their log likelihood.
    """
    check_calibrating(posterior, val)
    if of not in ("members", "average", "classes"):
        raise ValueError(f"expected of='members', of='average' or of='classes', got {of!r}")
    if not isinstance(posterior.problem.likelihood, (ClassLikelihood, LabelLikelihood)):
        raise TypeError(
            "temperature scaling is for classes and labels, and the likelihood is "
            f"{type(posterior.problem.likelihood).__name__}: a learned noise of the likelihood, or the covariance "
            "scale of a Gaussian family, widens predictions of numbers"
        )
    if of == "classes" and not isinstance(posterior.problem.likelihood, ClassLikelihood):
        raise TypeError("vector scaling is for classes, and the likelihood is of labels: of='members' or of='average'")
    alone = Posterior(posterior.parts)
    whole = Posterior(posterior.parts, posterior.weights)
    groups = [alone[k] for k in range(len(alone))] if of == "members" else [whole]
    seen = [list(_predicted(one, val, of, samples, seed)) for one in groups]
    found = [_best(one) for one in seen]
    values = torch.tensor(found if of == "members" else found[0], dtype=torch.float64)
    if of == "classes":
        values = _vector(seen[0], 1 / found[0])
    return Posterior(whole.parts, whole.weights, Temperature(of, values))


class _Seen(NamedTuple):
    """What one member, or the average, said of some validation examples, and the truth."""

    predictive: Predictive
    targets: Tensor
    exponents: Tensor | None  # of the densities of elements
    weights: Tensor | None  # of examples, (B,)


def _predicted(posterior: Posterior, val: Data | Stream, of: Of, samples: int | None, seed: int) -> Iterator[_Seen]:
    one = Temperature("members", torch.ones(1)) if of == "members" else Temperature("average", torch.ones(()))
    for predictive, targets, exponents, weights in predicted_with_weights(posterior, val, samples, None, seed):
        made = tempered(predictive, one)
        yield _Seen(replace(made, outputs=made.outputs.double()), targets, exponents, weights)


def _best(seen: list[_Seen]) -> float:
    def log_likelihood(t: float) -> float:
        at = Temperature("members", torch.tensor([t]))  # the average is one member by now
        return sum(log_of(tempered(s.predictive, at), s.targets, s.exponents, s.weights) for s in seen)

    found = golden_section(log_likelihood, *RANGE, ITERATIONS)
    if found.edge is not None:
        n = sum(len(s.targets) for s in seen)
        why = "every example is classified right" if found.edge == "low" else "predictions are worse than none"
        raise ValueError(
            f"there is no best temperature: the NLL of the {n} validation examples still falls at "
            f"T = {found.best:.3g}, as where {why}. Give more validation data"
        )
    return found.best


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
