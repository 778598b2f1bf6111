"""Root mean squared error and coverage: cases by hand, stacks against loops, errors."""

import math

import pytest
import torch

from basinet.metrics import coverage, rmse


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rmse_by_hand(dtype):
    value = rmse(torch.tensor([1.0, 2.0, 5.0], dtype=dtype), torch.tensor([1.0, 4.0, 4.0], dtype=dtype))
    assert value.dtype == dtype
    assert value.item() == pytest.approx(math.sqrt(5 / 3))


def test_rmse_over_outputs_is_one_root_of_one_mean():
    mean, targets = torch.tensor([[3.0, 0.0], [0.0, 1.0]]), torch.zeros(2, 2)
    assert rmse(mean, targets).item() == pytest.approx(math.sqrt(10 / 4))  # not the mean of the outputs' roots, 1.41


@pytest.mark.parametrize("shape", [(6,), (6, 2)])
def test_a_stack_scores_as_its_members(shape):
    g = torch.Generator().manual_seed(0)
    mean, targets = torch.randn(2, 3, *shape, generator=g), torch.randn(shape, generator=g)
    whole, inside = rmse(mean, targets), coverage(mean - 1, mean + 1, targets)
    assert whole.shape == inside.shape == (2, 3)
    assert whole.unique().numel() == 6 and inside.unique().numel() > 1
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(whole[i, j], rmse(mean[i, j], targets))
            torch.testing.assert_close(inside[i, j], coverage(mean[i, j] - 1, mean[i, j] + 1, targets))


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
        (lambda: coverage(Y, torch.ones(2, 4), Y), r"upper of the shape of lower, got \(2, 4\) and \(4,\)"),
        (lambda: coverage(Y[:3], Y[:3], Y), r"lower of shape \(\.\.\., 4\)"),
        (lambda: coverage(torch.tensor([0.0, 0.0, 0.0, 2.0]), Y + 1, Y), r"got 1 of 4 the other way round"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
