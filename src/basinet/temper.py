"""Temperature scaling of any posterior over classes or labels: T is what minimises the validation NLL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from .core.golden import golden_section
from .data import Data, Stream, counted, pieces
from .posterior import Posterior
from .predict import Predictive, Temperature, tempered
from .predict.temperature import Of
from .problem.likelihoods import ClassLikelihood, LabelLikelihood

RANGE = (0.1, 10.0)  # of T, widened up to a thousandfold
ITERATIONS = 30  # of golden section: T to a relative 1e-6
EXAMPLES = 1000  # predicted at a time


def temper(
    posterior: Posterior, val: Data | Stream, of: Of = "members", *, samples: int | None = None, seed: int = 0
) -> Posterior:
    """The posterior with a temperature: it predicts, scores, slices, saves and loads as before.

    of="members" finds a T for each member by its own validation NLL and predicts with softmax(f / T); of="average"
    finds one T for the average p of all and predicts with p^(1/T), renormalised. `samples` and `seed` are those of
    `predict`: tune with what you deploy. `posterior.temperature` holds the values; those it had before are replaced.
    """
    if not isinstance(posterior, Posterior):
        raise TypeError(f"expected a posterior, got {type(posterior).__name__}")
    if not isinstance(val, (Data, Stream)):
        raise TypeError(f"expected val as bn.Data(inputs, targets), got {type(val).__name__}")
    if of not in ("members", "average"):
        raise ValueError(f"expected of='members' or of='average', got {of!r}")
    if not isinstance(posterior.problem.likelihood, (ClassLikelihood, LabelLikelihood)):
        raise TypeError(
            "temperature scaling is for classes and labels, and the likelihood is "
            f"{type(posterior.problem.likelihood).__name__}: a learned noise of the likelihood, or the covariance "
            "scale of a Gaussian family, widens predictions of numbers"
        )
    alone = Posterior(posterior.parts)
    whole = Posterior(posterior.parts, posterior.weights)
    groups = [alone[k] for k in range(len(alone))] if of == "members" else [whole]
    found = [_best(list(_predicted(one, val, of, samples, seed))) for one in groups]
    values = torch.tensor(found if of == "members" else found[0], dtype=torch.float64)
    return Posterior(whole.parts, whole.weights, Temperature(of, values))


class _Seen(NamedTuple):
    """What one member, or the average, said of some validation examples, and the truth."""

    predictive: Predictive
    targets: Tensor
    mask: Tensor | None


def _predicted(posterior: Posterior, val: Data | Stream, of: Of, samples: int | None, seed: int) -> Iterator[_Seen]:
    one = Temperature(of, torch.ones(1 if of == "members" else ()))
    for piece in pieces(val, EXAMPLES):
        made = tempered(posterior.predict(piece.inputs, samples, seed=seed), one)
        yield _Seen(replace(made, outputs=made.outputs.double()), piece.targets, counted(piece))


def _best(seen: list[_Seen]) -> float:
    def log_likelihood(t: float) -> float:
        at = Temperature("members", torch.tensor([t]))  # the average is one member by now
        return sum(float(tempered(s.predictive, at).log_prob(s.targets, s.mask).sum()) for s in seen)

    found = golden_section(log_likelihood, *RANGE, ITERATIONS)
    if found.edge is not None:
        n = sum(len(s.targets) for s in seen)
        why = "every example is classified right" if found.edge == "low" else "predictions are worse than none"
        raise ValueError(
            f"there is no best temperature: the NLL of the {n} validation examples still falls at "
            f"T = {found.best:.3g}, as where {why}. Give more validation data"
        )
    return found.best
