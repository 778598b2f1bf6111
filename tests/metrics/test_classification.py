"""Class scores: cases by hand, scikit-learn and torchmetrics as oracles, stacks against loops, bin edges, errors."""

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import accuracy_score, log_loss
from torchmetrics.functional.classification import multiclass_calibration_error

from basinet.metrics import Reliability, accuracy, brier, ece, nll, reliability

DTYPES = [torch.float32, torch.float64]


def predictions(*lead, n=200, classes=5, seed=0, dtype=torch.float64):
    """Over-confident probabilities that know something, and targets."""
    g = torch.Generator().manual_seed(seed)
    targets = torch.randint(classes, (n,), generator=g)
    logits = 2 * torch.randn(*lead, n, classes, generator=g, dtype=torch.float64)
    logits = logits + 2 * torch.nn.functional.one_hot(targets, classes)
    return logits.softmax(-1).to(dtype), targets


def two_classes(*confidences, dtype=torch.float64):
    """Class 0 with the given probabilities (at least ½), so that they are the confidences."""
    p = torch.tensor(confidences, dtype=dtype)
    return torch.stack((p, 1 - p), -1)


# ---- by hand


def test_nll_by_hand():
    log_probs = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]]).double().log()
    value = nll(log_probs, torch.tensor([1, 0]))
    assert value.item() == pytest.approx((math.log(4) + math.log(10)) / 2, rel=1e-7)


def test_nll_of_the_impossible_is_infinite():
    assert nll(torch.tensor([[0.0, -math.inf]]), torch.tensor([1])).item() == math.inf
    assert nll(torch.tensor([[0.0, -math.inf]]), torch.tensor([0])).item() == 0


def test_brier_by_hand():
    probs = torch.tensor([[0.5, 0.3, 0.2], [0.0, 1.0, 0.0]]).double()
    first = 0.25 + 0.09 + 0.04 - 2 * 0.3 + 1  # target 1
    assert brier(probs, torch.tensor([1, 0])).item() == pytest.approx((first + 2) / 2)  # sure of a wrong class: 2


def test_accuracy_by_hand_takes_the_first_of_a_tie():
    probs = two_classes(0.5, 0.9, 0.5)
    assert accuracy(probs, torch.tensor([0, 1, 1])).item() == pytest.approx(1 / 3)


def test_ece_by_hand():
    probs = two_classes(0.6, 0.65, 0.95, 0.99, 1.0)
    targets = torch.tensor([0, 1, 0, 0, 1])
    lower, upper = abs(0.625 - 0.5), abs((0.95 + 0.99 + 1) / 3 - 2 / 3)  # bins (0.5, 0.75] and (0.75, 1]
    assert ece(probs, targets, bins=4).item() == pytest.approx(0.4 * lower + 0.6 * upper)


def test_ece_weights_are_relative_to_the_bins_kept():
    probs, targets = two_classes(0.6, 0.65, 0.95, 0.99, 1.0), torch.tensor([0, 1, 0, 0, 1])
    upper = (0.95 + 0.99 + 1) / 3 - 2 / 3
    assert ece(probs, targets, bins=4, min_count=3).item() == pytest.approx(upper)
    assert ece(probs, targets, bins=4, min_count=2) == ece(probs, targets, bins=4)
    assert ece(probs, targets, bins=4, min_count=4).isnan()


def test_reliability_by_hand_leaves_empty_bins_nan():
    curve = reliability(two_classes(0.6, 0.65, 0.95), torch.tensor([0, 1, 0]), bins=4)
    assert isinstance(curve, Reliability)
    assert curve.count.tolist() == [0, 0, 2, 1]
    torch.testing.assert_close(
        curve.confidence, torch.tensor([math.nan, math.nan, 0.625, 0.95]).double(), equal_nan=True
    )
    torch.testing.assert_close(curve.accuracy, torch.tensor([math.nan, math.nan, 0.5, 1.0]).double(), equal_nan=True)


# ---- edges of bins


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bins", [2, 3, 5, 10, 15, 20, 100])
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(bins, dtype):
    edges = [k / bins for k in range(1, bins + 1) if 2 * k >= bins]  # the last is exactly 1
    for k, edge in zip(range(bins - len(edges), bins), edges):
        count = reliability(two_classes(edge, dtype=dtype), torch.tensor([0]), bins=bins).count
        assert count.nonzero().tolist() == [[k]]


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_confidence_just_above_an_edge_belongs_to_the_bin_above(dtype):
    edge = torch.tensor(0.6, dtype=dtype)
    above = torch.nextafter(edge, torch.ones_like(edge))
    probs = torch.stack((above, 1 - above)).unsqueeze(0)
    assert reliability(probs, torch.tensor([0]), bins=5).count.tolist() == [0, 0, 0, 1, 0]


def test_certainty_shares_the_last_bin():
    probs, targets = two_classes(1.0, 0.95, 1.0), torch.tensor([1, 0, 0])
    assert reliability(probs, targets).count.tolist() == [0] * 14 + [3]
    assert ece(probs, targets).item() == pytest.approx(2.95 / 3 - 2 / 3)  # bins of their own would give 0.35


def test_one_bin_is_confidence_against_accuracy():
    probs, targets = predictions()
    gap = (probs.amax(-1).mean() - accuracy(probs, targets)).abs()
    for spacing in ("width", "mass"):
        torch.testing.assert_close(ece(probs, targets, bins=1, spacing=spacing), gap)


# ---- oracles


@pytest.mark.parametrize("seed", range(3))
def test_against_scikit_learn(seed):
    probs, targets = predictions(seed=seed)
    p, y = probs.numpy(), targets.numpy()
    assert nll(probs.log(), targets).item() == pytest.approx(log_loss(y, p, labels=list(range(5))))
    assert accuracy(probs, targets).item() == pytest.approx(accuracy_score(y, p.argmax(-1)))
    by_hand = np.mean([sum((p[b, c] - (y[b] == c)) ** 2 for c in range(5)) for b in range(len(y))])
    assert brier(probs, targets).item() == pytest.approx(by_hand)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bins", [1, 10, 15])
@pytest.mark.parametrize("seed", range(3))
def test_ece_against_torchmetrics(seed, bins, dtype):
    probs, targets = predictions(seed=seed, n=500, dtype=dtype)
    oracle = multiclass_calibration_error(probs, targets, num_classes=5, n_bins=bins, norm="l1").to(dtype)
    assert oracle > 0.01  # else any zero would pass
    torch.testing.assert_close(ece(probs, targets, bins=bins), oracle, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("n", [200, 199, 15, 7])
@pytest.mark.parametrize("bins", [1, 4, 15])
def test_equal_mass_against_a_loop(n, bins):
    probs, targets = predictions(n=n, seed=3)
    confidence, correct = probs.amax(-1).numpy(), (probs.argmax(-1) == targets).numpy()
    runs = [[] for _ in range(bins)]
    for rank, b in enumerate(np.argsort(confidence)):
        runs[math.floor(rank / n * bins + 1e-9)].append(b)
    gaps = [abs(confidence[run].mean() - correct[run].mean()) * len(run) / n for run in runs if run]
    curve = reliability(probs, targets, bins=bins, spacing="mass")
    assert curve.count.tolist() == [len(run) for run in runs]
    assert curve.count.max() - curve.count.min() <= 1
    assert ece(probs, targets, bins=bins, spacing="mass").item() == pytest.approx(sum(gaps))


def test_equal_mass_differs_from_equal_width():
    probs, targets = predictions()
    assert (ece(probs, targets, spacing="mass") - ece(probs, targets)).abs() > 1e-4


def test_equal_mass_keeps_the_order_of_the_data_among_ties():
    probs = two_classes(0.8, 0.8, 0.8, 0.8)
    curve = reliability(probs, torch.tensor([0, 0, 1, 1]), bins=2, spacing="mass")
    assert curve.accuracy.tolist() == [1.0, 0.0]


def test_many_confident_examples_add_up_in_float32():
    probs = torch.tensor([0.9971, 0.0029]).expand(200_000, 2)
    assert ece(probs, torch.zeros(200_000, dtype=torch.long)).item() == pytest.approx(0.0029, rel=1e-3)


# ---- leading axes, dtypes, targets of any integer type

SCORES = {
    "nll": lambda p, y: nll(p.log(), y),
    "brier": brier,
    "accuracy": accuracy,
    "ece width": ece,
    "ece mass": lambda p, y: ece(p, y, spacing="mass"),
    "ece min_count": lambda p, y: ece(p, y, min_count=12),
}


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_stack_scores_as_its_members(score, dtype):
    probs, targets = predictions(2, 3, dtype=dtype)
    whole = score(probs, targets)
    assert whole.shape == (2, 3)
    assert whole.dtype == dtype
    assert whole.unique().numel() > 3  # the members do differ
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(whole[i, j], score(probs[i, j], targets))


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_strides_and_integer_types_do_not_matter(score):
    probs, targets = predictions(2, 3)
    turned = probs.permute(2, 3, 0, 1).contiguous().permute(2, 3, 0, 1)
    assert not turned.is_contiguous()
    torch.testing.assert_close(score(turned, targets.to(torch.uint8)), score(probs, targets))


@pytest.mark.parametrize("score", SCORES.values(), ids=SCORES)
def test_a_nan_stays_with_its_member(score):
    probs, targets = predictions(3)
    broken = probs.clone()
    broken[1, 17] = math.nan
    value, clean = score(broken, targets), score(probs, targets)
    assert value.isnan().tolist() == [False, True, False]
    torch.testing.assert_close(value[::2], clean[::2])


def test_a_nan_is_not_left_out_with_its_bin():
    probs = two_classes(0.6, 0.6, math.nan)
    assert ece(probs, torch.tensor([0, 0, 0]), min_count=2).isnan()


@pytest.mark.parametrize("spacing", ["width", "mass"])
def test_reliability_of_a_stack(spacing):
    probs, targets = predictions(2, 3)
    whole = reliability(probs, targets, bins=4, spacing=spacing)
    for i in range(2):
        one = reliability(probs[i, 1], targets, bins=4, spacing=spacing)
        for field, expected in zip(whole, one):
            torch.testing.assert_close(field[i, 1], expected, equal_nan=True)


# ---- errors

P, Y = torch.full((4, 3), 1 / 3), torch.tensor([0, 1, 2, 0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: brier(P[0], Y), r"\(\.\.\., B, C\).*got \(3,\) and \(4,\)"),
        (lambda: brier(P, Y[:3]), r"got \(4, 3\) and \(3,\)"),
        (lambda: accuracy(P, Y.unsqueeze(-1)), r"targets of shape \(B,\).*\(4, 1\)"),
        (lambda: nll(P.T.log(), Y), r"classes on the last axis"),
        (lambda: accuracy(P[:0], Y[:0]), r"at least one example.*\(0, 3\)"),
        (lambda: ece(P.half(), Y), r"float32 or float64, got torch.float16"),
        (lambda: ece(P, Y.float()), r"integer class indices, got torch.float32"),
        (lambda: accuracy(P, Y > 0), r"integer class indices, got torch.bool"),
        (lambda: nll(P.log(), Y + 1), r"from 0 to 2 for 3 classes, got 1 to 3"),
        (lambda: brier(P, Y - 1), r"got -1 to 1"),
        (lambda: nll(P, Y), r"log-probabilities, which are at most 0, got 0\.3333"),
        (lambda: brier(P.log(), Y), r"probabilities in \[0, 1\], got values from -1\.099"),
        (lambda: ece(P * 9, Y), r"got values from 3 to 3: use softmax"),
        (lambda: ece(P, Y, bins=0), r"bins of at least 1, got 0"),
        (lambda: reliability(P, Y, bins=-1), r"bins of at least 1, got -1"),
        (lambda: ece(P, Y, min_count=0), r"min_count of at least 1, got 0"),
        (lambda: ece(P, Y, spacing="equal"), r"\"width\" or \"mass\", got 'equal'"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
