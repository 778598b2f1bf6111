"""Risk over coverage: by hand, every order of the ties, loops, best and worst orders, stacks, NaN, errors."""

import math
from itertools import permutations

import numpy as np
import pytest
import torch

from basinet.metrics import aurc, excess_aurc, risk_coverage


def case(*lead, n=60, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    uncertainty = torch.rand(*lead, n, generator=g, dtype=torch.float64)
    losses = (torch.rand(*lead, n, generator=g, dtype=torch.float64) < uncertainty).to(dtype)
    return uncertainty.to(dtype), losses


def plain(order, losses):
    """The curve for one order, as the definition says it."""
    return [np.mean([losses[b] for b in order[:k]]) for k in range(1, len(order) + 1)]


def test_by_hand():
    curve = risk_coverage(torch.tensor([0.3, 0.1, 0.2]).double(), torch.tensor([1.0, 0.0, 2.0]).double())
    assert curve.coverage.tolist() == pytest.approx([1 / 3, 2 / 3, 1])
    assert curve.risk.tolist() == pytest.approx([0, 1, 1])
    assert aurc(torch.tensor([0.3, 0.1, 0.2]), torch.tensor([1.0, 0.0, 2.0])).item() == pytest.approx(2 / 3)


@pytest.mark.parametrize("seed", range(3))
def test_against_a_loop(seed):
    uncertainty, losses = case(seed=seed)
    oracle = plain(np.argsort(uncertainty.numpy()), losses.numpy())
    assert risk_coverage(uncertainty, losses).risk.tolist() == pytest.approx(oracle)
    assert aurc(uncertainty, losses).item() == pytest.approx(np.mean(oracle))


def test_ties_are_the_mean_over_all_their_orders():
    uncertainty = torch.tensor([0.5, 0.1, 0.5, 0.5, 0.9, 0.1]).double()
    losses = torch.tensor([1.0, 0.0, 0.25, 3.0, 1.0, 2.0]).double()
    u = uncertainty.numpy()
    curves = [plain(o, losses.numpy()) for o in permutations(range(6)) if np.all(np.diff(u[list(o)]) >= 0)]
    assert len(curves) == 2 * 6
    assert np.std(curves, axis=0)[2] > 0.1  # the order does matter
    assert risk_coverage(uncertainty, losses).risk.tolist() == pytest.approx(np.mean(curves, axis=0))


def test_the_order_of_the_data_does_not_matter():
    uncertainty, losses = case(n=200)
    uncertainty = (uncertainty * 5).round()  # many ties
    mixed = torch.randperm(200, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(aurc(uncertainty, losses), aurc(uncertainty[mixed], losses[mixed]))


def test_constant_uncertainty_is_the_mean_loss_everywhere():
    _, losses = case()
    curve = risk_coverage(torch.zeros(60).double(), losses)
    torch.testing.assert_close(curve.risk, losses.mean().expand(60))


def test_only_the_order_of_the_uncertainty_matters():
    uncertainty, losses = case()
    torch.testing.assert_close(aurc(uncertainty.exp() * 7 - 100, losses), aurc(uncertainty, losses))


def test_excess_is_zero_for_the_best_order_and_the_gap_otherwise():
    uncertainty, losses = case()
    assert excess_aurc(losses, losses).item() == 0
    best = plain(np.argsort(losses.numpy()), losses.numpy())
    gap = aurc(uncertainty, losses).item() - np.mean(best)
    assert gap > 0.01
    assert excess_aurc(uncertainty, losses).item() == pytest.approx(gap)
    assert excess_aurc(-losses, losses) > excess_aurc(torch.zeros_like(losses), losses) > gap


def test_best_area_tends_to_its_published_limit():
    losses = torch.zeros(20_000).double()
    losses[:4000] = 1  # error rate r = 0.2
    limit = 0.2 + 0.8 * math.log(0.8)
    assert aurc(losses, losses).item() == pytest.approx(limit, abs=1e-4)


def test_no_errors_and_all_errors():
    uncertainty, losses = case()
    assert aurc(uncertainty, torch.zeros_like(losses)).item() == 0
    assert aurc(uncertainty, torch.ones_like(losses)).item() == pytest.approx(1)
    assert excess_aurc(uncertainty, torch.ones_like(losses)).item() == 0
    assert aurc(torch.tensor([3.0]), torch.tensor([0.7])).item() == pytest.approx(0.7)  # one example


def test_an_infinite_loss_counts_from_its_place_on():
    uncertainty, losses = torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1.0, math.inf, 0.0, 0.0])
    assert risk_coverage(uncertainty, losses).risk.tolist() == [1, math.inf, math.inf, math.inf]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("score", [aurc, excess_aurc, lambda u, l: risk_coverage(u, l).risk])
def test_a_stack_scores_as_its_members(score, dtype):
    uncertainty, losses = case(2, 3, dtype=dtype)
    turned = uncertainty.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    assert not turned.is_contiguous()
    whole = score(turned, losses)
    assert whole.dtype == dtype and whole.unique().numel() >= 6
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(whole[i, j], score(uncertainty[i, j], losses[i, j]))
    torch.testing.assert_close(score(uncertainty[0, 0], losses)[1, 2], score(uncertainty[0, 0], losses[1, 2]))
    torch.testing.assert_close(score(uncertainty, losses[0, 0])[1, 2], score(uncertainty[1, 2], losses[0, 0]))


def test_a_nan_stays_with_its_member():
    uncertainty, losses = case(3)
    uncertainty[0, 4], losses[2, 7] = math.nan, math.nan
    assert aurc(uncertainty, losses).isnan().tolist() == [True, False, True]
    assert excess_aurc(uncertainty, losses).isnan().tolist() == [True, False, True]


Z = torch.zeros(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: aurc(Z, Z[:3]), r"equally many examples, got \(4,\) and \(3,\)"),
        (lambda: aurc(Z[:0], Z[:0]), r"uncertainty of shape \(\.\.\., B\).*got \(0,\)"),
        (lambda: aurc(Z, Z > 0), r"losses in float32 or float64, got torch.bool"),
        (lambda: aurc(Z, Z.double()), r"one dtype, got torch.float32 and torch.float64"),
        (lambda: excess_aurc(Z.expand(2, 4), Z.expand(3, 4)), r"leading axes that match, got \(2, 4\) and \(3, 4\)"),
        (lambda: risk_coverage(torch.tensor(1.0), Z), r"got \(\)"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
