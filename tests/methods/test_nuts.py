"""NUTS: its tree against one built by recursion, how draws weigh, and calibration by simulation."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from known_targets import ENGINE, at, draws_of, states, step_of
from torch import Tensor

import basinet as bn
from basinet.chains.tree import Place, begun, doubled, grown, joined, turning
from basinet.core.noise import Noise
from basinet.diagnostics import ess_mean, mcse_mean
from basinet.testing.exact import conjugate

EXACT = conjugate()


def turns(momenta: list[Tensor]) -> bool:
    """Whether any balanced subtree of a run of leaves turns back, the whole included, by recursion."""
    if len(momenta) == 1:
        return False
    half = len(momenta) // 2
    whole = bool(turning(momenta[0], momenta[-1], torch.stack(momenta).sum(0), torch.ones(2)))
    return whole or turns(momenta[:half]) or turns(momenta[half:])


@pytest.mark.parametrize("seed", range(20))
def test_a_subtree_turns_where_recursion_says_so(seed):
    """Momenta that swing: leaf by leaf with checkpoints, against all balanced subtrees at once."""
    key, levels = Noise.seed(seed), 4
    count = 2**levels
    angle = 0.25 * key.split("speed").uniform(torch.empty(1)) * torch.arange(count)
    swing = torch.stack([angle.cos(), angle.sin()], 1) + 0.3 * key.split("noise").normal(torch.empty(count, 2))
    zero, no = torch.zeros(1, dtype=torch.float64), torch.zeros(1, 2)
    tree = begun(Place(no, no, no), zero, zero, torch.ones(1, dtype=torch.bool), 6)
    turned_back = False
    for n in range(count):
        place = Place(no, swing[n].unsqueeze(0), no)
        half = torch.full((1,), 0.5, dtype=torch.float64)
        tree, turned = grown(tree, place, zero, zero, half, torch.ones(1, 2))
        turned_back = turned_back or bool(turned)
        known = any(
            turns(list(swing[begin : begin + 2**k]))
            for k in range(1, levels + 1)
            for begin in range(0, n + 2 - 2**k, 2**k)
        )
        assert turned_back == known, n


def test_leaves_are_drawn_by_their_weights():
    """A subtree of four leaves and a tree of one: multinomial inside, the ratio of weights between them."""
    chains = 40_000
    energies = torch.tensor([0.3, 1.0, 0.0, 2.0], dtype=torch.float64)
    zero = torch.zeros(chains, dtype=torch.float64)
    flat = torch.zeros(chains, 1)
    tree = begun(Place(flat - 1, flat + 1, flat), zero, zero, torch.ones(chains, dtype=torch.bool), 3)
    key = Noise.seed(1)
    for n, error in enumerate(energies):
        leaf, u = Place(flat + n, flat + 1, flat), key.split(n).uniform(zero)
        tree, _ = grown(tree, leaf, zero, zero + error, u, torch.ones(chains, 1))
    inside = torch.bincount(tree.offered.position[:, 0].long(), minlength=4).double() / chains
    weights = (-energies).exp()
    error = (weights / weights.sum() / chains).sqrt()
    assert float(((inside - weights / weights.sum()) / error).abs().max()) < 4.5
    tree = tree._replace(weight=zero + math.log(4.0))
    after, _ = joined(tree, key.split("join").uniform(zero), torch.ones(chains, 1))
    moved = (after.proposal.position[:, 0] >= 0).double().mean()
    expected = float(weights.sum()) / 4
    assert abs(float(moved) - expected) < 4.5 * math.sqrt(expected * (1 - expected) / chains)
    grow = doubled(after, torch.zeros(chains, dtype=torch.bool))
    assert bool((grow.tip.position == -1).all()) and bool((grow.leaf == 0).all())


def test_transitions_are_longer_where_the_posterior_is_wide():
    recipe = bn.NUTS(step_size=0.1, steps=400, warmup=10, draws=4, scaled=False)
    counts = []
    for noise in (0.5, 4.0):
        exact = conjugate(noise=noise, prior=1.5)
        state = states(recipe, exact.problem, exact.mean.expand(8, -1))
        for clock in range(120):
            state, _ = recipe.moved(state, step_of(exact.problem, exact.data, 8, clock))
        counts.append(float(state.ledger.transitions.double().mean()))
    assert counts[0] > 2 * counts[1] > 0


@pytest.mark.parametrize("fields", [{}, {"step_size": 0.02, "depth": 5}], ids=["", "trees as long as they may be"])
def test_a_run_uses_most_of_its_steps_and_keeps_all_draws(fields):
    recipe = bn.NUTS(steps=600, warmup=200, draws=8, scaled=False, **fields)
    posterior = bn.fit(recipe, EXACT.problem, EXACT.data, members=4, engine=ENGINE, start=at(EXACT.problem, EXACT.mean))
    assert posterior.info["curves"]["step"][0][-1] > 0.6 * 600
    assert posterior.parts[0].family.count == 8


def test_all_draws_are_kept_where_there_is_no_warm_up_to_learn_from():
    recipe = bn.NUTS(steps=150, warmup=0, step_size=0.3, draws=4)
    posterior = bn.fit(recipe, EXACT.problem, EXACT.data, members=2, engine=ENGINE, start=at(EXACT.problem, EXACT.mean))
    assert posterior.parts[0].family.count == 4


@pytest.mark.slow
def test_twenty_seeds_are_right_and_their_errors_are_as_stated():
    """Means of 20 runs: each within 4.5 of its stated errors, and together as far off as stated."""
    recipe: Any = bn.NUTS(steps=600, warmup=250, draws=10)
    start = at(EXACT.problem, EXACT.mean + 1)
    z = []
    for seed in range(20):
        draws = draws_of(bn.fit(recipe, EXACT.problem, EXACT.data, members=8, seed=seed, engine=ENGINE, start=start))
        z.append((draws.mean((0, 1)) - EXACT.mean) / mcse_mean(draws))
        assert float(ess_mean(draws).min()) > 20
    together = torch.stack(z)
    assert float(together.abs().max()) < 4.5
    assert float(together.mean(0).abs().max()) < 4.5 / math.sqrt(20)
    assert 0.5 < float(together.square().mean()) < 2.0


@pytest.mark.slow
def test_ranks_of_the_truth_are_uniform():
    simulations, kept, bins = 120, 31, 8
    recipe, below = bn.NUTS(steps=220, warmup=140, draws=4), []
    for s in range(simulations):
        key = Noise.seed(1000 + s)
        truth = 1.5 * key.split("truth").normal(EXACT.mean)
        targets = EXACT.data.inputs @ truth + 0.5 * key.split("noise").normal(EXACT.data.targets)
        data = bn.Data(EXACT.data.inputs, targets)
        start = at(EXACT.problem, truth)
        draws = draws_of(bn.fit(recipe, EXACT.problem, data, members=kept, seed=s, engine=ENGINE, start=start))
        below.append((draws[:, -1] < truth).sum(0))
    expected = simulations / bins
    for column in torch.stack(below).T:
        histogram = torch.bincount(column // ((kept + 1) // bins), minlength=bins).double()
        assert float(((histogram - expected) ** 2 / expected).sum()) < 29.9  # chi-square, 7 degrees, probability 1e-4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"depth": 0}, "depth of 1 to 14"),
        ({"acceptance": 0.0}, "acceptance between 0 and 1"),
        ({"step_size": 0.0}, "finite step_size"),
    ],
)
def test_recipes_that_make_no_sense_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        bn.NUTS(**options)
