"""Student's t and Poisson against scipy, tails included."""

import numpy as np
import pytest
import torch
from scipy import stats

from basinet.core.lift import lift
from basinet.problem.distributions import Poisson, StudentT

LEVELS = torch.tensor(
    [2.0**-53, 1e-12, 1e-6, 1e-3, 0.05, 0.3, 0.4999, 0.5, 0.6, 0.99, 1 - 1e-6, 1 - 1e-12], dtype=torch.float64
)
FAR = torch.logspace(-6, 4, 60, dtype=torch.float64)
POINTS = torch.cat([-FAR.flip(0), torch.zeros(1, dtype=torch.float64), FAR])


def t(df: float, like: torch.Tensor, loc: float = 0.0, scale: float = 1.0) -> StudentT:
    return StudentT(torch.tensor(df, dtype=torch.float64), torch.full_like(like, loc), torch.full_like(like, scale))


@pytest.mark.parametrize("df", [2.01, 2.5, 3, 4, 7.5, 30, 1e3, 1e4])
def test_student_t_is_that_of_scipy(df):
    known = stats.t(df)
    cdf, icdf = t(df, POINTS).cdf(POINTS).numpy(), t(df, LEVELS).icdf(LEVELS).numpy()
    np.testing.assert_allclose(cdf, known.cdf(POINTS.numpy()), rtol=1e-10, atol=1e-300)
    np.testing.assert_allclose(icdf, known.ppf(LEVELS.numpy()), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(t(df, POINTS).log_prob(POINTS).numpy(), known.logpdf(POINTS.numpy()), rtol=1e-9)


@pytest.mark.parametrize("df", [2.1, 4.0, 50.0])
def test_quantiles_of_student_t_invert_its_distribution_function(df):
    np.testing.assert_allclose(t(df, LEVELS).cdf(t(df, LEVELS).icdf(LEVELS)), LEVELS, rtol=1e-12)


def test_location_and_scale_move_student_t():
    known, ours = stats.t(4.0, loc=3.0, scale=0.2), t(4.0, LEVELS, 3.0, 0.2)
    np.testing.assert_allclose(ours.icdf(LEVELS), known.ppf(LEVELS.numpy()), rtol=1e-9)
    np.testing.assert_allclose(ours.cdf(LEVELS), known.cdf(LEVELS.numpy()), rtol=1e-9)
    np.testing.assert_allclose(ours.log_prob(LEVELS), known.logpdf(LEVELS.numpy()), rtol=1e-12)
    assert float(ours.mean[0]) == 3.0 and float(ours.variance[0]) == pytest.approx(known.var())


def test_the_ends_of_student_t_are_infinite():
    ends = torch.tensor([0.0, 0.5, 1.0])
    assert t(3.0, ends).icdf(ends).tolist() == [-np.inf, 0.0, np.inf]
    far = torch.tensor([-np.inf, np.inf])
    assert t(3.0, torch.zeros(2)).cdf(far).tolist() == [pytest.approx(0.0, abs=1e-300), 1.0]


def test_functions_broadcast_and_follow_the_dtype():
    student = StudentT(torch.tensor(4.0), torch.zeros(2, 3), torch.ones(3))
    assert student.batch_shape == (2, 3) and student.cdf(torch.zeros(5, 1, 1)).shape == (5, 2, 3)
    assert student.cdf(torch.zeros(3)).dtype == student.icdf(torch.tensor(0.3)).dtype == torch.float32
    assert student.expand((4, 2, 3)).log_prob(torch.zeros(2, 3)).shape == (4, 2, 3)
    counts = Poisson(torch.zeros(2, 3))
    assert counts.cdf(torch.zeros(5, 1, 1)).shape == (5, 2, 3) and counts.expand((4, 2, 3)).mean.shape == (4, 2, 3)
    assert counts.icdf(torch.tensor(0.3)).dtype == counts.cdf(torch.zeros(3)).dtype == torch.float32


def test_the_log_density_of_student_t_lifts():
    x = POINTS.reshape(11, 11)
    lifted = lift(lambda y: StudentT(torch.tensor(4.0).double(), y, torch.ones_like(y)).log_prob(2 * y))(x)
    torch.testing.assert_close(lifted[3], StudentT(torch.tensor(4.0).double(), x[3], torch.ones(11)).log_prob(2 * x[3]))


@pytest.mark.parametrize("rate", [1e-6, 0.1, 1.0, 7.3, 100.0, 1e4])
def test_poisson_is_that_of_scipy(rate):
    known = stats.poisson(rate)
    k = torch.arange(80, dtype=torch.float64) + max(0, int(rate - 40))
    poisson = Poisson(torch.full_like(k, rate).log())
    np.testing.assert_allclose(poisson.log_prob(k), known.logpmf(k.numpy()), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(poisson.cdf(k), known.cdf(k.numpy()), atol=1e-9)
    np.testing.assert_allclose(poisson.cdf(k + 0.5), known.cdf(k.numpy()), atol=1e-9)
    levels = LEVELS[2:-1]
    quantiles = Poisson(torch.full_like(levels, rate).log()).icdf(levels)
    np.testing.assert_array_equal(quantiles, known.ppf(levels.numpy()))
    extreme = Poisson(torch.full_like(LEVELS, rate).log())
    assert bool((extreme.cdf(extreme.icdf(LEVELS)) >= LEVELS).all())
    assert float(poisson.mean[0]) == pytest.approx(rate) == float(poisson.variance[0])
    assert float(poisson.cdf(torch.tensor(-1.0))[0]) == 0


def test_poisson_of_extreme_log_rates_stays_finite():
    poisson = Poisson(torch.tensor([-200.0, 80.0]))
    assert poisson.log_prob(torch.tensor([1.0, 0.0])).tolist() == [-200.0, pytest.approx(-np.exp(80.0))]
    assert poisson.icdf(torch.tensor(0.5)).tolist()[0] == 0
