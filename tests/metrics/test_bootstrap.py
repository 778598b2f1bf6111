"""Paired bootstrap: all resamples of a small set, scipy, pairing, seeds, pieces, stacks, coverage of the truth."""

import math
from itertools import product

import numpy as np
import pytest
import torch
from scipy.stats import bootstrap as scipy_bootstrap
from scipy.stats import t

from basinet.metrics import Interval, bootstrap, bootstrap_difference


def pairs(*lead, n=80, seed=0, dtype=torch.float64):
    """Scores of two methods that share which examples are hard; the first is worse by 0.1."""
    g = torch.Generator().manual_seed(seed)
    hard = 2 * torch.randn(n, generator=g, dtype=torch.float64)
    first, second = (hard + 0.3 * torch.randn(*lead, n, generator=g, dtype=torch.float64) for _ in range(2))
    return (first + 0.1).to(dtype), second.to(dtype)


def test_difference_and_n():
    first, second = pairs()
    interval = bootstrap_difference(first, second)
    assert isinstance(interval, Interval) and interval.n == 80
    torch.testing.assert_close(interval.difference, (first - second).mean())
    assert interval.low < interval.difference < interval.high


def test_bounds_are_those_of_all_resamples_of_a_small_set():
    gap = torch.tensor([0.0, 1.0, 5.0, 20.0]).double()
    means = np.array([np.mean(chosen) for chosen in product(gap.tolist(), repeat=4)])  # all 4⁴ are equally likely
    interval = bootstrap_difference(gap, torch.zeros(4).double(), level=0.8, resamples=40_000, seed=1)
    # a bound lies at a mean whose distribution function spans the level, up to 5 standard errors
    slack = 5 * math.sqrt(0.1 * 0.9 / 40_000)
    for bound, level in ((interval.low.item(), 0.1), (interval.high.item(), 0.9)):
        assert np.mean(means < bound - 1e-9) <= level + slack
        assert np.mean(means <= bound + 1e-9) >= level - slack


def test_against_scipy():
    first, second = pairs(n=60)
    gap = (first - second).numpy()
    oracle = scipy_bootstrap((gap,), np.mean, n_resamples=20_000, method="percentile", rng=0).confidence_interval
    interval = bootstrap_difference(first, second, resamples=20_000)
    slack = 6 * gap.std() / math.sqrt(60) * 2.66 / math.sqrt(20_000)  # √(q(1 − q)) / φ(z) = 2.66 at the 2.5 % quantile
    assert interval.low.item() == pytest.approx(oracle.low, abs=slack)
    assert interval.high.item() == pytest.approx(oracle.high, abs=slack)


def test_width_is_that_of_the_normal_limit_and_grows_with_the_level():
    gap = torch.randn(4000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    intervals = {level: bootstrap_difference(gap, torch.zeros_like(gap), level) for level in (0.5, 0.95)}
    width = {level: (i.high - i.low).item() for level, i in intervals.items()}
    error = gap.std().item() / math.sqrt(4000)
    assert width[0.95] == pytest.approx(2 * 1.96 * error, rel=0.08)
    assert width[0.5] == pytest.approx(2 * 0.6745 * error, rel=0.08)


def test_pairing_sees_a_difference_that_unpaired_scores_would_hide():
    first, second = pairs(n=400)
    paired = bootstrap_difference(first, second)
    mixed = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    unpaired = bootstrap_difference(first, second[mixed])
    torch.testing.assert_close(paired.difference, unpaired.difference)
    assert paired.low > 0 > unpaired.low
    assert unpaired.high - unpaired.low > 3 * (paired.high - paired.low)


def test_swapping_the_two_turns_the_interval_round():
    first, second = pairs()
    one, other = bootstrap_difference(first, second), bootstrap_difference(second, first)
    torch.testing.assert_close(torch.stack((one.low, one.high)), -torch.stack((other.high, other.low)))


def test_seeds_and_generators():
    first, second = pairs()
    one = bootstrap_difference(first, second, seed=4)
    assert one == bootstrap_difference(first, second, seed=4)
    assert one == bootstrap_difference(first, second, seed=torch.Generator().manual_seed(4))
    assert one.low != bootstrap_difference(first, second, seed=5).low
    before = torch.random.get_rng_state()
    bootstrap_difference(first, second)
    assert torch.equal(before, torch.random.get_rng_state())


@pytest.mark.parametrize("numbers", [1, 80 * 7, 10**9])
def test_pieces_of_the_work_make_no_difference(numbers, monkeypatch):
    first, second = pairs()
    whole = bootstrap_difference(first, second, resamples=100)
    monkeypatch.setattr(bootstrap, "_NUMBERS", numbers)
    torch.testing.assert_close(bootstrap_difference(first, second, resamples=100)[:3], whole[:3])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stack_scores_as_its_members_and_nan_stays_with_its_own(dtype):
    first, second = pairs(2, 3, dtype=dtype)
    whole = bootstrap_difference(first, second)
    assert whole.low.shape == whole.high.shape == whole.difference.shape == (2, 3)
    assert whole.low.dtype == whole.difference.dtype == dtype and whole.low.unique().numel() == 6
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(
                [field[i, j] for field in whole[:3]], list(bootstrap_difference(first[i, j], second[i, j])[:3])
            )
    shared = bootstrap_difference(first, second[0, 0])
    torch.testing.assert_close(shared.high[1, 2], bootstrap_difference(first[1, 2], second[0, 0]).high)
    first[0, 1, 3], first[1, 1, 3] = math.nan, math.inf
    broken = bootstrap_difference(first, second)
    for bound, clean in ((broken.low, whole.low), (broken.high, whole.high)):
        assert bound.isnan().tolist() == [[False, True, False]] * 2
        torch.testing.assert_close(bound[:, 0], clean[:, 0])
    assert broken.difference[0, 1].isnan() and broken.difference[1, 1] == math.inf


def test_equal_scores_leave_no_interval():
    first, _ = pairs()
    assert [x.item() for x in bootstrap_difference(first, first)[:3]] == [0, 0, 0]


def covered(gap, truth, seed=0, level=0.95):
    """The share of many sets of differences (R, n) whose interval contains the truth."""
    interval = bootstrap_difference(gap, torch.zeros(gap.shape[-1]).double(), level, seed=seed)
    return ((interval.low <= truth) & (truth <= interval.high)).double().mean().item()


@pytest.mark.slow
@pytest.mark.parametrize(("n", "level"), [(20, 0.95), (100, 0.95), (100, 0.8)])
def test_the_truth_is_covered_as_often_as_theory_says(n, level):
    gap = torch.randn(20_000, n, generator=torch.Generator().manual_seed(n), dtype=torch.float64) + 0.3
    share = np.mean([covered(part, 0.3, seed, level) for seed, part in enumerate(gap.split(500))])
    z = -t(10**9).ppf((1 - level) / 2)
    expected = 1 - 2 * t(n - 1).sf(z * math.sqrt((n - 1) / n))  # the resampled mean has variance (n − 1)/n of s²/n
    assert expected < level - 0.003
    assert share == pytest.approx(expected, abs=4 * math.sqrt(level * (1 - level) / 20_000) + 0.002)  # 2000 resamples


@pytest.mark.slow
def test_skewed_scores_are_covered_nearly_as_often():
    wrong = (
        torch.rand(10_000, 500, generator=torch.Generator().manual_seed(0)) < 0.1
    )  # one method errs where another not
    share = np.mean([covered(part.double(), 0.1, seed) for seed, part in enumerate(wrong.split(500))])
    assert 0.93 < share < 0.965


Z = torch.zeros(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: bootstrap_difference(Z, Z[:3]), r"the same examples, got \(4,\) and \(3,\)"),
        (lambda: bootstrap_difference(Z[:0], Z[:0]), r"first of shape \(\.\.\., B\).*got \(0,\)"),
        (lambda: bootstrap_difference(Z[:1], Z[:1]), r"at least 2 examples, got 1"),
        (lambda: bootstrap_difference(Z, Z > 0), r"second in float32 or float64, got torch.bool"),
        (lambda: bootstrap_difference(Z, Z.double()), r"one dtype"),
        (lambda: bootstrap_difference(Z.expand(2, 4), Z.expand(3, 4)), r"leading axes that match"),
        (lambda: bootstrap_difference(Z, Z, level=1.0), r"level between 0 and 1, got 1\.0"),
        (lambda: bootstrap_difference(Z, Z, level=95), r"level between 0 and 1, got 95"),
        (lambda: bootstrap_difference(Z, Z, resamples=39), r"at least 40 resamples for level 0\.95, got 39"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_fewest_resamples_allowed_are_enough():
    assert bootstrap_difference(Z, Z, resamples=40).n == 4


def test_one_run_gives_the_interval_of_none():
    gap = torch.randn(2, 1, 50, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    plain, runs = (bootstrap_difference(x, torch.zeros_like(x), runs=r) for x, r in ((gap[:, 0], False), (gap, True)))
    for a, b in zip(plain, runs):
        assert torch.equal(torch.as_tensor(a), torch.as_tensor(b))


def test_runs_that_differ_widen_the_interval_by_what_resampling_them_gives():
    gap = torch.tensor([[0.0] * 30, [1.0] * 30])  # nothing varies but the run: means 0, 1/2, 1 with 1/4, 1/2, 1/4
    interval = bootstrap_difference(gap, torch.zeros_like(gap), runs=True)
    assert (interval.difference, interval.low, interval.high, interval.n) == (0.5, 0.0, 1.0, 30)
    interval = bootstrap_difference(gap, torch.zeros_like(gap), level=0.4, runs=True)
    assert interval.low == interval.high == 0.5


def test_the_variance_over_runs_and_examples_is_that_of_the_crossed_bootstrap():
    """For gaps a_r + b_b it is, up to Monte-Carlo error, var(a) / R + var(b) / B (variances with divisor n); the
    standard deviation of normal means is a quarter of the width of their 95.45 % interval."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(k, generator=generator, dtype=torch.float64) for k in (20, 200))
    gap = 0.5 * a[:, None] + 2 * b
    interval = bootstrap_difference(gap, torch.zeros_like(gap), level=0.9545, resamples=20_000, runs=True)
    expected = (0.25 * a.var(correction=0) / 20 + 4 * b.var(correction=0) / 200).sqrt()
    assert float((interval.high - interval.low) / 4) == pytest.approx(float(expected), rel=0.03)  # z of 4 is 0.028
