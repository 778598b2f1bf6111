"""Adaptive conformal intervals: a threshold that follows the scores of a stream, whatever the stream does.

    q <- q + rate (miss - (1 - level)),   miss = 1 where the score of the truth was above q, else 0

(Gibbs and Candes 2021, as quantile tracking: Angelopoulos et al. 2023). Of scores between 0 and B, taken one at a
time, the share that is held after T of them differs from the level by at most (B + rate) / (rate T): for any sequence,
without exchangeability. Only numbers are kept, so `dataclasses.asdict` is what a file needs to hold.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..core.documented import with_field_doc


@with_field_doc
@dataclass(frozen=True)
class AdaptiveConformal:
    """Watches the conformal scores of predictions that were made before targets came: `tracker =
    tracker.after(scores)`, and a prediction holds every target that scores at most `tracker.threshold`."""

    level: float = 0.9
    """The share of targets that intervals should contain."""
    rate: float = 0.05
    """How far a miss moves the threshold, in units of the scores."""
    threshold: float = 1.645
    """Where it begins: for scaled residuals, that of a normal distribution."""
    count: int = 0
    """Scores seen."""
    held: int = 0
    """How many of them were at most the threshold of their time."""

    def __post_init__(self) -> None:
        if not 0 < self.level < 1:
            raise ValueError(f"expected a level between 0 and 1, got {self.level}")
        if not 0 < self.rate < math.inf:
            raise ValueError(f"expected a positive, finite rate, got {self.rate}")

    def after(self, scores: Iterable[float]) -> AdaptiveConformal:
        """After some more scores of the truth, whose predictions were made at one threshold."""
        known = [float(s) for s in scores]
        if any(math.isnan(s) for s in known):
            raise ValueError("expected scores, got NaN: leave out rows that have none")
        held = sum(s <= self.threshold for s in known)
        step = self.rate * ((len(known) - held) - len(known) * (1 - self.level))
        return replace(self, threshold=self.threshold + step, count=self.count + len(known), held=self.held + held)

    @property
    def coverage(self) -> float:
        """The share held so far; NaN before any."""
        return self.held / self.count if self.count else math.nan
