"""Errors of point predictions, coverage and width of intervals: cases by hand, stacks against loops, errors."""

import math

import pytest
import torch
from sklearn.metrics import mean_absolute_error

from basinet.metrics import coverage, interval_width, mae, rmse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rmse_by_hand(dtype):
    value = rmse(torch.tensor([1.0, 2.0, 5.0], dtype=dtype), torch.tensor([1.0, 4.0, 4.0], dtype=dtype))
    assert value.dtype == dtype
    assert value.item() == pytest.approx(math.sqrt(5 / 3))


def test_rmse_over_outputs_is_one_root_of_one_mean():
    mean, targets = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 2)
    assert rmse(mean, targets).item() == pytest.approx(math.sqrt(10 / 4))  # not the mean of the outputs' roots, 1.41


def test_mae_against_scikit_learn():
    g = torch.Generator().manual_seed(0)
    mean, targets = torch.randn(30, 2, generator=g), torch.randn(30, 2, generator=g)
    assert mae(mean, targets).item() == pytest.approx(mean_absolute_error(targets, mean), rel=1e-6)
    assert mae(torch.tensor([1.0, 2.0, 5.0]), torch.tensor([1.0, 4.0, 4.0])).item() == pytest.approx(1)


def test_width_by_hand():
    lower, upper = torch.tensor([[0.0, -1.0], [2.0, 0.0]]), torch.tensor([[1.0, 1.0], [2.0, 5.0]])
    assert interval_width(lower, upper, torch.zeros(2)).tolist() == [1.5, 2.5]
    assert interval_width(lower, upper, torch.zeros(2, 2)).item() == 2  # both axes belong to the targets
    assert interval_width(lower, upper.fill_(math.inf), torch.zeros(2)).tolist() == [math.inf] * 2


@pytest.mark.parametrize("shape", [(6,), (6, 2)])
def test_a_stack_scores_as_its_members(shape):
    g = torch.Generator().manual_seed(0)
    mean, targets = torch.randn(2, 3, *shape, generator=g), torch.randn(shape, generator=g)
    width = torch.rand(2, 3, *shape, generator=g)
    scores = {
        "rmse": lambda m, w: rmse(m, targets),
        "mae": lambda m, w: mae(m, targets),
        "coverage": lambda m, w: coverage(m - 1, m + w, targets),
        "width": lambda m, w: interval_width(m - 1, m + w, targets),
    }
    for score in scores.values():
        whole = score(mean, width)
        assert whole.shape == (2, 3) and whole.unique().numel() > 1
        for i in range(2):
            for j in range(3):
                torch.testing.assert_close(whole[i, j], score(mean[i, j], width[i, j]))


def test_a_nan_stays_with_its_member():
    mean, targets = torch.zeros(3, 4), torch.zeros(4)
    broken = mean.clone()
    broken[1, 2] = math.nan
    for score in (
        rmse(broken, targets),
        mae(broken, targets),
        coverage(broken, mean + 1, targets),
        coverage(mean - 1, broken, targets),
        interval_width(broken, mean + 1, targets),
    ):
        assert score.isnan().tolist() == [False, True, False]


def test_coverage_includes_both_ends():
    targets = torch.tensor([-1.0, 0.0, 0.5, 1.0, 1.5])
    assert coverage(torch.zeros(5), torch.ones(5), targets).item() == pytest.approx(3 / 5)


def test_coverage_of_a_gaussian_interval():
    targets = torch.randn(40_000, generator=torch.Generator().manual_seed(0))
    half = torch.full_like(targets, 1.6448536)
    share = coverage(-half, half, targets).item()
    assert abs(share - 0.9) < 5 * math.sqrt(0.9 * 0.1 / 40_000)  # five standard errors


Y = torch.zeros(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rmse(torch.zeros(4, 1), Y), r"mean of shape \(\.\.\., 4\).*got \(4, 1\)"),
        (lambda: rmse(torch.zeros(1), Y), r"got \(1,\)"),
        (lambda: rmse(torch.zeros(3, 4), Y.unsqueeze(-1)), r"\(\.\.\., 4, 1\) for targets of shape \(4, 1\)"),
        (lambda: rmse(torch.tensor(1.0), torch.tensor(1.0)), r"targets of shape \(B,\) or \(B, D\).*got \(\)"),
        (lambda: rmse(Y[:0], Y[:0]), r"at least one element, got \(0,\)"),
        (lambda: rmse(Y.long(), Y), r"mean in float32 or float64, got torch.int64"),
        (lambda: mae(torch.zeros(4, 1), Y), r"mean of shape \(\.\.\., 4\).*got \(4, 1\)"),
        (lambda: mae(Y[:0], Y[:0]), r"at least one element, got \(0,\)"),
        (lambda: interval_width(Y[:3], Y[:3], Y), r"lower of shape \(\.\.\., 4\)"),
        (lambda: interval_width(Y, Y - 1, Y), r"got 4 of 4 the other way round"),
        (lambda: coverage(Y, torch.ones(2, 4), Y), r"upper of the shape of lower, got \(2, 4\) and \(4,\)"),
        (lambda: coverage(Y[:3], Y[:3], Y), r"lower of shape \(\.\.\., 4\)"),
        (lambda: coverage(torch.tensor([0.0, 0.0, 0.0, 2.0]), Y + 1, Y), r"got 1 of 4 the other way round"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
