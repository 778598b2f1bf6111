"""Limits that follow from chance: right chains seldom exceed them, wrong ones do."""

from __future__ import annotations

import math

import pytest
import torch
from autoregressions import autoregressive
from torch import Tensor

from basinet.diagnostics.chance import correlation_time, f_quantile, rhat_limits
from basinet.diagnostics.convergence import rhat_of_both

QUANTITIES = 10


def alarms(draws: Tensor) -> int:
    """In how many of several runs, (chains, draws, runs x quantities), R-hat is beyond its limit."""
    runs = draws.unflatten(2, (-1, QUANTITIES)).unbind(2)
    return sum(bool((rhat_of_both(one) > rhat_limits(one, alarm=0.01)).any()) for one in runs)


def most(runs: int, surprise: float = 1e-3) -> int:
    """The number of alarms that is exceeded with probability `surprise` at most, where each run has one with 1 %."""
    law = [math.comb(runs, k) * 0.01**k * 0.99 ** (runs - k) for k in range(runs)]
    return next(k for k in range(runs) if 1 - sum(law[: k + 1]) <= surprise)


def test_the_numbers_of_alarms_that_are_allowed():
    """Against the binomial distribution, as another program has it."""
    assert [most(runs) for runs in (60, 120, 400, 500)] == [4, 6, 11, 13]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("chains", "kept", "phi", "runs"),
    [(4, 80, 0.0, 400), (4, 80, 0.6, 400), (8, 100, 0.8, 400), (64, 20, 0.6, 200)]
    + [(1, 400, 0.6, 400), (2, 200, 0.6, 400), (16, 40, 0.5, 400), (4, 1000, 0.5, 120)],
)
def test_chains_that_are_right_raise_an_alarm_once_in_a_hundred_runs(chains, kept, phi, runs):
    assert alarms(autoregressive(chains, kept, phi, 12, QUANTITIES * runs)) <= most(runs)


@pytest.mark.parametrize(("kept", "phi"), [(100, 0.0), (200, 0.6)])
@pytest.mark.parametrize("wrong", ["place", "scale"])
def test_a_chain_elsewhere_or_of_another_width_is_seen(kept, phi, wrong):
    draws = autoregressive(4, kept, phi, 14, QUANTITIES * 20) * (1 - phi**2) ** 0.5
    draws[0] = draws[0] + 1.0 if wrong == "place" else 2 * draws[0]
    assert alarms(draws) >= 19


def test_many_draws_have_the_limit_that_is_advised():
    assert bool((rhat_limits(autoregressive(4, 20_000, 0.0, 1, 2)) == 1.01).all())


@pytest.mark.parametrize("phi", [0.0, 0.6, 0.9])
def test_the_correlation_time_of_an_autoregression(phi):
    tau, _ = correlation_time(autoregressive(4, 400, phi, 15, 200))
    expected = (1 + phi) / (1 - phi)
    assert abs(float(tau.mean()) / expected - 1) < 0.1


def test_chains_that_stand_still_have_the_longest_time():
    tau, _ = correlation_time(torch.zeros(2, 20, 1))
    assert float(tau) == 20.0


@pytest.mark.parametrize(
    ("first", "second", "expected"), [(7.0, 10.0, 11.249), (7.0, 24.0, 5.818), (31.0, 65.0, 2.640), (1.0, 24.0, 16.166)]
)  # by another program
def test_quantiles_of_the_f_distribution(first, second, expected):
    assert float(f_quantile(0.9995, first, torch.tensor(second))) == pytest.approx(expected, rel=0.06)
