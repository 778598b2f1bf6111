"""Estimates of the particles' score: against densities whose score is known, their textbook form, and fixed points."""

import math

import pytest
import torch
from torch import Tensor

from basinet.repulsion.kernels import Kernel
from basinet.repulsion.scores import check_estimate, score_at, score_matrix


def normal(members: int, d: int = 1, seed: int = 0) -> Tensor:
    return torch.randn(members, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def score(word: str, x: Tensor, kernel: Kernel, ridge: float = 0.01) -> Tensor:
    seen = kernel.seen([x])
    return score_matrix(word, kernel.pairs(seen), ridge) @ seen[0]


def settled(
    word: str, kernel: Kernel, members: int, rate: float, steps: int, d: int = 1, ridge: float = 0.01
) -> Tensor:
    """Where WGD ends for the target N(0, I)."""
    x = 0.3 + 0.7 * normal(members, d)
    for _ in range(steps):
        x = x - rate * (x + score(word, x, kernel, ridge))
    return x


@pytest.mark.parametrize("kernel", [Kernel("rbf"), Kernel("rbf", 0.8), Kernel("imq", 1.3)])
def test_kde_is_the_gradient_of_the_log_of_the_density(kernel):
    x = normal(6, 3)
    h2 = kernel.bandwidth**2 if kernel.bandwidth else None
    if h2 is None:
        squares = torch.cdist(x, x).square().flatten().sort().values
        h2 = float(squares[17] + squares[18]) / 2 / (2 * math.log(7))
    shape = (lambda r: torch.exp(-r / (2 * h2))) if kernel.word == "rbf" else (lambda r: (1 + r / h2) ** -0.5)

    def log_density(y: Tensor) -> Tensor:
        return shape((y - x).square().sum(1)).sum().log()

    expected = torch.stack([torch.func.grad(log_density)(y) for y in x])
    torch.testing.assert_close(score("kde", x, kernel), expected, rtol=0, atol=1e-12)


def test_ssge_is_its_spectral_form():
    x, kernel, ridge, n = normal(8, 2), Kernel("rbf", 1.1), 0.01, 8
    k = lambda a, b: torch.exp(-(a - b).square().sum() / (2 * 1.1**2))  # noqa: E731
    matrix = torch.stack([torch.stack([k(a, b) for b in x]) for a in x])
    eigenvalues, vectors = torch.linalg.eigh(matrix + ridge * torch.eye(n, dtype=torch.float64))

    def psi(y: Tensor) -> Tensor:
        return math.sqrt(n) / eigenvalues * (vectors.T @ torch.stack([k(y, b) for b in x]))

    beta = -torch.stack([torch.func.jacrev(psi)(y) for y in x]).mean(0)  # (n, d)
    torch.testing.assert_close(
        score("ssge", x, kernel, ridge), torch.stack([psi(y) @ beta for y in x]), rtol=0, atol=1e-9
    )
    away = normal(5, 2, seed=1)
    torch.testing.assert_close(
        score_at([away], [x], kernel, ridge)[0], torch.stack([psi(y) @ beta for y in away]), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize("word", ["sge", "ssge"])
def test_stein_estimates_find_the_score_of_a_normal(word):
    x = normal(400) * 2 + 1  # its score is -(x - 1) / 4, of spread 1/2
    error = score(word, x, Kernel("rbf", 4.0), 0.1) + (x - 1) / 4
    assert float(error.square().mean().sqrt()) < 0.2 * 0.5


def test_ssge_finds_the_score_of_a_normal_away_from_the_draws():
    y = torch.linspace(-2, 4, 13, dtype=torch.float64)[:, None]
    scores = score_at([y], [normal(400) * 2 + 1], Kernel("rbf", 4.0), 0.1)[0]
    assert float((scores + (y - 1) / 4).abs().max()) < 0.2 * 0.5


@pytest.mark.parametrize("d", [1, 3])
def test_few_fresh_draws_give_the_score_on_average(d):
    y, kernel, count = normal(50, d, seed=1), Kernel("rbf", wide=True), 300
    average = torch.stack([score_at([y], [normal(10, d, seed=2 + i)], kernel, 0.1)[0] for i in range(count)]).mean(0)
    slope = -(average * y).sum() / y.square().sum()
    assert 0.75 < float(slope) < 1.25  # of a standard normal: 1


def test_sge_with_the_linear_kernel_is_the_score_of_the_normal_that_has_their_moments():
    x = normal(20, 3) @ torch.tensor([[1.0, 0.5, 0], [0, 2, 0.3], [0, 0, 0.2]], dtype=torch.float64) + 1
    expected = -(x - x.mean(0)) @ torch.linalg.inv(torch.cov(x.T, correction=0))
    torch.testing.assert_close(score("sge", x, Kernel("linear"), 1e-7), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("square", [0.3, 0.5])
def test_kde_settles_at_the_variance_less_that_of_the_kernel(square):
    particles = settled("kde", Kernel("rbf", math.sqrt(square)), 200, 0.3, 150)
    assert float(particles.var(correction=0)) == pytest.approx(1 - square, abs=0.008)  # 1 / M of it is discretisation


@pytest.mark.parametrize(
    ("members", "expected"), [(10, 0.661), (50, 0.842), pytest.param(200, 0.903, marks=pytest.mark.slow)]
)
def test_kde_with_the_median_bandwidth_settles_at_the_known_variance(members, expected):
    particles = settled("kde", Kernel("rbf"), members, 0.07, 500)
    assert float(particles.var(correction=0)) == pytest.approx(expected, abs=0.003)
    assert abs(float(particles.mean())) < 0.003


@pytest.mark.parametrize("members", [5, 20])
def test_stein_estimates_with_the_linear_kernel_settle_at_known_variances(members):
    n, ridge = members, 0.01
    once = settled("sge", Kernel("linear"), n, 0.1, 400, ridge=ridge)
    assert float(once.var(correction=0)) == pytest.approx(1 - ridge / n, abs=1e-9)
    twice = settled("ssge", Kernel("linear"), n, 0.1, 400, ridge=ridge)
    v = float(twice.var(correction=0))
    assert (n * v + ridge) ** 2 == pytest.approx(n**2 * v, rel=1e-9)


@pytest.mark.parametrize("word", ["sge", "ssge"])
@pytest.mark.parametrize("ridge", [0.0, 0.01])
@pytest.mark.parametrize("kernel", [Kernel("rbf"), Kernel("imq"), Kernel("linear")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_singular_kernel_matrix_gives_finite_scores(word, ridge, kernel, dtype):
    for scale in (1e-6, 1.0, 1e3):
        x = scale * normal(3, 4).to(dtype)[[0, 1, 1, 1, 2, 0]]  # a member three times, one twice
        scores = score(word, x, kernel, ridge)
        assert torch.isfinite(scores).all()
        if kernel.word != "linear":
            assert torch.isfinite(score(word, torch.ones_like(x), kernel, ridge)).all()
            push = score(word, torch.ones_like(x), kernel, ridge)
            assert (push == 0).all()


@pytest.mark.parametrize("word", ["kde", "sge", "ssge"])
def test_one_member_has_no_score(word):
    for kernel in (Kernel("rbf"), Kernel("imq", 0.5)):
        assert (score(word, normal(1, 3), kernel) == 0).all()


def test_bad_estimates_are_refused():
    with pytest.raises(ValueError, match=r"unknown estimate of the score 'sgge'. Did you mean"):
        check_estimate("sgge", Kernel("rbf"))
    with pytest.raises(ValueError, match="'linear' is not a density"):
        check_estimate("kde", Kernel("linear"))
