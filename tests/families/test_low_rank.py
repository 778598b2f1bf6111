"""Diagonal plus low rank against torch's dense normal. Moments of 40,000 draws are held within 4.5 standard errors."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.core.tree import ravel, stack
from basinet.families import LowRank

KEY, K = Noise.seed(0), 4
SHAPES = {"w": (2, 3), "b": (2,), "c": ()}


def numbers(name: str, *lead: int) -> dict[str, torch.Tensor]:
    return {n: KEY.split(name).split(n).normal(torch.empty((*lead, *s)).double()) for n, s in SHAPES.items()}


CENTRE = numbers("centre")
DIAGONAL = {n: 0.1 + x.square() for n, x in numbers("diagonal").items()}
FAMILY = LowRank(CENTRE, DIAGONAL, numbers("columns", K), {})


def dense(family: LowRank) -> torch.Tensor:
    columns = ravel(family.columns, 1)
    return torch.diag(ravel(family.diagonal)) + columns.T @ columns


COVARIANCE = dense(FAMILY)


@pytest.mark.parametrize("place", range(4))
def test_the_density_is_that_of_torch(place):
    at = {n: x + 2 * z for (n, x), z in zip(CENTRE.items(), numbers(f"at {place}").values())}
    expected = MultivariateNormal(ravel(CENTRE), COVARIANCE).log_prob(ravel(at))
    torch.testing.assert_close(FAMILY.log_prob(at), expected)
    backwards = dict(reversed(at.items()))
    torch.testing.assert_close(FAMILY.log_prob(backwards), expected)


def test_the_density_of_a_stack_is_that_of_each():
    other = LowRank(numbers("another"), DIAGONAL, numbers("more columns", K), {})
    log_prob = lift(lambda one: one.log_prob(CENTRE))(stack([FAMILY, other]))
    torch.testing.assert_close(log_prob, torch.stack([FAMILY.log_prob(CENTRE), other.log_prob(CENTRE)]))


def test_single_precision_holds_where_columns_are_much_longer_than_the_diagonal():
    wide = LowRank(CENTRE, {n: 1e-6 * x for n, x in DIAGONAL.items()}, FAMILY.columns, {})
    weights = KEY.split("weights").normal(torch.empty(K).double())  # a place as the family draws them: on the columns
    on = {n: c + torch.tensordot(weights, wide.columns[n], 1) for n, c in CENTRE.items()}
    expected = MultivariateNormal(ravel(CENTRE), dense(wide)).log_prob(ravel(on))
    single = LowRank(*({n: x.float() for n, x in t.items()} for t in (CENTRE, wide.diagonal, wide.columns)), {})
    log_prob = single.log_prob({n: x.float() for n, x in on.items()})
    assert abs(float(log_prob - expected)) < 0.01


def test_draws_have_the_mean_and_the_covariance():
    n = 40_000
    draws = ravel(lift(lambda key: FAMILY.sample(Noise(key)).params)(KEY.spread(n).key), 1)
    variances = COVARIANCE.diagonal()
    z = (draws.mean(0) - ravel(CENTRE)) / (variances / n).sqrt()
    assert float(z.abs().max()) < 4.5
    error = ((COVARIANCE.square() + variances[:, None] * variances) / n).sqrt()
    assert float(((torch.cov(draws.T) - COVARIANCE) / error).abs().max()) < 4.5  # 45 entries: P is 3e-4


def test_quad_is_the_dense_product():
    jacobian = numbers("jacobian", 5)
    rows = ravel(jacobian, 1)
    torch.testing.assert_close(FAMILY.quad(jacobian), rows @ COVARIANCE @ rows.T)
    torch.testing.assert_close(FAMILY.quad(dict(reversed(jacobian.items()))), rows @ COVARIANCE @ rows.T)


def test_a_scaled_family_has_the_covariance_times_the_factor():
    torch.testing.assert_close(dense(FAMILY.scaled(0.3)), 0.3 * COVARIANCE)
    torch.testing.assert_close(FAMILY.scaled(0.3).mean().params, CENTRE)
    torch.testing.assert_close(FAMILY.scaled(0.0).sample(KEY).params, CENTRE)
    wide, plain = (ravel(f.sample(KEY).params) - ravel(CENTRE) for f in (FAMILY.scaled(4.0), FAMILY))
    torch.testing.assert_close(wide, 2 * plain)


@pytest.mark.parametrize("factor", [-1.0, math.nan, math.inf])
def test_a_bad_factor_is_refused(factor):
    with pytest.raises(ValueError, match="expected a finite covariance scale of at least 0, got"):
        FAMILY.scaled(factor)
