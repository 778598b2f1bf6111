"""Adaptive conformal thresholds: the bound that holds for any sequence."""

import math
from dataclasses import asdict

import numpy as np
import pytest

from basinet.filters import AdaptiveConformal


@pytest.mark.parametrize("kind", ["drifting", "adversarial", "constant"])
def test_the_share_held_is_as_stated_for_any_sequence(kind):
    largest, rate, steps = 2.0, 0.1, 2000
    random = np.random.default_rng(0)
    tracker = AdaptiveConformal(0.9, rate=rate, threshold=1.0)
    for t in range(steps):
        if kind == "adversarial":  # always just outside, as long as scores may be
            score = min(largest, tracker.threshold + 0.01) if t % 3 else 0.0
        else:
            score = 1.3 if kind == "constant" else largest * random.random() * t / steps
        tracker = tracker.after([max(0.0, score)])
    assert abs(tracker.coverage - 0.9) <= (largest + rate) / (rate * steps)
    assert AdaptiveConformal(**asdict(tracker)) == tracker


def test_scores_of_one_batch_are_judged_by_one_threshold():
    tracker = AdaptiveConformal(0.9, rate=0.5, threshold=1.0).after([0.5, 1.5, 2.0])
    assert (tracker.count, tracker.held) == (3, 1)
    assert tracker.threshold == pytest.approx(1.0 + 0.5 * (2 - 0.3))
    assert math.isnan(AdaptiveConformal().coverage)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: AdaptiveConformal(1.0), "expected a level"),
        (lambda: AdaptiveConformal(rate=0.0), "expected a positive"),
        (lambda: AdaptiveConformal().after([math.nan]), "got NaN"),
    ],
)
def test_what_means_nothing_is_refused(make, says):
    with pytest.raises(ValueError, match=says):
        make()
