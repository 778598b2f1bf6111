"""Verdicts follow from tests."""

from __future__ import annotations

import torch
from autoregressions import autoregressive

from basinet.diagnostics import Temperature, Transitions, findings, rhat, verdict
from basinet.diagnostics.verdict import rhat_limit

GOOD = autoregressive(4, 400, 0.0, 1, 3)
FINE = Transitions(0.8, 0.75, 0, 1600, 0.1)


def words(draws=GOOD, transitions=FINE, temperature=1.0):
    return verdict(findings(draws, transitions, [("configurational", Temperature(temperature, 0.9, 1.1))]))


def test_good_draws_pass_every_test():
    assert words() == "All 6 tests passed: nothing speaks against these draws."


def test_each_fault_has_its_own_words():
    assert "chains disagree" in words(GOOD + torch.arange(4.0)[:, None, None])
    assert "2 divergences in 1,600" in words(transitions=FINE._replace(divergences=2))
    assert "another law than the posterior" in words(temperature=1.3)
    assert "hardly moves" in words(transitions=FINE._replace(worst=0.0))
    assert "few effective draws" in words(GOOD[:, :40])


def test_one_chain_says_what_cannot_be_seen():
    assert any("one chain" in test.text for test in findings(GOOD[:1]))


def test_the_limit_of_r_hat_is_what_chance_alone_seldom_exceeds():
    quantities, repeats = 10, 40
    for chains, count in ((4, 80),):
        for phi in (0.0, 0.6):
            draws = autoregressive(chains, count, phi, 12, quantities * repeats)
            each = draws.unflatten(2, (repeats, quantities)).unbind(2)
            over = sum(bool((rhat(one) > rhat_limit(one)).any()) for one in each)
            expected = 0.1 if phi else 0.01  # the number of effective draws is an estimate where they are correlated
            assert over <= repeats * expected + 4.5 * (repeats * expected) ** 0.5  # z = 4.5
    assert bool((rhat_limit(autoregressive(4, 20_000, 0.0, 1, 2)) == 1.01).all())
