"""Predictions of real numbers on outputs made by hand, against scipy. Moments of draws within 4.5 standard errors."""

import math

import pytest
import torch
from scipy import stats
from scipy.optimize import brentq

from basinet.core.noise import Noise
from basinet.predict import RealPredictive
from basinet.problem.likelihoods import Gaussian

Z = 4.5
KEY = Noise.seed(0)


def of_one_input(outputs, noise=0.5, weights=None) -> RealPredictive:
    """Members and samples (M, S) at one input, with one known noise."""
    x = torch.tensor(outputs, dtype=torch.float64).unsqueeze(-1)
    return RealPredictive(x, Gaussian(noise=noise), {}, None if weights is None else torch.tensor(weights).double())


def random(*shape: int, weights=None) -> RealPredictive:
    """A noise of its own for each member and sample."""
    outputs = 2 * KEY.split("outputs").normal(torch.empty(shape, dtype=torch.float64))
    log_noise = 0.5 * KEY.split("noise").normal(torch.empty(shape[:2], dtype=torch.float64))
    return RealPredictive(outputs, Gaussian(learned=True), {"log_noise": log_noise}, weights)


def components(predictive) -> list[tuple[float, torch.Tensor, float]]:
    """(weight, means (B, ...), standard deviation) of each component."""
    m, s = predictive.outputs.shape[:2]
    mass = torch.ones(m, s) if predictive.weights is None else predictive.weights
    mass = mass.double() / mass.sum()
    scale = predictive.learned["log_noise"].exp()
    return [(float(mass[i, j]), predictive.outputs[i, j], float(scale[i, j])) for i in range(m) for j in range(s)]


def scipy_cdf(predictive, x, index) -> float:
    return sum(w * stats.norm.cdf(x, float(mean[index]), sd) for w, mean, sd in components(predictive))


def value(x: torch.Tensor) -> float:
    assert x.shape == (1,)
    return float(x)


def test_variance_by_hand_of_two_members_with_two_samples():
    predictive = of_one_input([[0, 2], [5, 9]])  # members 1 and 7, all together 4
    assert value(predictive.mean) == pytest.approx(4)
    assert predictive.member_mean.tolist() == [[1.0], [7.0]]
    assert value(predictive.aleatoric) == pytest.approx(0.25)
    assert value(predictive.between) == pytest.approx(9)
    assert value(predictive.within) == pytest.approx((1 + 4) / 2)
    assert value(predictive.epistemic) == pytest.approx(11.5)
    assert value(predictive.variance) == pytest.approx(11.75)


def test_the_divisor_is_the_number_of_samples():
    predictive = of_one_input([[1, 3]])
    assert value(predictive.within) == pytest.approx(1)  # not 2
    assert value(predictive.between) == 0
    assert value(of_one_input([[1], [3]]).between) == pytest.approx(1)


def test_variance_by_hand_with_weights():
    predictive = of_one_input([[0, 2], [5, 9]], weights=[[1, 3], [4, 0]])  # members 1.5 and 5, half each
    assert value(predictive.mean) == pytest.approx(3.25)
    assert value(predictive.between) == pytest.approx(1.75**2)
    assert value(predictive.within) == pytest.approx((1.5**2 + 3 * 0.5**2) / 8)
    assert value(predictive.variance) == pytest.approx(0.25 + 1.75**2 + 3 / 8)


@pytest.mark.parametrize("shape", [(3, 4, 6), (3, 4, 6, 1), (2, 3, 5, 4), (2, 3, 5, 4, 2)])
def test_moments_are_those_of_the_mixture_for_any_event_shape(shape):
    predictive = random(*shape)
    mean = sum(w * m for w, m, _ in components(predictive))
    second = sum(w * (m.square() + sd**2) for w, m, sd in components(predictive))
    torch.testing.assert_close(predictive.mean, mean)
    torch.testing.assert_close(predictive.variance, second - mean.square())
    torch.testing.assert_close(predictive.epistemic, predictive.between + predictive.within)
    aleatoric = torch.full(shape[2:], sum(w * sd**2 for w, _, sd in components(predictive)), dtype=torch.float64)
    torch.testing.assert_close(predictive.aleatoric, aleatoric)


def test_the_log_density_is_the_log_of_the_mean_density():
    predictive = of_one_input([[0, 2], [5, 9]], noise=1.5, weights=[[1, 3], [4, 0]])
    densities = [stats.norm.pdf(2.5, mean, 1.5) for mean in (0, 2, 5)]
    log_prob = value(predictive.log_prob(torch.tensor([2.5], dtype=torch.float64)))
    assert log_prob == pytest.approx(math.log((densities[0] + 3 * densities[1] + 4 * densities[2]) / 8))
    jensen = (math.log(densities[0]) + 3 * math.log(densities[1]) + 4 * math.log(densities[2])) / 8
    assert log_prob > jensen + 0.1


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 1), (2, 3, 5, 4), (2, 3, 5, 4, 2)])
def test_the_log_density_of_an_event_is_joint(shape):
    predictive = random(*shape)
    y = KEY.split("y").normal(torch.empty(shape[2:], dtype=torch.float64))
    density = sum(
        w * torch.from_numpy(stats.norm.pdf(y.numpy(), m.numpy(), sd)).reshape(5, -1).prod(1)
        for w, m, sd in components(predictive)
    )
    torch.testing.assert_close(predictive.log_prob(y), density.log())


def test_targets_and_values_without_the_last_axis_are_not_broadcast():
    predictive = random(2, 3, 5, 1)
    y = KEY.split("y").normal(torch.empty(5, dtype=torch.float64))
    assert predictive.log_prob(y).shape == (5,)
    torch.testing.assert_close(predictive.log_prob(y), predictive.log_prob(y.unsqueeze(1)))
    assert predictive.cdf(y).shape == (5, 1)
    torch.testing.assert_close(predictive.cdf(y), predictive.cdf(y.unsqueeze(1)))
    flat = random(2, 3, 5)
    for function in (flat.log_prob, flat.cdf):
        with pytest.raises(ValueError, match="expected targets"):
            function(y.unsqueeze(1))


def test_the_distribution_function_is_that_of_the_mixture():
    predictive = random(2, 3, 4, weights=torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 1.0]]))
    x = torch.linspace(-3, 3, 4, dtype=torch.float64)
    expected = [scipy_cdf(predictive, float(x[b]), b) for b in range(4)]
    torch.testing.assert_close(predictive.cdf(x), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("q", [0.001, 0.05, 0.5, 0.9, 0.9999])
@pytest.mark.parametrize("weights", [None, torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 1.0]])])
def test_quantiles_are_the_roots_scipy_finds(q, weights):
    predictive = random(2, 3, 4, weights=weights)
    expected = [brentq(lambda x, b=b: scipy_cdf(predictive, x, b) - q, -50, 50, xtol=1e-13) for b in range(4)]
    quantiles = predictive.quantile(q)
    torch.testing.assert_close(quantiles, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


def test_quantiles_across_a_gap_between_modes():
    predictive = of_one_input([[-100.0], [100.0]], noise=1.0, weights=[[0.3], [0.7]])
    assert value(predictive.quantile(0.15)) == pytest.approx(-100.0)
    assert value(predictive.quantile(0.65)) == pytest.approx(100.0)
    assert value(predictive.quantile(0.29)) == pytest.approx(-100 + stats.norm.ppf(0.29 / 0.3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("q", [1e-9, 0.025, 0.7])
def test_quantiles_of_one_component_are_the_closed_form(q, dtype):
    predictive = RealPredictive(torch.tensor([3.0, 0.0], dtype=dtype).reshape(1, 1, 2), Gaussian(noise=2.0))
    expected = torch.tensor([3.0, 0.0], dtype=dtype) + 2 * stats.norm.ppf(q)
    torch.testing.assert_close(predictive.quantile(q), expected)


def test_quantiles_keep_the_event_shape():
    predictive = random(2, 3, 5, 4)
    low, high = predictive.interval(0.5)
    assert low.shape == high.shape == (5, 4)
    torch.testing.assert_close(predictive.cdf(low), torch.full((5, 4), 0.25, dtype=torch.float64))
    torch.testing.assert_close(predictive.cdf(high), torch.full((5, 4), 0.75, dtype=torch.float64))


@pytest.mark.parametrize("level", [0.5, 0.9, 0.99])
def test_intervals_hold_their_share_of_draws_and_as_many_lie_on_either_side(level):
    predictive, n = random(2, 3, 6, 1), 20_000
    low, high = predictive.interval(level)
    drawn = predictive.sample(n)
    share = ((low <= drawn) & (drawn <= high)).double().mean(0)
    assert float(((share - level) / math.sqrt(level * (1 - level) / n)).abs().max()) < Z
    tail = (1 - level) / 2
    below = (drawn < low).double().mean(0)
    assert float(((below - tail) / math.sqrt(tail * (1 - tail) / n)).abs().max()) < Z


@pytest.mark.parametrize("q", [0.0, 1.0, -0.1, 1.5])
def test_levels_outside_zero_and_one_are_refused(q):
    with pytest.raises(ValueError, match=f"quantile level between 0 and 1, got {q}"):
        of_one_input([[1]]).quantile(q)
    with pytest.raises(ValueError, match=f"interval level between 0 and 1, got {q}"):
        of_one_input([[1]]).interval(q)


@pytest.mark.parametrize("weights", [None, torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 1.0]])])
@pytest.mark.parametrize("shape", [(2, 3, 4), (2, 3, 4, 1), (2, 3, 4, 2)])
def test_draws_have_the_mean_and_variance_of_the_mixture(shape, weights):
    predictive, n = random(*shape, weights=weights), 20_000
    drawn = predictive.sample(n, seed=1)
    assert drawn.shape == (n, *shape[2:]) and drawn.dtype == torch.float64
    z = (drawn.mean(0) - predictive.mean) / (predictive.variance / n).sqrt()
    assert float(z.abs().max()) < Z
    squares = (drawn - predictive.mean).square()
    z = (squares.mean(0) - predictive.variance) / (squares.std(0) / math.sqrt(n))
    assert float(z.abs().max()) < Z
    for b in range(4):
        column = drawn.reshape(n, 4, -1)[:, b, 0].numpy()
        index = (b,) + (0,) * (len(shape) - 3)
        law = stats.kstest(column, lambda x, i=index: scipy_cdf(predictive, x, i))
        assert law.pvalue > 1e-4
    assert torch.equal(predictive.sample(5, seed=1), predictive.sample(5, seed=1))
    assert not torch.equal(predictive.sample(5, seed=1), predictive.sample(5, seed=2))


def test_draws_of_an_event_are_joint():
    outputs = torch.tensor([[-1.0, -1.0], [1.0, 1.0]]).reshape(2, 1, 1, 2).double()  # members move both numbers
    predictive, n = RealPredictive(outputs, Gaussian(noise=0.5)), 20_000
    drawn = predictive.sample(n)[:, 0]
    product = drawn[:, 0] * drawn[:, 1]  # E = Cov = 1, the covariance of the means
    assert abs(float(product.mean()) - 1) / float(product.std() / math.sqrt(n)) < Z


def test_draws_are_finite_to_the_last_bit(monkeypatch):
    predictive = RealPredictive(torch.zeros(1, 1, 3), Gaussian())
    for u, sign in ((0.0, -1), (1 - 2.0**-53, 1)):
        monkeypatch.setattr(Noise, "uniform", lambda self, like, u=u: torch.full_like(like, u))
        drawn = predictive.sample(1)
        assert bool(drawn.isfinite().all()) and bool((drawn * sign > 8).all()) and drawn.dtype == torch.float32


def test_members_without_weight_are_never_drawn():
    drawn = of_one_input([[0, 1000], [1000, 0]], weights=[[1, 0], [0, 2]]).sample(10_000)
    assert float(drawn.abs().max()) < 10


@pytest.mark.parametrize("shape", [(2, 3, 5), (2, 3, 5, 1), (2, 3, 5, 4)])
def test_the_torch_distribution_agrees(shape):
    predictive = random(*shape, weights=torch.tensor([[1.0, 2.0, 0.0], [0.0, 3.0, 1.0]]))
    distribution = predictive.to_distribution()
    assert distribution.batch_shape == shape[2:]
    torch.testing.assert_close(distribution.mean, predictive.mean)
    torch.testing.assert_close(distribution.variance, predictive.variance)
    y = KEY.split("y").normal(torch.empty(shape[2:], dtype=torch.float64))
    torch.testing.assert_close(distribution.cdf(y), predictive.cdf(y))
    if shape != (2, 3, 5, 4):  # of several numbers torch has the marginals, we the joint
        torch.testing.assert_close(distribution.log_prob(y).reshape(5), predictive.log_prob(y))
    known = RealPredictive(predictive.outputs, Gaussian(noise=0.3))
    torch.testing.assert_close(known.to_distribution().variance, known.variance)


def test_probabilities_below_a_value_stay_within_zero_and_one():
    for members in range(1, 60):
        predictive = RealPredictive(torch.zeros(members, 7, 1, 1), Gaussian(noise=0.1))
        assert float(predictive.cdf(torch.full((1, 1), 9.0))) <= 1.0
