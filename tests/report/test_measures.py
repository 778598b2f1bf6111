"""What figures show, against torch's metrics of the library and closed forms."""

import math

import numpy as np
import pytest
import torch

from basinet import metrics
from basinet.report import measures


def test_paired_differences_are_those_of_the_metric():
    rng = np.random.default_rng(0)
    gaps = rng.normal(0.1, 1.0, (1, 300, 3))
    for j, difference in enumerate(measures.paired_differences(gaps)):
        oracle = metrics.bootstrap_difference(torch.tensor(gaps[0, :, j]), torch.zeros(300, dtype=torch.float64))
        assert difference.mean == pytest.approx(float(oracle.difference), abs=1e-12)
        # two sets of 2,000 resamples: a bound has standard error sqrt(p(1-p)/2000)/density = 0.06 of the mean's own
        tolerance = 5 * math.sqrt(2) * 0.06 * gaps[..., j].std() / math.sqrt(300)
        assert difference.low == pytest.approx(float(oracle.low), abs=tolerance)
        assert difference.high == pytest.approx(float(oracle.high), abs=tolerance)


@pytest.mark.parametrize("n", [400, measures.LARGE + 1])
def test_seeds_widen_the_interval_by_their_variance(n):
    rng = np.random.default_rng(1)
    shift = rng.normal(0, 0.3, 8)
    gaps = 0.2 + shift[:, None, None] + rng.normal(0, 1.0, (1, n, 1)) + np.zeros((8, n, 1))
    [difference] = measures.paired_differences(gaps)
    sd = math.sqrt(shift.var() / 8 + gaps[0].var() / n)
    # a normal is nearly right for 8 seeds; bounds have standard error 0.06 sd
    assert (difference.high - difference.low) / (2 * 1.96 * sd) == pytest.approx(1, abs=0.15)
    alone = measures.paired_differences(gaps[:1])[0]
    assert alone.high - alone.low < 0.8 * (difference.high - difference.low)


def test_an_interval_is_the_same_alone_and_among_others():
    gaps = np.random.default_rng(1).normal(size=(2, 50, 4))
    assert measures.paired_differences(gaps)[2] == pytest.approx(measures.paired_differences(gaps[..., 2:3])[0])


def test_many_examples_have_a_normal_interval():
    gaps = np.random.default_rng(2).normal(0.5, 2.0, (1, measures.LARGE + 1, 1))
    [difference] = measures.paired_differences(gaps)
    width = 2 * 1.96 * 2.0 / math.sqrt(measures.LARGE)
    assert difference.high - difference.low == pytest.approx(width, rel=0.02)  # sd to 1 %
    assert difference.real and difference.low < difference.mean < difference.high


def test_infinite_losses_have_no_interval_and_do_not_spoil_the_others():
    gaps = np.random.default_rng(3).normal(size=(1, 40, 2))
    alone = measures.paired_differences(gaps[..., :1])[0]
    gaps[0, 5, 1] = math.inf
    differences = measures.paired_differences(gaps)
    assert differences[0] == pytest.approx(alone)
    assert math.isnan(differences[1].low) and not differences[1].real


def test_reliability_has_the_ece_of_the_metric():
    rng = np.random.default_rng(4)
    probs = torch.softmax(torch.tensor(2 * rng.normal(size=(500, 4))), -1)
    targets = torch.tensor(rng.integers(0, 4, 500))
    confidence, top = probs.max(-1)
    curve = measures.reliability(confidence.numpy(), (top == targets).numpy())
    error = (np.abs(curve.accuracy - curve.confidence) * curve.size).sum() / curve.size.sum()
    assert error == pytest.approx(float(metrics.ece(probs, targets, 15)), abs=1e-12)
    assert curve.size.sum() == 500 and (np.abs(curve.middle - curve.confidence) <= curve.width / 2 + 1e-12).all()


def test_edges_of_bins_belong_to_the_bin_below():
    curve = measures.reliability(np.array([0.2, 0.6, 1.0, 0.0]), np.ones(4), bins=5)
    assert curve.middle.tolist() == pytest.approx([0.1, 0.5, 0.9])
    assert curve.size.tolist() == [2, 1, 1]


def test_risk_coverage_ends_at_the_error_rate_and_keeps_ties_together():
    rng = np.random.default_rng(5)
    doubt, wrong = rng.random(200), (rng.random(200) < 0.3).astype(float)
    coverage, risk = measures.risk_coverage(doubt, wrong)
    assert coverage[-1] == 1 and risk[-1] == pytest.approx(wrong.mean())
    half = np.flatnonzero(coverage == 0.5)[0]
    assert risk[half] == pytest.approx(wrong[np.argsort(doubt)[:100]].mean())
    _, flat = measures.risk_coverage(np.zeros(200), wrong)  # all tied: no order gains anything
    assert flat == pytest.approx(np.full(len(flat), wrong.mean()))


def test_interval_coverage_of_uniform_pits_is_the_level():
    pit = (np.arange(1000) + 0.5) / 1000
    levels = np.array([0.1, 0.5, 0.9])
    assert measures.interval_coverage(pit, levels) == pytest.approx(levels, abs=2e-3)
    assert measures.interval_coverage(np.full(10, 0.5), levels).tolist() == [1, 1, 1]


def test_the_front_has_what_nothing_beats():
    cost, loss = np.array([3.0, 1.0, 2.0, 2.0, 4.0]), np.array([1.0, 3.0, 2.0, 2.5, 1.0])
    assert measures.front(cost, loss) == [1, 2, 0]


def test_what_is_off_scale_is_far_above_the_others():
    def off(*values, bar=0.0):
        scores = np.array(values, dtype=float)
        return measures.off_scale(scores, scores - bar, scores + bar).tolist()

    assert off(1, 2, 3, 4, 204) == [False] * 4 + [True]  # the median and 100 times the range of 1, 2, 3 make 203
    assert not any(off(1, 2, 3, 4, 202))
    assert not any(off(1, 2, 3, 4, 204, bar=0.5))  # with their bars they range further
    assert not any(off(1, 1, 1, 900))  # no range to measure by
    assert not any(off(1, 2, 900))  # too few to call one the odd one


def test_wilson_is_the_score_interval():
    low, high = measures.wilson(0.9, 100)
    for bound in (low, high):  # where the observed share is 1.96 standard errors of the bound away
        assert abs(0.9 - bound) == pytest.approx(1.96 * math.sqrt(bound * (1 - bound) / 100))
    assert measures.wilson(1.0, 10)[1] == 1.0 and measures.wilson(0.0, 10)[0] == 0.0
