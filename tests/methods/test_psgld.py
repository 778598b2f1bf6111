"""PSGLD: the distribution under its preconditioner. What it shares with its kin is in test_stochastic_samplers.py."""

import pytest

import basinet as bn
from basinet.testing import Bench


@pytest.mark.slow
def test_its_draws_have_the_moments_that_theory_says():
    checks = list(bn.PSGLD.theory(Bench("PSGLD")))
    assert len(checks) >= 4
    assert [c.name for c in checks if not c.passed] == []
