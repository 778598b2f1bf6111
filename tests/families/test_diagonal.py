"""Independent normals against torch."""

import math

import torch
from torch.distributions import Normal

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.families import Diagonal

KEY = Noise.seed(0)
CENTRE = {n: KEY.split(n).normal(torch.empty(s).double()) for n, s in (("w", (2, 3)), ("b", (2,)), ("c", ()))}
SCALE = {n: 0.1 + KEY.split(n + " scale").uniform(x) for n, x in CENTRE.items()}
FAMILY = Diagonal(CENTRE, SCALE, {})


def test_the_density_is_that_of_torch():
    at = {n: x + 0.3 for n, x in CENTRE.items()}
    expected = sum(Normal(CENTRE[n], SCALE[n]).log_prob(at[n]).sum() for n in CENTRE)
    torch.testing.assert_close(FAMILY.log_prob(at), expected)


def test_draws_have_the_mean_and_the_standard_deviation():
    n = 40_000
    draws = lift(lambda key: FAMILY.sample(Noise(key)).params)(KEY.spread(n).key)
    for name, x in draws.items():
        z = (x.mean(0) - CENTRE[name]) / SCALE[name] * math.sqrt(n)
        assert float(z.abs().max()) < 4.5
        z = (x.var(0) / SCALE[name].square() - 1) / math.sqrt(2 / n)
        assert float(z.abs().max()) < 4.5
    flat = torch.cat([x.reshape(n, -1) for x in draws.values()], 1)
    correlation = torch.corrcoef(flat.T) - torch.eye(9, dtype=torch.float64)
    assert float(correlation.abs().max()) * math.sqrt(n) < 4.5  # 36 pairs: P(any |z| > 4.5) is 2e-4


def test_quad_is_the_dense_product():
    jacobian = {n: KEY.split(n + " jacobian").normal(torch.empty(4, *x.shape).double()) for n, x in CENTRE.items()}
    dense = torch.cat([x.reshape(4, -1) for x in jacobian.values()], 1)
    covariance = torch.diag(torch.cat([x.reshape(-1) for x in SCALE.values()]).square())
    torch.testing.assert_close(FAMILY.quad(jacobian), dense @ covariance @ dense.T)


def test_quad_does_not_depend_on_the_order_of_the_jacobian():
    jacobian = {n: KEY.split(n + " jacobian").normal(torch.empty(4, *x.shape).double()) for n, x in CENTRE.items()}
    torch.testing.assert_close(FAMILY.quad(dict(reversed(jacobian.items()))), FAMILY.quad(jacobian))
