"""PIT: uniform where the predictive is right, quantile calibration by hand and by quantiles, histogram, counts."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm, poisson

from basinet.metrics import pit_histogram, quantile_calibration_error, randomized_pit
from basinet.metrics.pit import LEVELS


def draws(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def pit_of(y, mean=0.0, sd=1.0):
    return torch.as_tensor(norm.cdf(y.numpy(), mean, sd))


def test_levels_are_twenty_from_one_to_ninety_nine_percent():
    np.testing.assert_allclose(LEVELS, np.linspace(0.01, 0.99, 20))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_quantile_calibration_by_hand(dtype):
    pit = torch.tensor([0.1, 0.2, 0.3, 0.9], dtype=dtype)
    value = quantile_calibration_error(pit, levels=[0.2, 0.5])  # 2/4 and 3/4 are at or below
    assert value.item() == pytest.approx((0.3 + 0.25) / 2)


def test_quantile_calibration_against_coverage_of_quantiles():
    y = draws(300)
    below = [(y.numpy() <= norm.ppf(q, 0.3, 0.7)).mean() for q in np.linspace(0.01, 0.99, 20)]
    oracle = np.abs(np.array(below) - np.linspace(0.01, 0.99, 20)).mean()
    assert oracle > 0.05
    assert quantile_calibration_error(pit_of(y, 0.3, 0.7)).item() == pytest.approx(oracle)


def test_quantile_calibration_limits():
    assert quantile_calibration_error(torch.zeros(3)).item() == pytest.approx(0.5)  # all covered: mean of 1 − q
    even = (torch.arange(10_000).double() + 0.5) / 10_000
    assert quantile_calibration_error(even).item() < 1e-4


def test_a_right_predictive_is_near_zero_and_a_wrong_one_is_not():
    y = draws(20_000)
    right, wrong = quantile_calibration_error(pit_of(y)), quantile_calibration_error(pit_of(y, sd=0.5))
    assert right.item() < 5 * 0.5 / math.sqrt(20_000)  # five of the largest standard errors
    assert wrong.item() > 0.05


def test_histogram_by_hand_and_its_edges():
    pit = torch.tensor([0.0, 0.25, 0.26, 0.5, 0.75, 1.0, 1.0, 0.1]).double()
    assert pit_histogram(pit, bins=4).tolist() == [3 / 8, 2 / 8, 1 / 8, 2 / 8]


def test_histogram_against_numpy():
    pit = torch.rand(2, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = pit_histogram(pit, bins=7)
    for i in range(2):
        count, _ = np.histogram(pit[i].numpy(), bins=7, range=(0, 1))
        np.testing.assert_allclose(whole[i].numpy(), count / 500)


def test_histogram_shapes_distinguish_narrow_from_wide():
    y = draws(5000)
    narrow, wide = pit_histogram(pit_of(y, sd=0.5), bins=5), pit_histogram(pit_of(y, sd=2.0), bins=5)
    assert narrow[0] > narrow[2] < narrow[4]
    assert wide[0] < wide[2] > wide[4]


def test_randomized_pit_of_counts_is_uniform_and_the_plain_one_is_not():
    y = np.random.default_rng(0).poisson(1.5, 4000)
    below, upto = torch.as_tensor(poisson.cdf(y - 1, 1.5)), torch.as_tensor(poisson.cdf(y, 1.5))
    u = randomized_pit(below, upto, seed=3)
    assert bool(((below <= u) & (u <= upto)).all())
    assert kstest(u.numpy(), "uniform").pvalue > 1e-3
    assert kstest(upto.numpy(), "uniform").pvalue < 1e-10


def test_randomized_pit_repeats_by_seed_and_shares_draws_between_members():
    low, high = torch.zeros(2, 50), torch.ones(2, 50)
    first = randomized_pit(low, high, seed=1)
    torch.testing.assert_close(first[0], first[1])
    torch.testing.assert_close(first, randomized_pit(low, high, seed=torch.Generator().manual_seed(1)))
    assert not torch.equal(first, randomized_pit(low, high, seed=2))
    generator = torch.Generator().manual_seed(1)
    randomized_pit(low, high, seed=generator)
    assert not torch.equal(first, randomized_pit(low, high, seed=generator))  # a generator moves on


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stacks_and_nan(dtype):
    pit = torch.rand(2, 3, 40, generator=torch.Generator().manual_seed(0)).to(dtype)
    error, shares = quantile_calibration_error(pit), pit_histogram(pit, bins=3)
    assert error.shape == (2, 3) and shares.shape == (2, 3, 3) and error.dtype == shares.dtype == dtype
    assert error.unique().numel() == 6
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(error[i, j], quantile_calibration_error(pit[i, j]))
            torch.testing.assert_close(shares[i, j], pit_histogram(pit[i, j], bins=3))
    pit[0, 1, 5] = math.nan
    assert quantile_calibration_error(pit).isnan().tolist() == [[False, True, False], [False] * 3]
    assert pit_histogram(pit).isnan().any(-1).tolist() == [[False, True, False], [False] * 3]


U = torch.tensor([0.2, 0.8])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: quantile_calibration_error(U[:0]), r"pit of shape \(\.\.\., B\) with at least one.*\(0,\)"),
        (lambda: quantile_calibration_error(torch.tensor(0.5)), r"got \(\)"),
        (lambda: quantile_calibration_error(U * 2), r"pit in \[0, 1\], got values from 0\.4 to 1\.6"),
        (lambda: quantile_calibration_error(U, levels=[]), r"at least one, got \[\]"),
        (lambda: quantile_calibration_error(U, levels=[0.5, 1.0]), r"levels between 0 and 1.*1\.0"),
        (lambda: quantile_calibration_error(U.half()), r"float32 or float64, got torch.float16"),
        (lambda: pit_histogram(U - 1), r"pit in \[0, 1\]"),
        (lambda: pit_histogram(U, bins=0), r"bins of at least 1, got 0: 10"),
        (lambda: randomized_pit(U, U[:1], seed=0), r"one shape and dtype, got \(2,\)"),
        (lambda: randomized_pit(U, U - 0.1, seed=0), r"below <= upto, got a difference of 0\.1"),
        (lambda: randomized_pit(U + 1, U + 1, seed=0), r"below in \[0, 1\]"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
