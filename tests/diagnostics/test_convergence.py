"""R-hat, effective sample sizes and Monte-Carlo errors: against closed forms and another program's numbers."""

from __future__ import annotations

import math

import pytest
import torch
from autoregressions import autoregressive

from basinet.diagnostics import ess_bulk, ess_mean, ess_tail, mcse_mean, rhat

APART = autoregressive(4, 100, 0.3, 4) + 0.5 * torch.arange(4, dtype=torch.float64)[:, None]
# rhat, bulk, tail, mean and its error, as ArviZ 0.23.4 gives them for the same draws (it has no R-hat of one chain)
KNOWN = {
    "independent": (autoregressive(4, 250, 0.0, 1), 0.998414, 1015.617496, 747.966573, 1012.851049, 0.031008),
    "slow, odd": (autoregressive(4, 301, 0.9, 2), 1.034756, 55.349417, 195.590361, 54.365546, 0.295274),
    "antithetic": (autoregressive(2, 200, -0.5, 3), 0.999656, 1040.823997, 452.928908, 1040.823997, 0.035504),
    "apart": (APART, 1.301482, 11.193085, 318.377102, 11.156476, 0.384707),
    "one chain": (autoregressive(1, 400, 0.6, 5), None, 76.094375, 224.220366, 72.538929, 0.15675),
    "heavy tails": (autoregressive(4, 250, 0.5, 6) ** 3, 1.014728, 353.158464, 503.590248, 452.283027, 0.290802),
    "ties": ((2 * autoregressive(4, 100, 0.5, 7)).round(), 1.033384, 118.608003, 165.772394, 115.766104, 0.217862),
}


@pytest.mark.parametrize("name", KNOWN)
def test_numbers_are_those_of_arviz(name):
    draws, *expected = KNOWN[name]
    for function, value in zip((rhat, ess_bulk, ess_tail, ess_mean, mcse_mean), expected):
        assert value is None or abs(float(function(draws)) / value - 1) < 2e-5, function.__name__


@pytest.mark.parametrize("phi", [-0.3, 0.0, 0.5, 0.9])
def test_effective_draws_of_an_autoregression_are_the_closed_form(phi):
    quantities, chains, count = 200, 4, 1000
    draws = autoregressive(chains, count, phi, 8, quantities)
    share = ess_mean(draws) / (chains * count)
    expected = (1 - phi) / (1 + phi)
    z = (share.mean() - expected) / (share.std() / math.sqrt(quantities))
    bias = 0.03 * expected  # of an estimate from finitely many draws
    assert abs(float(share.mean()) - expected) < bias + 4.5 * float(share.std()) / math.sqrt(quantities), float(z)


def test_the_standard_error_is_that_of_means():
    draws = autoregressive(4, 500, 0.8, 9, 400)
    means, errors = draws.mean((0, 1)), mcse_mean(draws)
    ratio = float(means.square().mean().sqrt() / errors.mean())
    assert abs(ratio - 1) < 0.03 + 4.5 / math.sqrt(2 * 400)  # bias, and the error of a standard deviation, z = 4.5


def test_disagreement_in_place_in_scale_and_within_a_chain_is_seen():
    good = autoregressive(4, 200, 0.2, 10)
    assert float(rhat(good)) < 1.01
    moved, wider, drifts = good.clone(), good.clone(), good.clone()
    moved[0] += 1.0
    wider[0] *= 3.0
    drifts += torch.linspace(0, 2, 200, dtype=torch.float64)
    for bad in (moved, wider, drifts):
        assert float(rhat(bad)) > 1.05


def test_quantities_are_judged_one_by_one():
    draws = autoregressive(3, 60, 0.4, 11, 4)
    for function in (rhat, ess_bulk, ess_tail, ess_mean, mcse_mean):
        each = torch.stack([function(draws[..., q]) for q in range(4)])
        torch.testing.assert_close(function(draws), each, rtol=1e-12, atol=0)


def test_chains_that_stand_still():
    still = torch.zeros(4, 20, dtype=torch.float64)
    assert float(rhat(still)) == 1.0 and float(ess_bulk(still)) == 80.0
    assert float(rhat(still + torch.arange(4.0)[:, None])) == math.inf


@pytest.mark.parametrize("shape", [(10,), (4, 3)])
def test_too_few_draws_are_refused(shape):
    with pytest.raises(ValueError, match="at least 4 draws of each chain"):
        rhat(torch.zeros(shape))
