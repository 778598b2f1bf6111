"""SVGD: its theory, and its settings by name (what it shares with WGD: tests/repulsion/test_particles.py)."""

from __future__ import annotations

from basinet.methods.svgd import SVGD
from basinet.optim import Adam
from basinet.testing import check_method


def test_svgd_conforms_and_settles_as_its_theory_says():
    checks = check_method(SVGD(epochs=4, batch_size=16))
    assert sum("kernel x'y + 1" in c.name for c in checks) == 4


def test_compare_has_one_row_of_it_and_the_papers_settings_have_a_name():
    assert [(e.label, e.recipe, e.members) for e in SVGD.lineup()] == [("SVGD", SVGD(), 10)]
    paper = SVGD.paper()
    assert (paper.batch_size, paper.repulsion, paper.bandwidth) == (100, 1.0, None)
    assert isinstance(paper.optimizer, Adam) and paper.optimizer.lr == 1e-3
