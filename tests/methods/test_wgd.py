"""WGD: its theory, and its settings by name (what it shares with SVGD: tests/repulsion/test_particles.py)."""

from __future__ import annotations

import basinet as bn
from basinet.methods.wgd import WGD
from basinet.optim import Adam
from basinet.testing import check_method


def test_wgd_conforms_and_settles_as_its_theory_says():
    checks = check_method(WGD(epochs=4, batch_size=16))
    assert sum("variance of 100 particles" in c.name for c in checks) == 2


def test_strong_repulsion_of_functions_makes_members_differ():
    train, away = bn.data.toys.gaps(40), bn.data.toys.in_gaps(100).inputs
    problem = bn.Problem(lambda: bn.networks.MLP(1, 1, hidden=(20,)), bn.likelihoods.Gaussian(noise=0.1))
    engine = bn.Engine(device="cpu", compile=False, progress=False)
    spread = {}
    for strength in (0.0, 50.0):
        recipe = WGD(epochs=60, space="function", extra=20, repulsion=strength, optimizer=Adam(lr=0.01))
        posterior = bn.fit(recipe, problem, train, members=5, engine=engine)
        spread[strength] = float(posterior.predict(away).epistemic.mean().sqrt())
    assert spread[50.0] > 1.5 * spread[0.0]


def test_compare_has_two_rows_of_it_and_the_papers_settings_have_a_name():
    assert [(e.label, e.recipe, e.members) for e in WGD.lineup()] == [
        ("WGD (weights)", WGD(), 10),
        ("WGD (function)", WGD(space="function"), 10),
    ]
    paper = WGD.paper(space="features", layer="0")
    assert (paper.repulsion, paper.optimizer, paper.layer, paper.prior_draws) == (1.0, Adam(lr=0.01), "0", 0)
    assert WGD.paper(space="function").prior_draws is None
