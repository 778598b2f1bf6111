"""CRPS of Gaussians and their mixtures: the definition, scoringrules, limits in closed form, grid against pairs."""

import math

import pytest
import scoringrules
import torch
from scipy.integrate import quad
from scipy.stats import norm
from torch.utils._python_dispatch import TorchDispatchMode

from basinet.metrics import crps_gaussian, crps_gaussian_mixture, spread


def draws(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def mixture(k, *shape, seed=0, dtype=torch.float64):
    """Means, standard deviations, targets and unequal weights."""
    mean, sd = draws(k, *shape, seed=seed), draws(k, *shape, seed=seed + 1).exp()
    targets, weights = 2 * draws(*shape, seed=seed + 2), draws(k, seed=seed + 3).softmax(0)
    return mean.to(dtype), sd.to(dtype), targets.to(dtype), weights.to(dtype)


def by_scoringrules(mean, sd, targets, weights=None):
    m, s = (torch.movedim(x, 0, -1).numpy() for x in (mean, sd))
    w = None if weights is None else weights.numpy()
    return torch.as_tensor(scoringrules.crps_mixnorm(targets.numpy(), m, s, w))


# ---- one Gaussian


def test_gaussian_against_scoringrules():
    mean, sd, targets, _ = mixture(1, 50)
    oracle = scoringrules.crps_normal(targets.numpy(), mean[0].numpy(), sd[0].numpy())
    torch.testing.assert_close(crps_gaussian(mean[0], sd[0], targets), torch.as_tensor(oracle))


def test_gaussian_without_spread_is_the_absolute_error():
    targets = torch.tensor([-3.0, 0.0, 1e-30, 2.5])
    torch.testing.assert_close(crps_gaussian(torch.zeros(4), torch.zeros(4), targets), targets.abs())


# ---- mixtures up to 512 components: exact


def test_mixture_against_its_definition():
    mean, sd, y, w = (t.tolist() for t in mixture(3, 1))

    def squared_gap(x):
        cdf = sum(wi * norm.cdf(x, mi[0], si[0]) for wi, mi, si in zip(w, mean, sd))
        return (cdf - (y[0] <= x)) ** 2

    oracle = quad(squared_gap, -60, y[0], epsabs=1e-11)[0] + quad(squared_gap, y[0], 60, epsabs=1e-11)[0]
    assert crps_gaussian_mixture(*mixture(3, 1)).item() == pytest.approx(oracle, abs=1e-8)


@pytest.mark.parametrize("k", [1, 2, 7, 100])
@pytest.mark.parametrize("shape", [(40,), (10, 4)])
def test_mixture_against_scoringrules(k, shape):
    mean, sd, targets, weights = mixture(k, *shape)
    value = crps_gaussian_mixture(mean, sd, targets, weights)
    assert value.shape == shape
    torch.testing.assert_close(value, by_scoringrules(mean, sd, targets, weights))
    equal = crps_gaussian_mixture(mean, sd, targets)
    torch.testing.assert_close(equal, by_scoringrules(mean, sd, targets))
    assert k == 1 or (equal - value).abs().max() > 1e-3


@pytest.mark.parametrize("k", [1, 5, 512, 513, 700])
def test_alike_components_are_one_gaussian(k):
    mean, sd, targets, _ = mixture(1, 20)
    value = crps_gaussian_mixture(mean.expand(k, -1), sd.expand(k, -1), targets)
    torch.testing.assert_close(value, crps_gaussian(mean[0], sd[0], targets), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("k", [9, 600])
def test_point_masses_are_an_ensemble(k):
    mean, targets = draws(k, 30), draws(30, seed=1)
    oracle = scoringrules.crps_ensemble(targets.numpy(), mean.T.numpy(), estimator="nrg")
    value = crps_gaussian_mixture(mean, torch.zeros_like(mean), targets)
    tolerance = 1e-12 if k == 9 else 1e-5
    torch.testing.assert_close(value, torch.as_tensor(oracle), rtol=0, atol=tolerance)


@pytest.mark.parametrize("k", [5, 600])
def test_it_scales_and_shifts_with_the_data(k):
    mean, sd, targets, weights = mixture(k, 20)
    moved = crps_gaussian_mixture(3 * mean + 7, 3 * sd, 3 * targets + 7, weights)
    torch.testing.assert_close(moved, 3 * crps_gaussian_mixture(mean, sd, targets, weights))


@pytest.mark.parametrize("k", [5, 600])
def test_a_component_of_weight_zero_does_not_count(k):
    mean, sd, targets, weights = mixture(k, 20)
    more = torch.cat((mean, 3 + mean[:1])), torch.cat((sd, sd[:1])), targets, torch.cat((weights, torch.zeros(1)))
    tolerance = 1e-12 if k == 5 else 1e-5
    torch.testing.assert_close(
        crps_gaussian_mixture(*more), crps_gaussian_mixture(mean, sd, targets, weights), rtol=0, atol=tolerance
    )


def test_exactness_ends_after_512_components():
    for k, low, high in [(512, 0, 1e-13), (513, 1e-13, 1e-4)]:
        mean, sd, targets, weights = mixture(k, 10)
        error = (crps_gaussian_mixture(mean, sd, targets, weights) - by_scoringrules(mean, sd, targets, weights)).abs()
        assert low <= error.max() < high


@pytest.mark.parametrize("k", [8, 600])
def test_float32_far_from_zero(k):
    mean, sd, targets, _ = mixture(k, 50, dtype=torch.float32)
    mean, targets = (1e4 + mean), (1e4 + targets)  # rounded to multiples of 1e-3
    value = crps_gaussian_mixture(mean, sd, targets)
    assert value.dtype == torch.float32
    oracle = by_scoringrules(mean.double(), sd.double(), targets.double()).float()
    torch.testing.assert_close(value, oracle, rtol=2e-5, atol=2e-5)


# ---- more components: the grid


def hard_mixtures(k, n):
    """Mixtures a fixed grid fails on: (mean, sd, weights)."""
    pick, ones = torch.arange(k), torch.ones(k, n, dtype=torch.float64)
    equal = torch.full((k,), 1 / k, dtype=torch.float64)
    outlier = draws(k, n)
    outlier[0] = 1000.0
    one_wide = ones.clone()
    one_wide[0] = 1e4
    sparse = (6 * draws(k, seed=9)).softmax(0)
    heavy = torch.where(pick == 3, k, 1).double()
    heavy_sd = ones.clone()
    heavy_sd[3] = 1e-5
    far = (1 - pick % 2).unsqueeze(-1) * ones
    sides = torch.where(pick % 30 == 0, 1.0, -1.0).unsqueeze(-1)
    two_atoms = torch.where(pick % 50 == 0, 1.0, torch.where(pick % 2 == 0, 0.0, 1 / 130)).double()
    return {
        "wide over means": (draws(k, n), ones, equal),
        "all alike": (0 * ones, ones, equal),
        "point masses": (draws(k, n), 0 * ones, equal),
        "repeated point masses": (draws(5, n)[pick % 5], 0 * ones, equal),
        "close point masses": (two_atoms.unsqueeze(-1).expand(k, n), 0 * ones, equal),
        "half a point, half far": (-100 * far + 0.3 * draws(1, n), 0.1 * far, equal),
        "narrow": (draws(k, n), 1e-3 * draws(k, n, seed=1).abs(), equal),
        "one diverged": (outlier, ones, equal),
        "one diverged from narrow": (1e-3 * outlier + 999 * (outlier == 1000), 1e-3 * ones, equal),
        "one very wide": (draws(k, n), one_wide, equal),
        "two tight modes": (sides + 1e-6 * draws(k, n), 1e-6 * ones, equal),
        "thirty tight modes": (draws(30, n)[pick % 30] + 1e-5 * draws(k, n, seed=1), 1e-5 * ones, equal),
        "sd over many scales": (draws(k, n), (3 * draws(k, n, seed=1)).exp(), equal),
        "heavy tails": (draws(k, n) / draws(k, n, seed=1), ones, equal),
        "sparse weights": (draws(k, n), 0.1 * ones, sparse),
        "sparse weights, point masses": (draws(k, n), 0 * ones, sparse),
        "one heavy and narrow": (draws(k, n), heavy_sd, heavy / heavy.sum()),
        "repeated with a period": (draws(64, n)[pick % 64], 1e-4 * ones, equal),
    }


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", hard_mixtures(4, 1))
def test_grid_against_pairs(name, dtype):
    mean, sd, w = hard_mixtures(600, 10)[name]
    column = w.unsqueeze(-1)
    centre = (column * mean).sum(0)
    total_sd = (column * (sd**2 + (mean - centre) ** 2)).sum(0).sqrt()
    exact, grid = spread.by_pairs(mean, sd, w), spread.by_grid(mean.to(dtype), sd.to(dtype), w.to(dtype))
    assert grid.dtype == dtype
    reach = (mean + 6 * sd).amax(0) - (mean - 6 * sd).amin(0)
    resolved = name in ("wide over means", "all alike", "one heavy and narrow", "half a point, half far")
    allowed = (1e-7 if resolved else 2e-5) * total_sd + (1e-6 if dtype == torch.float32 else 0) * reach
    assert ((grid - exact).abs() / allowed).max() < 1  # what the docstring states


@pytest.mark.parametrize("shape", [(30,), (6, 5)])
def test_six_hundred_components_against_scoringrules(shape):
    mean, sd, targets, weights = mixture(600, *shape)
    value = crps_gaussian_mixture(mean, sd, targets, weights)
    assert value.shape == shape
    torch.testing.assert_close(value, by_scoringrules(mean, sd, targets, weights), rtol=0, atol=1e-5)


def test_all_components_one_point():
    targets = torch.tensor([0.0, 2.0, 5.0])
    value = crps_gaussian_mixture(torch.full((600, 3), 2.0), torch.zeros(600, 3), targets)
    torch.testing.assert_close(value, (targets - 2).abs(), rtol=1e-5, atol=1e-6)


def test_float32_components_narrower_than_the_spacing_of_numbers():
    mean, sd = torch.full((600, 3), 1e4), torch.full((600, 3), 1e-5)  # next to 1e4 numbers are 1e-3 apart
    value = crps_gaussian_mixture(mean, sd, mean[0])
    torch.testing.assert_close(value, crps_gaussian(mean[0], sd[0], mean[0]), rtol=1e-4, atol=0)


# ---- memory, gradients, NaN


class Largest(TorchDispatchMode):
    """The most numbers in any new tensor; views of the given ones are not new."""

    def __init__(self, *given):
        super().__init__()
        self.given = {t.untyped_storage().data_ptr() for t in given}
        self.numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(t, torch.Tensor) and t.untyped_storage().data_ptr() not in self.given:
                self.numbers = max(self.numbers, t.numel())
        return out


@pytest.mark.parametrize(("k", "n"), [(100, 400), (600, 60)])
def test_memory_is_bounded_and_pieces_do_not_matter(k, n, monkeypatch):
    mean, sd, targets, weights = mixture(k, n)
    whole = crps_gaussian_mixture(mean, sd, targets, weights)
    monkeypatch.setattr(spread, "NUMBERS", 20_000)  # about half of mean
    with Largest(mean, sd, targets, weights) as largest:
        pieces = crps_gaussian_mixture(mean, sd, targets, weights)
    assert 15_000 < largest.numbers <= 20_000
    torch.testing.assert_close(pieces, whole)


def test_the_score_carries_no_gradient():
    mean, sd, targets, _ = mixture(3, 4)
    assert not crps_gaussian_mixture(mean.requires_grad_(), sd, targets).requires_grad


@pytest.mark.parametrize("k", [3, 600])
def test_a_nan_stays_with_its_element(k):
    mean, sd, targets, weights = mixture(k, 4)
    mean[1, 2] = math.nan
    assert crps_gaussian_mixture(mean, sd, targets, weights).isnan().tolist() == [False, False, True, False]


# ---- errors

M, S, Y = torch.zeros(3, 4), torch.ones(3, 4), torch.zeros(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: crps_gaussian(M[0], S, Y), r"one shape, got \(4,\), \(3, 4\) and \(4,\)"),
        (lambda: crps_gaussian(M[0], -S[0], Y), r"sd of at least 0, got -1"),
        (lambda: crps_gaussian_mixture(M[0], S[0], Y), r"mean \(K, B\) and targets \(B,\).*got \(4,\) and \(4,\)"),
        (lambda: crps_gaussian_mixture(M[:0], S[:0], Y), r"none of them empty, got \(0, 4\)"),
        (
            lambda: crps_gaussian_mixture(M, S, Y[:3]),
            r"\(K, 3\) for targets of shape \(3,\), got \(3, 4\)",
        ),
        (lambda: crps_gaussian_mixture(M, S[:, :1], Y), r"and \(3, 1\): expand a shared sd"),
        (lambda: crps_gaussian_mixture(M.unsqueeze(-1), S.unsqueeze(-1), Y), r"got \(3, 4, 1\) and \(4,\)"),
        (lambda: crps_gaussian_mixture(M, S.double(), Y), r"one dtype, got torch.float32 and torch.float64"),
        (lambda: crps_gaussian_mixture(M.long(), S.long(), Y), r"mean in float32 or float64"),
        (lambda: crps_gaussian_mixture(M, S - 2, Y), r"sd of at least 0, got -1"),
        (lambda: crps_gaussian_mixture(M, S, Y, torch.ones(4) / 4), r"weights of shape \(3,\).*got \(4,\)"),
        (lambda: crps_gaussian_mixture(M, S, Y, torch.ones(3)), r"sum to 1.*a sum of 3: divide"),
        (lambda: crps_gaussian_mixture(M, S, Y, torch.tensor([1.5, -0.5, 0.0])), r"least one of -0\.5"),
        (lambda: crps_gaussian_mixture(M, S, Y, torch.tensor([math.nan, 0.5, 0.5])), r"sum of nan"),
    ],
)
def test_errors_say_what_was_expected_and_what_came(call, message):
    with pytest.raises(ValueError, match=message):
        call()
