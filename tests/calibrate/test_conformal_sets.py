"""Conformal scores, quantiles and sets, by hand."""

from __future__ import annotations

import math

import pytest
import scipy.stats
import torch

import basinet as bn
from basinet.calibrate.conformal_sets import Conformal, calibrated, class_scores, class_sets, needed, promised

P = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6], [1 / 3, 1 / 3, 1 / 3]], dtype=torch.float64)


def chance(probs: torch.Tensor, seed: int = 0) -> torch.Tensor:
    """The u of each input, read off the score of the most probable class: u p."""
    best = probs.double().amax(-1)
    return class_scores(probs, Conformal("aps", 0.9, 0.0, 0, seed=seed)).amin(-1) / best


@pytest.mark.parametrize(
    ("n", "level", "k"),
    [
        (9, 0.9, 9),
        (10, 0.9, 10),
        (19, 0.9, 18),
        (99, 0.9, 90),
        (100, 0.9, 91),
        (1, 0.5, 1),
        (2, 0.5, 2),
        (19, 0.95, 19),
    ],
)
def test_the_quantile_of_a_few_scores_by_hand(n, level, k):
    scores = torch.arange(1.0, n + 1)[bn.Noise.seed(0).permutation(n)]
    assert calibrated(scores, level) == k == math.ceil(round((n + 1) * level, 9))


@pytest.mark.parametrize(("n", "m", "level", "k"), [(30, 50, 0.8, 25), (120, 300, 0.9, 109), (9, 1, 0.9, 9)])
def test_the_coverage_to_expect_is_beta_binomial(n, m, level, k):
    held = scipy.stats.betabinom(m, k, n + 1 - k)
    assert promised(n, m, level) == pytest.approx((held.mean() / m, held.std() / m), rel=1e-9)


@pytest.mark.parametrize(("level", "n"), [(0.9, 9), (0.95, 19), (0.99, 99), (0.5, 1), (0.8, 4), (0.7, 3)])
def test_with_too_few_examples_the_error_says_how_many_it_takes(level, n):
    assert needed(level) == n
    calibrated(torch.zeros(n), level)
    with pytest.raises(ValueError, match=f"a level of {level} needs at least {n} calibration examples, got {n - 1}"):
        calibrated(torch.zeros(n - 1), level)


def test_scores_by_hand():
    assert torch.equal(class_scores(P, Conformal("lac", 0.9, 0.0, 0)), 1 - P)
    u = chance(P)
    assert bool(((u >= 0) & (u < 1)).all()) and len(u.unique()) == 3
    scores = class_scores(P, Conformal("aps", 0.9, 0.0, 0))
    expected = torch.stack(
        (
            torch.stack((0.5 * u[0], 0.5 + 0.3 * u[0], 0.8 + 0.2 * u[0])),
            torch.stack((0.6 + 0.2 * u[1], 0.8 + 0.2 * u[1], 0.6 * u[1])),  # of equals, the first in number first
            (torch.arange(3) + u[2]) / 3,
        )
    )
    assert torch.allclose(scores, expected)
    penalised = class_scores(P, Conformal("raps", 0.9, 0.0, 0, free=1, penalty=0.25))
    ranks = torch.tensor([[1, 2, 3], [2, 3, 1], [1, 2, 3]])
    assert torch.allclose(penalised, expected + 0.25 * (ranks - 1).clamp_min(0))


def test_a_set_contains_classes_below_the_threshold_and_is_empty_only_if_asked():
    scores = class_scores(P, Conformal("aps", 0.9, 0.0, 0))
    for threshold in (0.0, 0.3, 0.7, 0.95, 1.0):
        rule = Conformal("aps", 0.9, threshold, 0, empty=True)
        assert torch.equal(class_sets(P, rule), scores <= threshold)
        full = class_sets(P, rule._replace(empty=False))
        best = torch.tensor([[True, False, False], [False, False, True], [True, False, False]])
        assert torch.equal(full, (scores <= threshold) | best)
    assert class_sets(P, Conformal("aps", 0.9, 1.0, 0)).all()


def test_the_random_part_is_uniform_and_depends_only_on_prediction_and_seed():
    probs = bn.Noise.seed(1).normal(torch.empty(20_000, 10)).softmax(-1)
    u = chance(probs)
    assert torch.equal(u[[7, 3]], chance(probs[[7, 3]])) and not torch.allclose(u, chance(probs, seed=1))
    assert not torch.allclose(u, chance(probs.flip(-1)))
    shares = torch.histc(u, 20, 0, 1) / len(u)
    assert float(((shares - 0.05) ** 2 / 0.05).sum() * len(u)) < 46  # chi-square with 19 degrees of freedom: p = 0.0005
    later = u[1:] - u[:-1]
    assert abs(float((later**2).mean()) - 1 / 6) < 4 * math.sqrt(7 / 180 / len(u))  # neighbours are independent
    sure = (bn.Noise.seed(2).normal(torch.empty(1000, 10)) + 40 * torch.eye(10)[0]).softmax(-1)
    assert len(chance(sure).unique()) > 990  # of near-certain predictions too
