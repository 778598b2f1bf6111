"""SGHMC: the distribution of its discretised chain. What it shares with its kin is in test_stochastic_samplers.py."""

import basinet as bn
from basinet.testing import Bench


def test_its_draws_have_the_moments_that_theory_says():
    checks = list(bn.SGHMC.theory(Bench("SGHMC")))
    assert len(checks) >= 4
    assert [c.name for c in checks if not c.passed] == []
