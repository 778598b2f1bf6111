"""Adaptive and classwise calibration error: by hand, torchmetrics per class, loops, stacks, NaN, errors."""

import math

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import binary_calibration_error

from basinet.metrics import adaptive_ece, classwise_ece, ece


def predictions(*lead, n=200, classes=4, seed=0, dtype=torch.float64):
    g = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (n,), generator=g)
    logits = 2 * torch.randn(*lead, n, classes, generator=g, dtype=torch.float64)
    logits = logits + 2 * torch.nn.functional.one_hot(targets, classes)
    return logits.softmax(-1).to(dtype), targets


def by_loop(probs, targets, bins, spacing):
    """The definition, one class and one bin at a time."""
    p, y = probs.numpy(), targets.numpy()
    n, classes = p.shape
    total = 0.0
    for c in range(classes):
        members = [[] for _ in range(bins)]
        for rank, b in enumerate(np.argsort(p[:, c], kind="stable")):
            by_width = next(k for k in range(bins) if p[b, c] <= (k + 1) / bins)
            members[by_width if spacing == "width" else rank * bins // n].append(b)
        for run in members:
            if run:
                total += len(run) / n * abs(p[run, c].mean() - (y[run] == c).mean())
    return total / classes


def test_classwise_by_hand():
    probs = torch.tensor([[0.7, 0.2, 0.1], [0.1, 0.6, 0.3], [0.2, 0.3, 0.5]]).double()
    targets = torch.tensor([0, 2, 2])
    # bins [0, ½] and (½, 1]: class 0: {0.1, 0.2} none, {0.7} one; class 1: {0.2, 0.3} none, {0.6} none; class 2 all low
    first, second, third = 0.3 + 0.3, 0.5 + 0.6, abs(0.9 - 2)
    assert classwise_ece(probs, targets, bins=2).item() == pytest.approx((first + second + third) / 9)


def test_classwise_sees_the_classes_below_the_top():
    probs = torch.tensor([0.5, 0.4, 0.1]).double().expand(10, 3)
    targets = torch.tensor([0] * 5 + [1] + [2] * 4)  # the top class is right half of the time
    assert ece(probs, targets).item() == pytest.approx(0)
    assert classwise_ece(probs, targets).item() == pytest.approx((0.3 + 0.3) / 3)


@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("seed", range(2))
def test_classwise_against_torchmetrics_class_by_class(seed, bins):
    probs, targets = predictions(n=500, seed=seed)
    each = [
        binary_calibration_error(probs[:, c].contiguous(), (targets == c).long(), n_bins=bins, norm="l1")
        for c in range(probs.shape[-1])
    ]
    oracle = torch.stack(each).mean()
    assert oracle > 0.01 or bins == 1
    torch.testing.assert_close(classwise_ece(probs, targets, bins=bins), oracle.double(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("spacing", ["width", "mass"])
@pytest.mark.parametrize(("n", "bins"), [(200, 15), (199, 7), (6, 15), (1, 1)])
def test_classwise_against_a_loop(n, bins, spacing):
    probs, targets = predictions(n=n, seed=5)
    oracle = by_loop(probs, targets, bins, spacing)
    assert oracle > 1e-3
    assert classwise_ece(probs, targets, bins, spacing).item() == pytest.approx(oracle)


def test_a_probability_on_an_edge_belongs_to_the_bin_below():
    probs = torch.tensor([[0.5, 0.5], [0.4, 0.6]]).double()
    # class 0: 0.5 and 0.4 share a bin and cancel, |0.9 − 1|; class 1: 0.5 below, 0.6 above
    assert classwise_ece(probs, torch.tensor([1, 0]), bins=2).item() == pytest.approx((0.1 + 0.5 + 0.6) / 4)


@pytest.mark.parametrize("bins", [1, 4, 15])
def test_adaptive_against_a_loop(bins):
    probs, targets = predictions(n=101, seed=2)
    confidence, right = probs.amax(-1).numpy(), (probs.argmax(-1) == targets).numpy()
    order = np.argsort(confidence)
    runs = [order[np.arange(101) * bins // 101 == k] for k in range(bins)]
    oracle = sum(len(r) * abs(confidence[r].mean() - right[r].mean()) for r in runs) / 101
    assert adaptive_ece(probs, targets, bins=bins).item() == pytest.approx(oracle)
    if bins > 1:
        assert adaptive_ece(probs, targets, bins=bins) != ece(probs, targets, bins=bins)


def test_perfect_and_worst_predictions():
    targets = torch.tensor([0, 1, 2, 1])
    sure = torch.nn.functional.one_hot(targets, 3).double()
    for score in (adaptive_ece, classwise_ece):
        assert score(sure, targets).item() == 0
    assert adaptive_ece(sure.roll(1, -1), targets).item() == 1
    assert classwise_ece(sure.roll(1, -1), targets).item() == pytest.approx(2 / 3)  # two of three entries are off by 1


def test_one_class_is_always_right():
    assert classwise_ece(torch.ones(3, 1), torch.zeros(3, dtype=torch.long)).item() == 0


SCORES = {
    "adaptive": adaptive_ece,
    "classwise width": classwise_ece,
    "classwise mass": lambda p, y: classwise_ece(p, y, spacing="mass"),
}


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stack_scores_as_its_members_and_nan_stays_with_its_own(score, dtype):
    probs, targets = predictions(2, 3, dtype=dtype)
    turned = probs.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    whole = score(turned, targets.to(torch.uint8))
    assert whole.shape == (2, 3) and whole.dtype == dtype and whole.unique().numel() == 6
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(whole[i, j], score(probs[i, j], targets))
    probs[1, 0, 3] = math.nan
    assert score(probs, targets).isnan().tolist() == [[False] * 3, [True, False, False]]


def test_small_probabilities_add_up_in_float32():
    probs = torch.tensor([0.9971, 0.0029]).expand(200_000, 2)
    assert classwise_ece(probs, torch.zeros(200_000, dtype=torch.long)).item() == pytest.approx(0.0029, rel=1e-3)


P, Y = torch.full((4, 3), 1 / 3), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: classwise_ece(P, Y[:3]), r"got \(4, 3\) and \(3,\)"),
        (lambda: classwise_ece(P[:0], Y[:0]), r"at least one example.*\(0, 3\)"),
        (lambda: classwise_ece(P * 9, Y), r"got values from 3 to 3: use softmax"),
        (lambda: classwise_ece(P, Y + 1), r"from 0 to 2 for 3 classes, got 1 to 3"),
        (lambda: classwise_ece(P, Y, bins=0), r"bins of at least 1, got 0"),
        (lambda: classwise_ece(P, Y, spacing="even"), r"\"width\" or \"mass\", got 'even'"),
        (lambda: adaptive_ece(P, Y, bins=0), r"bins of at least 1, got 0"),
        (lambda: adaptive_ece(P.log(), Y), r"probabilities in \[0, 1\], got"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
