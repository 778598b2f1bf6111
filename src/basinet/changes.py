"""When did the stream last change? Hypotheses on the run length, each with a posterior of its own.

    log w_r+1 = log w_r + log p(batch | posterior of run r) + log(1 - hazard)      the run goes on
    log w_0   = log sum_r w_r + log p(batch | prior) + log hazard                  it has just begun

(Adams and MacKay 2007). A run that begins starts at the prior: a reset. The `keep` most probable hypotheses stay, so
that time and memory do not grow. On a linear model with normal noise, and with as many hypotheses as batches, the
weights are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from .core.documented import with_field_doc
from .core.tree import leaves, move, take
from .data import Data, Piece
from .filters import Filter
from .online import read_batch, updated
from .posterior import Posterior


@with_field_doc
@dataclass(frozen=True, eq=False)
class RunLength:
    """A stream with sudden changes: `stream = RunLength(bn.online(bn.Kalman(), problem))`, then `stream =
    stream.update(batch)`, and `stream.posterior` predicts: the mixture of all hypotheses."""

    prior: Posterior
    """The posterior of one member before any data, from which a new run starts."""
    hazard: float = 0.01
    """Probability that a run ends before a batch."""
    keep: int = 10
    """How many hypotheses stay."""
    runs: tuple[Posterior, ...] = ()
    """One posterior for each hypothesis; none before the first batch."""
    log_weights: tuple[float, ...] = ()
    """The log probability of each hypothesis; the probabilities add up to one."""

    def __post_init__(self) -> None:
        if not isinstance(self.prior.recipe, Filter) or len(self.prior) != 1:
            raise ValueError("expected the posterior of one member of a filter, as bn.online(bn.Kalman(), problem)")
        if self.prior.info.get("online", {}).get("rows"):
            raise ValueError("expected a posterior before any data, to which a new run goes back")
        if not 0 < self.hazard < 1:
            raise ValueError(f"expected a hazard above 0 and below 1, got {self.hazard}")
        if self.keep < 1:
            raise ValueError(f"expected at least 1 hypothesis to keep, got {self.keep}")

    def update(self, batch: Any) -> RunLength:
        """After a batch, before which the stream may have changed."""
        data, _ = read_batch(batch)
        if data is None:
            runs = tuple(updated(run, batch) for run in self.runs)
            return replace(self, runs=runs)
        fresh = _evidence(self.prior, data)
        log_weights = [0.0] if not self.runs else [fresh + math.log(self.hazard)]
        for run, weight in zip(self.runs, self.log_weights):
            log_weights.append(weight + _evidence(run, data) + math.log1p(-self.hazard))
        total = _log_sum(log_weights)
        order = sorted(range(len(log_weights)), key=lambda i: -log_weights[i])[: self.keep]
        runs = tuple(updated((self.prior, *self.runs)[i], batch) for i in sorted(order))
        kept = [log_weights[i] - total for i in sorted(order)]
        left = _log_sum(kept)
        return replace(self, runs=runs, log_weights=tuple(w - left for w in kept))

    @property
    def posterior(self) -> Posterior:
        """The mixture of all hypotheses, by their probability; the prior before any data."""
        if not self.runs:
            return self.prior
        weights = torch.tensor([math.exp(w) for w in self.log_weights], dtype=torch.float64)
        return Posterior(tuple(run.parts[0] for run in self.runs), weights)

    @property
    def lengths(self) -> dict[int, float]:
        """The probability of each run length, in batches; 1 is that of the last batch only."""
        return {run.info["online"]["batches"]: math.exp(w) for run, w in zip(self.runs, self.log_weights)}

    def resumed(self, saved: Posterior) -> RunLength:
        """Resumes from the mixture that `posterior` was when it was saved."""
        if any(type(part.recipe) is not type(self.prior.recipe) for part in saved.parts):
            raise ValueError("expected a saved mixture of runs that the filter of the prior made")
        weights: Sequence[float] = [1.0] if saved.weights is None else saved.weights.tolist()
        runs = tuple(Posterior((part,)) for part in saved.parts)
        if len(runs) != len(weights):
            raise ValueError(f"expected a mixture of {len(weights)} runs of one member, got {len(runs)} parts")
        return replace(self, runs=runs, log_weights=tuple(math.log(max(w, 1e-300)) for w in weights))


def _evidence(posterior: Posterior, data: Data) -> float:
    part = posterior.parts[0]
    method, like = part.recipe, leaves(part.family)[0]
    assert isinstance(method, Filter)
    piece = Piece(*move((data.inputs, data.targets, data.weights), like.device, like.dtype))
    return method.log_evidence(take(part.family, 0), part.adapted(), piece)


def _log_sum(values: Sequence[float]) -> float:
    largest = max(values)
    return largest + math.log(sum(math.exp(v - largest) for v in values))
