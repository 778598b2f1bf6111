"""Diversity of members: loops, scipy and numpy, the identity over all subsets, limits, single members, errors."""

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.stats import entropy

from basinet.metrics import (
    ErrorParts,
    disagreement,
    error_correlation,
    error_parts,
    gradient_cosine,
    mean_of_pairs,
    pairwise_kl,
)


def draws(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


# ---- pairs


def test_mean_of_pairs_leaves_the_diagonal_out():
    matrix = draws(2, 4, 4)
    for i in range(2):
        oracle = np.mean([matrix[i, a, b] for a in range(4) for b in range(4) if a != b])
        assert mean_of_pairs(matrix)[i].item() == pytest.approx(oracle)


def test_disagreement_against_a_loop():
    probs = draws(4, 50, 3).softmax(-1)
    top = probs.argmax(-1).numpy()
    oracle = [[np.mean(top[i] != top[j]) for j in range(4)] for i in range(4)]
    np.testing.assert_allclose(disagreement(probs), oracle)
    assert 0.4 < mean_of_pairs(disagreement(probs)).item() < 0.9  # near 2/3 by chance


def test_disagreement_takes_the_first_of_a_tie():
    assert disagreement(torch.tensor([[[0.5, 0.5]], [[0.6, 0.4]], [[0.4, 0.6]]]))[0].tolist() == [0, 0, 1]


@pytest.mark.parametrize("symmetric", [False, True])
def test_pairwise_kl_against_scipy(symmetric):
    log_probs = (2 * draws(3, 20, 4)).log_softmax(-1)
    p = log_probs.exp().numpy()
    oracle = np.array([[entropy(p[i], p[j], axis=-1).mean() for j in range(3)] for i in range(3)])
    oracle = oracle + oracle.T if symmetric else oracle
    assert symmetric or not np.allclose(oracle, oracle.T, rtol=0.01)  # the direction does matter
    np.testing.assert_allclose(pairwise_kl(log_probs, symmetric), oracle, atol=1e-12)


def test_pairwise_kl_of_what_is_excluded():
    log_probs = torch.tensor([[[0.5, 0.5, 0.0]], [[0.25, 0.75, 0.0]], [[1.0, 0.0, 0.0]]]).double().log()
    first = 0.5 * math.log(2) + 0.5 * math.log(2 / 3)
    matrix = pairwise_kl(log_probs)
    assert matrix[0].tolist() == pytest.approx([0, first, math.inf])
    assert matrix[2].tolist() == pytest.approx([math.log(2), math.log(4), 0])


def test_pairwise_kl_where_a_probability_underflows():
    log_probs = torch.tensor([[[0.0, -1000.0]], [[0.0, -math.inf]]])
    assert pairwise_kl(log_probs).tolist() == [[0, 0], [0, 0]]


def test_pairwise_kl_of_close_members_keeps_its_digits_in_float32():
    logits = draws(1, 200, 10)
    near = torch.cat((logits, logits + 1e-2 * draws(1, 200, 10, seed=1))).log_softmax(-1)
    exact, single = pairwise_kl(near)[0, 1].item(), pairwise_kl(near.float())[0, 1].item()
    assert exact < 1e-4
    assert single == pytest.approx(exact, rel=0.01)


# ---- errors


def test_error_correlation_against_numpy():
    errors = draws(4, 30) + draws(30, seed=1)
    np.testing.assert_allclose(error_correlation(errors), np.corrcoef(errors.numpy()), atol=1e-12)


def test_error_correlation_of_right_and_wrong_is_the_phi_coefficient():
    wrong = torch.tensor([[1.0, 1.0, 0.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0, 1.0]])
    both, first, second, neither = 1, 1, 1, 2
    phi = (both * neither - first * second) / math.sqrt(2 * 3 * 2 * 3)
    assert error_correlation(wrong)[0, 1].item() == pytest.approx(phi)


def test_error_correlation_does_not_depend_on_scale_and_shift():
    errors = draws(3, 40)
    moved = errors * torch.tensor([[1e-200], [1.0], [1e200]], dtype=torch.float64) + torch.tensor([[0.0], [5.0], [0.0]])
    torch.testing.assert_close(error_correlation(moved), error_correlation(errors))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("constant", [0.0, 0.1, 1.0])
def test_equal_errors_have_no_correlation(constant, dtype):
    errors = draws(3, 7, dtype=dtype)
    errors[1] = constant  # the mean of seven times 0.1 is not 0.1 after rounding
    assert error_correlation(errors).isnan().tolist() == [[False, True, False], [True] * 3, [False, True, False]]


def test_parts_give_the_error_of_every_size_of_ensemble_exactly():
    residuals = draws(6, 25) + 0.7 * draws(25, seed=1) + 0.3  # shared errors and bias
    parts = error_parts(residuals)
    for n in range(1, 7):
        chosen = [residuals[list(c)].mean(0).square().mean() for c in combinations(range(6), n)]
        torch.testing.assert_close(parts.at(n), torch.stack(chosen).mean())
    assert 0.2 < parts.c < parts.v


def test_parts_against_loops():
    r = draws(4, 15).numpy()
    v = np.mean([r[i] @ r[i] for i in range(4)]) / 15
    c = np.mean([r[i] @ r[j] for i in range(4) for j in range(4) if i != j]) / 15
    parts = error_parts(torch.as_tensor(r))
    assert (parts.v.item(), parts.c.item()) == (pytest.approx(v), pytest.approx(c))


def test_parts_of_equicorrelated_gaussians():
    shared, own = draws(1, 100_000), draws(5, 100_000, seed=1)
    parts = error_parts(math.sqrt(0.4) * shared + math.sqrt(0.6) * own)
    assert parts.v.item() == pytest.approx(1, abs=0.03)
    assert parts.c.item() == pytest.approx(0.4, abs=0.015)  # 5 standard errors of shared² and of the products
    assert parts.at(10**9).item() == pytest.approx(parts.c.item(), rel=1e-6)


def test_parts_of_equal_members_gain_nothing():
    parts = error_parts(draws(1, 40).expand(5, 40))
    torch.testing.assert_close(parts.c, parts.v)
    torch.testing.assert_close(parts.at(7), parts.v)


# ---- gradients


@pytest.mark.parametrize("event", [(4,), (2, 3, 3), (1,)])
def test_gradient_cosine_against_torch(event):
    g = draws(3, 10, *event)
    flat = g.flatten(2)
    oracle = torch.cosine_similarity(flat.unsqueeze(0), flat.unsqueeze(1), dim=-1).mean(-1)
    torch.testing.assert_close(gradient_cosine(g), oracle)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradient_cosine_does_not_depend_on_scale(dtype):
    g = draws(3, 10, 4, dtype=dtype)
    scale = torch.tensor([1e-30, 1.0, 1e30], dtype=dtype).reshape(3, 1, 1)  # squares vanish and overflow in float32
    torch.testing.assert_close(gradient_cosine(g * scale), gradient_cosine(g))


def test_a_zero_gradient_counts_nothing():
    g = torch.tensor([[[1.0, 0.0], [1.0, 0.0]], [[0.0, 0.0], [2.0, 0.0]]])
    assert gradient_cosine(g).tolist() == [[1.0, 0.5], [0.5, 0.5]]


# ---- stacks, NaN, single members, errors

PAIRS = {
    "disagreement": (disagreement, (5, 40, 3)),
    "kl": (lambda x: pairwise_kl(x.log_softmax(-1)), (5, 40, 3)),
    "symmetric kl": (lambda x: pairwise_kl(x.log_softmax(-1), symmetric=True), (5, 40, 3)),
    "correlation": (error_correlation, (5, 40)),
}


@pytest.mark.parametrize(("score", "shape"), PAIRS.values(), ids=PAIRS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stack_of_ensembles_scores_as_each(score, shape, dtype):
    values = draws(2, 3, *shape, dtype=dtype)
    whole = score(values)
    assert whole.shape == (2, 3, 5, 5) and whole.dtype == dtype
    assert mean_of_pairs(whole).shape == (2, 3) and mean_of_pairs(whole).unique().numel() > 3
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(whole[i, j], score(values[i, j]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stack_of_ensembles_has_parts_as_each(dtype):
    values = draws(2, 3, 5, 40, dtype=dtype)
    whole = error_parts(values)
    assert isinstance(whole, ErrorParts) and whole.v.shape == (2, 3) and whole.c.dtype == dtype
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(whole.at(3)[i, j], error_parts(values[i, j]).at(3))


@pytest.mark.parametrize(
    ("score", "shape"), [*PAIRS.values(), (gradient_cosine, (5, 40, 3))], ids=[*PAIRS, "gradients"]
)
def test_a_nan_stays_with_its_member(score, shape):
    values = draws(*shape)
    clean = score(values)
    values[2, 17] = math.nan
    broken = score(values)
    kept = [0, 1, 3, 4]
    torch.testing.assert_close(broken[kept][:, kept], clean[kept][:, kept])
    assert bool(broken[2].isnan().all()) and bool(broken[:, 2].isnan().all())


@pytest.mark.parametrize(
    ("score", "shape"), [*PAIRS.values(), (gradient_cosine, (5, 40, 3))], ids=[*PAIRS, "gradients"]
)
def test_a_single_member_has_itself_and_no_pairs(score, shape):
    matrix = score(draws(1, *shape[1:]))
    assert matrix.shape == (1, 1)
    assert matrix.item() == pytest.approx(1 if score in (error_correlation, gradient_cosine) else 0)
    with pytest.raises(ValueError, match=r"at least 2 members, got 1: one member alone has no pairs"):
        mean_of_pairs(matrix)


P = torch.full((2, 4, 3), 1 / 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mean_of_pairs(P), r"matrix of pairs \(\.\.\., M, M\), got \(2, 4, 3\)"),
        (lambda: disagreement(P[0]), r"probs of shape \(\.\.\., M, B, C\).*got \(4, 3\)"),
        (lambda: disagreement(P[:0]), r"a member.*got \(0, 4, 3\)"),
        (lambda: disagreement(P[:, :0]), r"got \(2, 0, 3\)"),
        (lambda: pairwise_kl(P), r"log-probabilities, which are at most 0, got 0\.3333"),
        (lambda: pairwise_kl(P.half().log()), r"float32 or float64, got torch.float16"),
        (lambda: error_correlation(P[0, 0]), r"errors of shape \(\.\.\., M, B\).*got \(3,\)"),
        (lambda: error_correlation(P > 0), r"errors in float32 or float64, got torch.bool"),
        (lambda: error_parts(P[:, :, :0]), r"residuals of shape.*got \(2, 4, 0\)"),
        (lambda: error_parts(P[0, :1]), r"at least 2 members, got 1"),
        (lambda: error_parts(P[0]).at(0), r"at least 1 member, got 0"),
        (lambda: gradient_cosine(P[0]), r"gradients of shape \(M, B, \.\.\.\).*got \(4, 3\)"),
        (lambda: gradient_cosine(P[:, :0]), r"got \(2, 0, 3\)"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
