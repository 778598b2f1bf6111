"""Predictions of counts, and of real numbers that are not normal, against scipy; draws within 4.5 standard errors."""

import math

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from basinet.core.noise import Noise
from basinet.predict import CountPredictive, RealPredictive, crps
from basinet.problem.likelihoods import Gaussian, Heteroscedastic, Poisson, StudentT

Z = 4.5
D = torch.float64


def counts(rates, inputs: int = 1, weights=None) -> CountPredictive:
    log_rates = torch.tensor(rates, dtype=D).log()
    outputs = log_rates.reshape(*log_rates.shape, 1, 1).expand(*log_rates.shape, inputs, 1)
    return CountPredictive(outputs, Poisson(), {}, None if weights is None else torch.tensor(weights).double())


def student(locs, scales, df: float, inputs: int) -> RealPredictive:
    m = len(locs)
    outputs = torch.tensor(locs, dtype=D).reshape(m, 1, 1, 1).expand(m, 1, inputs, 1)
    log_scale = torch.tensor(scales, dtype=D).log().reshape(m, 1)
    return RealPredictive(outputs, StudentT(df=df, learned=True), {"log_scale": log_scale})


def test_moments_by_hand_of_two_members_with_two_samples():
    predictive = counts([[1, 3], [5, 9]])
    assert float(predictive.mean) == pytest.approx(4.5)
    assert float(predictive.aleatoric) == pytest.approx(4.5)  # the mean of the rates
    assert float(predictive.between) == pytest.approx(2.5**2)
    assert float(predictive.within) == pytest.approx((1 + 4) / 2)
    assert float(predictive.variance) == pytest.approx(4.5 + 6.25 + 2.5)


def test_probabilities_and_quantiles_are_those_of_the_mixture():
    predictive = counts([[2.0, 40.0], [0.1, 7.0]], weights=[[1, 2], [3, 0]])
    k = np.arange(200)
    mixture = (stats.poisson.pmf(k, 2) + 2 * stats.poisson.pmf(k, 40) + 3 * stats.poisson.pmf(k, 0.1)) / 6
    for value in (0, 3, 45):
        log_prob = predictive.log_prob(torch.tensor([value]))
        assert float(log_prob) == pytest.approx(math.log(mixture[value]), rel=1e-9)
        assert float(predictive.cdf(torch.tensor([float(value)]))) == pytest.approx(
            mixture[: value + 1].sum(), rel=1e-9
        )
    for q in (1e-4, 0.05, 0.45, 0.6, 0.7, 0.95, 0.9999):
        assert float(predictive.quantile(q)) == float(np.searchsorted(mixture.cumsum(), q))
    low, high = predictive.interval(0.9)
    assert mixture[int(low) : int(high) + 1].sum() >= 0.9


def test_draws_are_counts_with_the_moments_of_the_mixture():
    predictive, n = counts([[2.0, 40.0], [0.1, 7.0]], inputs=3), 20_000
    drawn = predictive.sample(n)
    assert drawn.shape == (n, 3, 1) and torch.equal(drawn, drawn.floor()) and float(drawn.min()) == 0
    z = (drawn.mean(0) - predictive.mean) / (predictive.variance / n).sqrt()
    assert float(z.abs().max()) < Z
    squares = (drawn - predictive.mean).square()
    assert float(((squares.mean(0) - predictive.variance) / (squares.std(0) / math.sqrt(n))).abs().max()) < Z


def test_the_torch_mixture_of_counts_agrees():
    predictive = counts([[2.0, 40.0], [0.1, 7.0]], inputs=3)
    other, y = predictive.to_distribution(), torch.tensor([[0.0], [3.0], [50.0]], dtype=D)
    torch.testing.assert_close(other.log_prob(y)[:, 0], predictive.log_prob(y))
    torch.testing.assert_close(other.mean, predictive.mean)
    torch.testing.assert_close(other.variance, predictive.variance)
    torch.testing.assert_close(other.cdf(y), predictive.cdf(y))


def test_mixtures_of_student_t_have_the_moments_quantiles_and_draws_of_scipy():
    predictive, n = student([0.0, 3.0], [1.0, 0.2], 5.0, 1), 20_000
    parts = [stats.t(5.0, loc=0, scale=1), stats.t(5.0, loc=3, scale=0.2)]
    assert float(predictive.aleatoric) == pytest.approx(np.mean([p.var() for p in parts]))
    assert float(predictive.between) == pytest.approx(2.25)
    for q in (0.001, 0.3, 0.8, 0.999):
        x = float(predictive.quantile(q))
        assert np.mean([p.cdf(x) for p in parts]) == pytest.approx(q, rel=1e-9)
    drawn = predictive.sample(n)[:, 0, 0].numpy()
    assert stats.kstest(drawn, lambda x: (parts[0].cdf(x) + parts[1].cdf(x)) / 2).pvalue > 1e-4
    torch.testing.assert_close(
        predictive.to_distribution().cdf(torch.ones(1, 1, dtype=D)), predictive.cdf(torch.ones(1))
    )


def test_heteroscedastic_predictions_have_half_as_many_numbers_as_outputs():
    outputs = Noise.seed(2).normal(torch.empty(2, 3, 5, 4, dtype=D))
    predictive = RealPredictive(outputs, Heteroscedastic(floor=0.1))
    mean, sd = outputs[..., :2], torch.nn.functional.softplus(outputs[..., 2:]) + 0.1
    assert predictive.mean.shape == predictive.quantile(0.3).shape == predictive.sample(7).shape[1:] == (5, 2)
    torch.testing.assert_close(predictive.mean, mean.mean((0, 1)))
    torch.testing.assert_close(predictive.aleatoric, sd.square().mean((0, 1)))
    torch.testing.assert_close(
        predictive.variance, (sd.square() + mean.square()).mean((0, 1)) - predictive.mean.square()
    )
    y = torch.zeros(5, 2, dtype=D)
    density = torch.distributions.Normal(mean, sd).log_prob(y).sum(-1).exp().mean((0, 1))
    torch.testing.assert_close(predictive.log_prob(y), density.log())
    torch.testing.assert_close(predictive.to_distribution().variance, predictive.variance)


def by_quadrature(cdf, y: float, edges: list[float]) -> float:
    points = sorted({*edges, y})
    pieces = zip([-np.inf, *points], [*points, np.inf])
    return sum(integrate.quad(lambda x: (cdf(x) - (x >= y)) ** 2, a, b, epsabs=1e-12, limit=300)[0] for a, b in pieces)


@pytest.mark.parametrize("df", [2.1, 5.0])
@pytest.mark.parametrize(("locs", "scales"), [([0.0], [1.0]), ([0.0, 1.0], [1.0, 0.5]), ([-50, 0, 50], [0.01, 1, 3])])
def test_the_integrated_crps_is_within_its_stated_error(locs, scales, df):
    y = torch.tensor([0.0, 0.3, -60.0, 300.0], dtype=D)
    predictive = student(locs, scales, df, len(y))

    def cdf(x):
        return np.mean([stats.t.cdf((x - m) / s, df) for m, s in zip(locs, scales)])

    edges = [m + s * z for m, s in zip(locs, scales) for z in (-300, -30, -3, 0, 3, 30, 300)]
    expected = torch.tensor([by_quadrature(cdf, float(v), edges) for v in y], dtype=D)
    off = (crps(predictive, y)[:, 0] - expected).abs()
    assert bool((off < 1e-4 * predictive.variance[:, 0].sqrt() + 2e-6 * expected).all())


def test_the_integrated_crps_tends_to_that_of_a_normal():
    outputs = Noise.seed(2).normal(torch.empty(2, 3, 5, 1, dtype=D))
    y = Noise.seed(3).normal(torch.empty(5, 1, dtype=D))
    wide = RealPredictive(outputs, StudentT(df=1e4, scale=0.5))
    closed = crps(RealPredictive(outputs, Gaussian(noise=0.5)), y)
    torch.testing.assert_close(crps(wide, y), closed, rtol=2e-4, atol=1e-5)
    single = crps(RealPredictive(outputs.float(), StudentT(df=5.0)), y.float())
    assert single.dtype == torch.float32
    torch.testing.assert_close(
        single.double(), crps(RealPredictive(outputs, StudentT(df=5.0)), y), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("rates", "exact"), [([3.0], True), ([0.01, 5.0], True), ([30.0, 1e5], False), ([3e3, 4e3], False)]
)
def test_the_crps_of_counts_is_the_sum(rates, exact):
    y = torch.tensor([0, 3, 220, 3500])
    predictive = counts([[r] for r in rates], inputs=4)
    k = np.arange(int(max(rates) + 9 * max(rates) ** 0.5 + 4000))
    f = np.mean([stats.poisson.cdf(k, r) for r in rates], 0)
    expected = torch.tensor([((f - (k >= int(v))) ** 2).sum() for v in y], dtype=D)
    off = (crps(predictive, y)[:, 0] - expected).abs()
    assert bool((off < (1e-9 if exact else 1e-4 * predictive.variance[:, 0].sqrt()) + 2e-6 * expected).all())
