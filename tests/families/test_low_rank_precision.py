"""A precision of low rank plus a diagonal against torch's dense normal."""

import pytest
import torch
from torch.distributions import MultivariateNormal

from basinet.core.noise import Noise
from basinet.core.tree import ravel
from basinet.families import LowRankPrecision

KEY, K = Noise.seed(0), 4
SHAPES = {"w": (2, 3), "b": (2,), "c": ()}


def numbers(name: str, *lead: int) -> dict[str, torch.Tensor]:
    return {n: KEY.split(name).split(n).normal(torch.empty((*lead, *s)).double()) for n, s in SHAPES.items()}


def dense(family: LowRankPrecision) -> torch.Tensor:
    columns = ravel(family.columns, 1)
    return torch.linalg.inv(torch.diag(ravel(family.precision)) + columns.T @ columns)


CENTRE = numbers("centre")
DIAGONAL = {n: 0.1 + x.square() for n, x in numbers("diagonal").items()}
COLUMNS = {n: torch.cat([x, torch.zeros_like(x[:1])]) for n, x in numbers("columns", K).items()}  # one has no use yet
FAMILY = LowRankPrecision(CENTRE, DIAGONAL, COLUMNS, {})
COVARIANCE = dense(FAMILY)


def test_the_density_is_that_of_torch():
    at = {n: x + 2 * z for (n, x), z in zip(CENTRE.items(), numbers("at").values())}
    expected = MultivariateNormal(ravel(CENTRE), COVARIANCE).log_prob(ravel(at))
    torch.testing.assert_close(FAMILY.log_prob(at), expected)
    torch.testing.assert_close(FAMILY.log_prob(dict(reversed(at.items()))), expected)


def test_quad_is_the_dense_product():
    jacobian = numbers("jacobian", 5)
    rows = ravel(jacobian, 1)
    torch.testing.assert_close(FAMILY.quad(jacobian), rows @ COVARIANCE @ rows.T)
    torch.testing.assert_close(FAMILY.quad(dict(reversed(jacobian.items()))), rows @ COVARIANCE @ rows.T)


def test_draws_are_standard_normals_times_a_root_of_the_covariance():
    identity = torch.eye(9, dtype=torch.float64)
    root = FAMILY._rooted(identity) / ravel(DIAGONAL).sqrt()
    torch.testing.assert_close(root.T @ root, COVARIANCE)


def test_a_scaled_family_has_the_covariance_times_the_factor():
    torch.testing.assert_close(dense(FAMILY.scaled(0.3)), 0.3 * COVARIANCE)
    with pytest.raises(ValueError, match="above 0"):
        FAMILY.scaled(0.0)
