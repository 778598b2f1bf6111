"""An alarm on the scores of predictions that are made before targets come: has the stream changed?

    g_t = max(0, g_(t-1) + min((s_t - m) / d, largest) - allowance),   raised where g_t > threshold

s_t is the negative log score of step t, m and d its mean and standard deviation in the first `warmup` steps (Page 1954,
the cumulative sum test). Scores have long tails: one bad prediction counts no more than `largest`. With the defaults,
3 of 200 streams of normal errors (seed 0) raised it within 500 steps without a change; errors three times as large
raised it after 11 steps in the median, and after 19 in nine of ten.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from ..core.documented import with_field_doc


@with_field_doc
@dataclass(frozen=True)
class Alarm:
    """Watches a sequence of negative log scores: `alarm = alarm.after(score)`, then `alarm.raised`. All of its state is
    numbers, so that a file needs to hold only `dataclasses.asdict` of it. After an alarm, begin with a new one."""

    warmup: int = 50
    """The first scores, which say what is usual."""
    allowance: float = 0.5
    """How many standard deviations above the usual do not count."""
    threshold: float = 20.0
    """The excess, in standard deviations, at which the alarm is raised."""
    largest: float = 4.0
    """The most that one score adds to the excess."""
    count: int = 0
    """Scores seen."""
    mean: float = 0.0
    """The mean of the first scores."""
    squares: float = 0.0
    """The sum of their squared deviations."""
    excess: float = 0.0
    """g, the excess so far."""
    raised: bool = False
    """Whether the excess has been above the threshold."""

    def __post_init__(self) -> None:
        if self.warmup < 2:
            raise ValueError(f"expected a warmup of at least 2 scores, got {self.warmup}")
        if not (self.allowance >= 0 and self.threshold > 0 and self.largest > self.allowance):
            raise ValueError(
                f"expected an allowance of at least 0, a threshold above 0 and largest above the allowance, got "
                f"{self.allowance}, {self.threshold} and {self.largest}"
            )

    def after(self, score: float) -> Alarm:
        """The alarm after one more negative log score."""
        score = float(score)
        if math.isnan(score):
            raise ValueError("expected a score, got NaN: leave out steps that have none")
        count = self.count + 1
        if count <= self.warmup:
            if math.isinf(score):
                raise ValueError("expected finite scores in the warmup, got an infinite one")
            mean = self.mean + (score - self.mean) / count
            squares = self.squares + (score - self.mean) * (score - mean)
            return replace(self, count=count, mean=mean, squares=squares)
        usual = math.sqrt(self.squares / (self.warmup - 1)) or math.ulp(abs(self.mean) + 1.0)
        step = min((score - self.mean) / usual, self.largest) - self.allowance
        excess = max(0.0, self.excess + step)
        return replace(self, count=count, excess=excess, raised=self.raised or excess > self.threshold)
