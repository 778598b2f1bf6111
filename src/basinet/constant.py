"""What a prediction that never looks at its inputs would score: a network that does worse has learned nothing.

For classes it is their frequencies in training, for numbers a normal with the mean and variance of the targets.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from .data import Data
from .problem.likelihoods import Categorical, Gaussian, Heteroscedastic, Likelihood

LITTLE = 0.01  # nats per example: no more than that is as good as a constant


def nll_of_constant(likelihood: Likelihood, data: Any, val: Any) -> float | None:
    """The validation NLL per example of a constant; None where it is not known, as of other likelihoods and streams."""
    if not (isinstance(data, Data) and isinstance(val, Data)) or data.weights is not None or val.weights is not None:
        return None
    seen, new = data.targets, val.targets
    if type(likelihood) is Categorical and seen.dim() == new.dim() == 1 and int(min(seen.min(), new.min())) >= 0:
        counts = torch.bincount(seen, minlength=1 + int(max(seen.max(), new.max()))).double() + 1
        return float(-(counts / counts.sum()).log()[new.to(counts.device)].mean())
    if type(likelihood) in (Gaussian, Heteroscedastic):
        seen, new = (y.reshape(len(y), -1).double() for y in (seen, new))
        mean, variance = seen.mean(0), seen.var(0, correction=0).clamp(min=torch.finfo(torch.float32).tiny)
        squares = (new.to(mean) - mean).square() / variance + variance.log() + math.log(2 * math.pi)
        value = float(0.5 * squares.sum(1).mean())
        return value if math.isfinite(value) else None
    return None


def worse_than_constant(curves: Sequence[Mapping[str, Any]], constant: float | None) -> list[float]:
    """By how many nats per example the best validation NLL of each member is above that of a constant; 0 where it is
    hardly so, or where nothing is known of it."""
    best = [min((v for v in one.get("val_nll") or () if v is not None), default=math.nan) for one in curves]
    excess = [b - constant if constant is not None and b == b else 0.0 for b in best]
    return [x if x > LITTLE else 0.0 for x in excess]


def constant_line(excess: Sequence[float]) -> str:
    """The warning about members that are worse than a constant, by `excess` nats each."""
    count = sum(x > 0 for x in excess)
    who = f"{count} of {len(excess)} members predict{'s' if count == 1 else ''}"
    who = "the network predicts" if len(excess) == 1 else who
    return (
        f"{who} worse than a constant would: the validation NLL is up to {max(excess):.2g} nats per example above that "
        "of the targets' own mean and spread, or frequencies. Lower the learning rate, or check inputs and targets"
    )
