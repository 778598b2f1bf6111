"""Verdicts follow from tests."""

from __future__ import annotations

import torch
from autoregressions import autoregressive

from basinet.diagnostics import Temperature, Transitions, findings, verdict

GOOD = autoregressive(4, 400, 0.0, 1, 3)
FINE = Transitions(0.8, 0.75, 0, 1600, 0.1)


def words(draws=GOOD, transitions=FINE, temperature=1.0):
    return verdict(findings(draws, transitions, [("configurational", Temperature(temperature, 0.9, 1.1))]))


def test_good_draws_pass_every_test():
    assert words() == "All 6 tests passed: no evidence against these draws."


def test_each_fault_has_its_own_words():
    assert "chains disagree" in words(GOOD + torch.arange(4.0)[:, None, None])
    assert "2 divergences in 1,600" in words(transitions=FINE._replace(divergences=2))
    assert "do not follow the posterior" in words(temperature=1.3)
    assert "hardly moves" in words(transitions=FINE._replace(worst=0.0))
    assert "few effective draws" in words(GOOD[:, :40])


def test_one_chain_says_what_cannot_be_seen():
    assert any("one chain" in test.text for test in findings(GOOD[:1]))


def test_where_so_few_draws_are_effective_that_nothing_is_seen_the_verdict_says_so():
    drifts = autoregressive(4, 100, 0.0, 5, 3) + torch.linspace(0, 2, 100, dtype=torch.float64)[:, None]
    assert words(drifts).startswith("There are too few effective draws to say whether chains agree")
