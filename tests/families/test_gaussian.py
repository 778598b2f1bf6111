"""The Gaussian families against dense covariance matrices and torch's MultivariateNormal.

Moments of 40,000 draws are held within 4.5 standard errors.
"""

import pytest
import torch
from torch.distributions import MultivariateNormal

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.core.tree import Params, leaves, ravel, stack, take, unravel
from basinet.families import Delta, Diagonal, Eigen, Empirical, Family, Full, Kronecker, Mixture, Partial
from basinet.testing import check_family

KEY, COUNT, Z = Noise.seed(0), 40_000, 4.5
SHAPES = {"conv.weight": (2, 2, 2), "conv.bias": (2,), "gain": (), "head.weight": (2, 3)}
BUFFERS = {"norm.mean": torch.tensor([1.0, 2.0], dtype=torch.float64), "norm.count": torch.tensor(7)}
BLOCK = {n: (s[0] if s else 1, int(torch.Size(s[1:]).numel())) for n, s in SHAPES.items()}


def params(name: str, *lead: int, only: tuple[str, ...] = tuple(SHAPES)) -> Params:
    return {n: KEY.split(name).split(n).normal(torch.empty((*lead, *SHAPES[n]), dtype=torch.float64)) for n in only}


def normal(name: str, *shape: int) -> torch.Tensor:
    return KEY.split(name).normal(torch.empty(*shape, dtype=torch.float64))


def orthonormal(name: str, n: int) -> torch.Tensor:
    return torch.linalg.qr(normal(name, n, n))[0].contiguous()


def full(name: str = "full", only: tuple[str, ...] = tuple(SHAPES)) -> tuple[Full, torch.Tensor]:
    centre = params(name, only=only)
    p = ravel(centre).numel()
    root = normal(name + " root", p, p) / p**0.5
    covariance = root @ root.T + 0.1 * torch.eye(p, dtype=torch.float64)
    return Full(centre, torch.linalg.cholesky(covariance), BUFFERS), covariance


def kronecker() -> tuple[Kronecker, torch.Tensor]:
    left = {n: orthonormal(n + " left", BLOCK[n][0]) for n in ("conv.weight", "conv.bias", "head.weight")}
    right = {n: orthonormal(n + " right", BLOCK[n][1]) for n in ("conv.weight",)}
    variance = {n: 0.1 + normal(n + " variance", *BLOCK[n]).abs() for n in SHAPES}
    blocks = []
    for n, (o, i) in BLOCK.items():
        eye = {k: torch.eye(k, dtype=torch.float64) for k in (o, i)}
        basis = torch.kron(left.get(n, eye[o]), right.get(n, eye[i]))
        blocks.append(basis @ torch.diag(variance[n].reshape(-1)) @ basis.T)
    return Kronecker(params("kronecker"), left, right, variance, BUFFERS), torch.block_diag(*blocks)


def eigen() -> tuple[Eigen, torch.Tensor]:
    centre = params("eigen")
    p, k, precision = ravel(centre).numel(), 3, 2.5
    basis = orthonormal("eigen basis", p)[:, :k]
    variance = torch.tensor([0.05, 0.3, 4.0], dtype=torch.float64)
    covariance = torch.eye(p, dtype=torch.float64) / precision
    covariance = covariance + basis @ torch.diag(variance - 1 / precision) @ basis.T
    directions = stack([unravel(b, centre) for b in basis.T])
    return Eigen(centre, directions, variance, torch.tensor(precision).double(), BUFFERS), covariance


def diagonal() -> tuple[Diagonal, torch.Tensor]:
    scale = {n: 0.5 + x.abs() for n, x in params("diagonal scale").items()}
    return Diagonal(params("diagonal"), scale, BUFFERS), torch.diag(ravel(scale).square())


def of_two() -> tuple[Partial, torch.Tensor]:
    names = tuple(SHAPES)
    scale = {n: 0.5 + x.abs() for n, x in params("rest scale", only=names[:2]).items()}
    part, covariance = full("part", names[2:])
    rest = Diagonal(params("rest", only=names[:2]), scale, BUFFERS)
    return Partial(rest, part), torch.block_diag(torch.diag(ravel(scale).square()), covariance)


FAMILIES = {"full": full(), "kronecker": kronecker(), "eigen": eigen(), "diagonal": diagonal(), "partial": of_two()}


@pytest.mark.parametrize("name", FAMILIES)
def test_the_family_passes_the_conformance_suite(name):
    assert len(check_family(FAMILIES[name][0])) == 6


@pytest.mark.parametrize("name", FAMILIES)
def test_the_density_is_that_of_torch(name):
    family, covariance = FAMILIES[name]
    oracle = MultivariateNormal(ravel(family.mean().params), covariance)
    for i in range(3):
        at = {n: x + 0.3 * params(f"at {i}")[n] for n, x in family.mean().params.items()}
        torch.testing.assert_close(family.log_prob(at), oracle.log_prob(ravel(at)))


@pytest.mark.parametrize("name", FAMILIES)
def test_draws_have_the_covariance(name):
    family, covariance = FAMILIES[name]
    draws = lift(lambda key: ravel(family.sample(Noise(key)).params))(KEY.split("draws").spread(COUNT).key)
    variances = covariance.diagonal()
    error = ((covariance.square() + variances[:, None] * variances) / COUNT).sqrt()
    assert float(((torch.cov(draws.T) - covariance) / error).abs().max()) < Z
    assert float(((draws.mean(0) - ravel(family.mean().params)) / (variances / COUNT).sqrt()).abs().max()) < Z


@pytest.mark.parametrize("name", FAMILIES)
def test_quad_is_the_dense_product_whatever_the_order_of_the_jacobian(name):
    family, covariance = FAMILIES[name]
    jacobian = {n: params("jacobian", 4)[n] for n in family.mean().params}
    rows = ravel(jacobian, 1)
    torch.testing.assert_close(family.quad(jacobian), rows @ covariance @ rows.T)
    torch.testing.assert_close(family.quad(dict(reversed(jacobian.items()))), rows @ covariance @ rows.T)
    many = stack([jacobian, {n: 2 * x for n, x in jacobian.items()}])
    torch.testing.assert_close(lift(family.quad)(many)[1], 4 * family.quad(jacobian))


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("factor", [0.3, torch.tensor(7.0, dtype=torch.float64)])
def test_scaled_multiplies_the_covariance_and_nothing_else(name, factor):
    family, covariance = FAMILIES[name]
    other = family.scaled(factor)
    assert type(other) is type(family)
    jacobian = {n: params("jacobian", 4)[n] for n in family.mean().params}
    torch.testing.assert_close(other.quad(jacobian), float(factor) * family.quad(jacobian))
    assert torch.equal(ravel(other.mean().params), ravel(family.mean().params))
    oracle = MultivariateNormal(ravel(family.mean().params), float(factor) * covariance)
    at = {n: x + 0.3 * params("at")[n] for n, x in family.mean().params.items()}
    torch.testing.assert_close(other.log_prob(at), oracle.log_prob(ravel(at)))
    moved = {n: x - family.mean().params[n] for n, x in family.sample(KEY).params.items()}
    scaled = {n: x - family.mean().params[n] for n, x in other.sample(KEY).params.items()}
    torch.testing.assert_close(ravel(scaled), float(factor) ** 0.5 * ravel(moved))


@pytest.mark.parametrize("name", FAMILIES)
def test_members_of_a_stack_are_the_members(name):
    family = FAMILIES[name][0]
    pair = stack([family, family.scaled(2.0)])
    jacobian = {n: params("jacobian", 4)[n] for n in family.mean().params}
    both = lift(lambda f: f.quad(jacobian))(pair)
    torch.testing.assert_close(both, torch.stack([family.quad(jacobian), 2 * family.quad(jacobian)]))
    for leaf, expected in zip(leaves(take(pair, 0)), leaves(family)):
        assert torch.equal(leaf, expected)


@pytest.mark.parametrize("factor", [-1.0, float("nan"), float("inf")])
def test_a_bad_scale_is_refused(factor):
    with pytest.raises(ValueError, match="expected a finite covariance scale of at least 0"):
        FAMILIES["diagonal"][0].scaled(factor)


def test_a_subset_posterior_leaves_the_rest_where_it_is():
    names = tuple(SHAPES)
    part, covariance = full("part", names[2:])
    family = Partial(Delta(params("rest", only=names[:2]), BUFFERS), part)
    drawn = family.sample(KEY)
    assert set(drawn.params) == set(SHAPES) and drawn.buffers is BUFFERS
    assert all(torch.equal(drawn.params[n], params("rest")[n]) for n in names[:2])
    assert not torch.equal(drawn.params["head.weight"], part.centre["head.weight"])
    torch.testing.assert_close(family.log_prob(drawn.params), part.log_prob(drawn.params))
    jacobian = params("jacobian", 4)
    rows = ravel({n: jacobian[n] for n in names[2:]}, 1)
    torch.testing.assert_close(family.quad(jacobian), rows @ covariance @ rows.T)
    assert family.points is None and Partial(Delta({}, {}), Delta({}, {})).points == 1
    check_family(family)


def test_a_point_has_no_covariance():
    point = Delta(params("delta"), BUFFERS)
    assert point.scaled(3.0) is point
    assert torch.equal(point.quad(params("jacobian", 4)), torch.zeros(4, 4).double())


@pytest.mark.parametrize(
    "family", [Empirical(params("points", 5), {}, 5), Mixture(stack([diagonal()[0]]), torch.ones(1))]
)
def test_what_is_not_gaussian_says_so(family: Family):
    for call in (lambda: family.quad(params("jacobian", 4)), lambda: family.scaled(2.0)):
        with pytest.raises(ValueError, match=f"{type(family).__name__} is not Gaussian"):
            call()
