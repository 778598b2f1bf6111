"""The alarm on scores: how often it is false, how late it is, and that its state is plain numbers."""

import json
import math
from dataclasses import asdict

import pytest
import torch

import basinet as bn
from basinet.filters import Alarm
from basinet.testing.exact import conjugate


def raised_at(scores, alarm):
    for step, score in enumerate(scores):
        alarm = alarm.after(float(score))
        if alarm.raised:
            return step
    return None


def test_false_alarms_are_rare_and_a_change_is_found_soon():
    """Errors are normal. Without a change the rate is about 0.015 of streams of 550 steps: more than 6 of 100 have a
    probability below 0.001. Errors three times as large are found within 20 steps in the median."""
    errors = torch.randn(200, 550, generator=torch.Generator().manual_seed(0)).square() / 2
    assert sum(raised_at(row, Alarm()) is not None for row in errors[:100]) <= 6
    delays = []
    for row in errors[100:, :350].clone():
        row[150:] *= 9
        at = raised_at(row, Alarm())
        assert at is not None
        delays.append(at - 150)
    assert sum(0 <= d <= 20 for d in delays) >= 80 and sum(d < 0 for d in delays) <= 6


def test_a_change_of_regime_is_found_in_a_filters_scores():
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(220, 3, dtype=torch.float64, generator=generator)
    weights = torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64)
    sign = torch.where(torch.arange(220) < 160, 1.0, -1.0)
    y = sign * (x @ weights) + 0.5 * torch.randn(220, dtype=torch.float64, generator=generator)
    posterior, scores = bn.online(bn.Kalman(), conjugate().problem).update((x[:20], y[:20])), []
    for i in range(20, 220, 2):
        batch = bn.Data(x[i : i + 2], y[i : i + 2])
        scores.append(bn.score(posterior, batch)["nll"])
        posterior = posterior.update(batch)
    at = raised_at(scores, Alarm())
    assert at is not None and 70 <= at <= 80  # the change is at score 70


def test_its_state_goes_through_json():
    alarm = Alarm(warmup=2).after(1.0).after(2.0).after(9.0)
    assert Alarm(**json.loads(json.dumps(asdict(alarm)))) == alarm
    assert alarm.mean == 1.5 and alarm.excess == pytest.approx(3.5)  # the largest, 4, less the allowance


def test_an_infinite_score_counts_as_the_largest_and_equal_scores_as_usual():
    alarm = Alarm(warmup=3)
    for _ in range(10):
        alarm = alarm.after(1.0)
    assert alarm.excess == 0 and alarm.after(math.inf).excess == 3.5
    with pytest.raises(ValueError, match="got NaN"):
        alarm.after(math.nan)
    with pytest.raises(ValueError, match="infinite"):
        Alarm().after(math.inf)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"warmup": 1}, "a warmup of at least 2 scores, got 1"),
        ({"threshold": 0.0}, r"a threshold above 0 .*got 0\.5, 0\.0 and 4\.0"),
        ({"allowance": -1.0}, r"an allowance of at least 0, .*got -1\.0, 20\.0 and 4\.0"),
        ({"largest": 0.1}, r"largest above the allowance, got 0\.5, 20\.0 and 0\.1"),
    ],
)
def test_what_means_nothing_is_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Alarm(**wrong)
