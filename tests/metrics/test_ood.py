"""Scores inside and outside: scikit-learn with and without ties, by hand, degenerate sets, divergence in theory."""

import math

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from sklearn.metrics import average_precision_score, roc_auc_score, roc_curve

from basinet.metrics import aupr, auroc, fpr95, symmetric_kl


def scores(*lead, n=70, k=45, seed=0, ties=False, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    inside = torch.randn(*lead, n, generator=g, dtype=torch.float64)
    outside = torch.randn(*lead, k, generator=g, dtype=torch.float64) + 0.8
    if ties:
        inside, outside = (2 * inside).round(), (2 * outside).round()
    return inside.to(dtype), outside.to(dtype)


def labelled(inside, outside, positive):
    """Labels and scores as scikit-learn takes them, the positives higher."""
    s = torch.cat((inside, outside)).numpy()
    y = np.repeat([0, 1], [len(inside), len(outside)])
    return (y, s) if positive == "outside" else (1 - y, -s)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("positive", ["inside", "outside"])
@pytest.mark.parametrize(("n", "k"), [(70, 45), (45, 70), (1, 1), (200, 20), (20, 200), (3, 41)])
def test_against_scikit_learn(n, k, positive, ties):
    for seed in range(5):
        inside, outside = scores(n=n, k=k, seed=seed, ties=ties)
        y, s = labelled(inside, outside, positive)
        fpr, tpr, _ = roc_curve(y, s, drop_intermediate=False)
        assert auroc(inside, outside).item() == pytest.approx(roc_auc_score(y, s), abs=1e-12)
        assert aupr(inside, outside, positive).item() == pytest.approx(average_precision_score(y, s), abs=1e-12)
        assert fpr95(inside, outside, positive).item() == pytest.approx(fpr[np.argmax(tpr >= 0.95)], abs=1e-12)


def test_by_hand():
    inside, outside = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([2.0, 4.0])
    assert auroc(inside, outside).item() == pytest.approx((1.5 + 3) / 6)
    assert aupr(inside, outside).item() == pytest.approx((1 / 1 + 2 / 4) / 2)  # at 4, and at 2 with 3 and the tie
    assert aupr(inside, outside, "inside").item() == pytest.approx((1 / 1 + 2 / 3 + 3 / 4) / 3)
    assert fpr95(inside, outside).item() == pytest.approx(2 / 3)
    assert fpr95(inside, outside, "inside").item() == pytest.approx(1 / 2)


@pytest.mark.parametrize("k", range(1, 130))
def test_fpr95_finds_just_enough_positives(k):
    outside = torch.arange(k).double()
    inside = torch.arange(k).double() - 0.5  # j of them reach the threshold that lets j positives through
    enough = next(j for j in range(1, k + 1) if 100 * j >= 95 * k)
    assert fpr95(inside, outside).item() == pytest.approx((enough - 1) / k)


def test_perfect_reversed_and_constant_scores():
    low, high = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([5.0, 6.0])
    flat, share = torch.zeros(6), torch.zeros(2)
    assert auroc(low, high).item() == 1 and auroc(high, low).item() == 0 and auroc(flat, share).item() == 0.5
    for side, share_of_positives in (("outside", 2 / 8), ("inside", 6 / 8)):
        assert aupr(low, high, side).item() == 1 and fpr95(low, high, side).item() == 0
        assert fpr95(high, low, side).item() == 1 and fpr95(flat, share, side).item() == 1
        assert aupr(flat, share, side).item() == pytest.approx(share_of_positives)


def test_only_the_order_matters_and_infinite_scores_have_one():
    inside, outside = scores()
    torch.testing.assert_close(auroc(inside.exp(), outside.exp()), auroc(inside, outside))
    inside[0], outside[0] = -math.inf, math.inf
    y, s = labelled(inside.clamp(-99, 99), outside.clamp(-99, 99), "outside")
    assert auroc(inside, outside).item() == pytest.approx(roc_auc_score(y, s))
    assert aupr(inside, outside).item() == pytest.approx(average_precision_score(y, s))


def test_auroc_of_two_gaussians():
    g = torch.Generator().manual_seed(0)
    inside, outside = torch.randn(20_000, generator=g), torch.randn(20_000, generator=g) + 1
    assert auroc(inside, outside).item() == pytest.approx(0.5 * (1 + math.erf(0.5)), abs=5 * 0.003)  # Φ(1/√2), 5 s.e.


def test_a_million_scores_need_no_table_of_pairs():
    g = torch.Generator().manual_seed(0)
    inside, outside = torch.rand(10**6, generator=g), torch.rand(10**6, generator=g)
    assert auroc(inside, outside).item() == pytest.approx(0.5, abs=0.003)  # 10¹² pairs


# ---- divergence


def test_divergence_against_scipy():
    inside, outside = scores(n=500, k=300)
    edges = np.linspace(torch.cat((inside, outside)).min().item(), torch.cat((inside, outside)).max().item(), 21)
    p, q = (np.histogram(x.numpy(), edges)[0] + 0.5 for x in (inside, outside))
    oracle = entropy(p, q) + entropy(q, p)  # scipy divides by the sums
    assert oracle > 0.3
    assert symmetric_kl(inside, outside, bins=20).item() == pytest.approx(oracle)
    assert symmetric_kl(outside, inside, bins=20).item() == pytest.approx(oracle)


def test_divergence_of_two_gaussians():
    g = torch.Generator().manual_seed(0)
    inside, outside = (torch.randn(200_000, generator=g, dtype=torch.float64) + shift for shift in (0, 1))
    assert symmetric_kl(inside, outside, bins=200).item() == pytest.approx(1, rel=0.03)  # (μ − μ')² / σ²


def test_divergence_of_equal_distributions_is_its_stated_bias():
    g = torch.Generator().manual_seed(0)
    inside, outside = (torch.rand(400, n, generator=g, dtype=torch.float64) for n in (2000, 3000))
    value = symmetric_kl(inside, outside, bins=20)
    expected = 19 * (1 / 2000 + 1 / 3000)
    assert value.mean().item() == pytest.approx(expected, rel=5 * math.sqrt(2 / 19 / 400))  # 5 s.e. of a χ² mean


def test_divergence_of_disjoint_sides_is_finite_and_of_constants_zero():
    value = symmetric_kl(torch.zeros(10), torch.ones(10), bins=2).item()
    assert value == pytest.approx(2 * (10 / 11) * math.log(10.5 / 0.5))
    assert symmetric_kl(torch.full((4,), 0.3), torch.full((9,), 0.3), bins=7).item() == pytest.approx(
        sum((p - q) * math.log(p / q) for p, q in [(4.5 / 7.5, 9.5 / 12.5)] + 6 * [(0.5 / 7.5, 0.5 / 12.5)])
    )
    assert symmetric_kl(torch.zeros(5), torch.zeros(5)).item() == 0
    assert symmetric_kl(torch.tensor([0.0, math.inf]), torch.zeros(2)).isnan()


# ---- stacks, NaN, errors

SCORES = {
    "auroc": auroc,
    "aupr out": aupr,
    "aupr in": lambda i, o: aupr(i, o, "inside"),
    "fpr95 out": fpr95,
    "fpr95 in": lambda i, o: fpr95(i, o, "inside"),
    "kl": symmetric_kl,
}


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stack_scores_as_its_members(score, dtype):
    inside, outside = scores(2, 3, dtype=dtype)
    turned = inside.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    whole = score(turned, outside)
    assert whole.shape == (2, 3) and whole.dtype == dtype and whole.unique().numel() > 3
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(whole[i, j], score(inside[i, j], outside[i, j]))
    shared = score(inside[0, 0], outside)
    torch.testing.assert_close(shared[1, 2], score(inside[0, 0], outside[1, 2]))
    assert shared.shape == (2, 3)


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_a_nan_stays_with_its_member(score):
    inside, outside = scores(3)
    clean = score(inside, outside)
    inside[0, 3], outside[2, 0] = math.nan, math.nan
    value = score(inside, outside)
    assert value.isnan().tolist() == [True, False, True]
    assert value[1] == clean[1]


Z = torch.zeros(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: auroc(Z[:0], Z), r"inside of shape \(\.\.\., B\) with at least one example, got \(0,\)"),
        (lambda: auroc(Z, Z[:0]), r"outside of shape"),
        (lambda: aupr(Z, Z.long()), r"outside in float32 or float64, got torch.int64"),
        (lambda: aupr(Z, Z, "ood"), r"\"inside\" or \"outside\", got 'ood'"),
        (lambda: fpr95(Z, Z, "in"), r"\"inside\" or \"outside\", got 'in'"),
        (lambda: fpr95(Z, Z.double()), r"one dtype, got torch.float32 and torch.float64"),
        (lambda: auroc(Z.expand(2, 4), Z.expand(3, 4)), r"leading axes that match, got \(2, 4\) and \(3, 4\)"),
        (lambda: symmetric_kl(Z, Z, bins=0), r"bins of at least 1, got 0: 50"),
        (lambda: symmetric_kl(torch.tensor(0.0), Z), r"got \(\)"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
