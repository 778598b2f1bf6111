"""Agreement and total variation with a reference: by hand, loops, bounds, stacks, NaN, errors."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score

from basinet.metrics import agreement, total_variation


def tables(*lead, n=40, classes=4, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    return torch.randn(*lead, n, classes, generator=g, dtype=torch.float64).softmax(-1).to(dtype)


def test_by_hand():
    p = torch.tensor([[0.5, 0.3, 0.2], [0.1, 0.8, 0.1]]).double()
    q = torch.tensor([[0.2, 0.3, 0.5], [0.3, 0.6, 0.1]]).double()
    assert agreement(p, q).item() == 0.5
    assert total_variation(p, q).item() == pytest.approx((0.3 + 0.2) / 2)


def test_against_scikit_learn_and_a_loop():
    p, q = tables(), tables(seed=1)
    assert agreement(p, q).item() == pytest.approx(accuracy_score(q.argmax(-1), p.argmax(-1)))
    largest = [max(sum(max(a - b, 0) for a, b in zip(x, y)), 0) for x, y in zip(p.tolist(), q.tolist())]
    assert total_variation(p, q).item() == pytest.approx(np.mean(largest))  # their largest difference on any event


def test_bounds():
    p = tables()
    assert agreement(p, p).item() == 1 and total_variation(p, p).item() == 0
    sure = torch.eye(3)
    assert agreement(sure, sure.roll(1, 0)).item() == 0 and total_variation(sure, sure.roll(1, 0)).item() == 1


def test_ties_go_to_the_first_class_on_both_sides():
    half = torch.tensor([[0.5, 0.5]])
    assert agreement(half, torch.tensor([[0.9, 0.1]])).item() == 1
    assert agreement(torch.tensor([[0.1, 0.9]]), half).item() == 0


@pytest.mark.parametrize("score", [agreement, total_variation])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_stacks_and_nan(score, dtype):
    p, q = tables(2, 3, dtype=dtype), tables(seed=1, dtype=dtype)
    whole = score(p, q)
    assert whole.shape == (2, 3) and whole.dtype == dtype and whole.unique().numel() > 2
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(whole[i, j], score(p[i, j], q))
    torch.testing.assert_close(score(q, p), whole)
    p[1, 2, 7, 0] = math.nan
    assert score(p, q).isnan().tolist() == [[False] * 3, [False, False, True]]


P = torch.full((4, 3), 1 / 3)


@pytest.mark.parametrize("score", [agreement, total_variation])
@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (P, P[:3], r"same examples and classes, got \(4, 3\) and \(3, 3\)"),
        (P, P[:1], r"got \(4, 3\) and \(1, 3\)"),
        (P[:0], P[:0], r"probs of shape \(\.\.\., B, C\) with at least one example.*got \(0, 3\)"),
        (P, P[0], r"reference of shape.*got \(3,\)"),
        (P, P.log(), r"probabilities in \[0, 1\], got values from -1\.099"),
        (P, P.double(), r"one dtype, got torch.float32 and torch.float64"),
        (P.expand(2, 4, 3), P.expand(3, 4, 3), r"leading axes that match, got \(2, 4, 3\) and \(3, 4, 3\)"),
        (P.half(), P, r"probs in float32 or float64, got torch.float16"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(score, first, second, message):
    with pytest.raises(ValueError, match=message):
        score(first, second)
