"""Perturbed: noise of a stated size on the tensors that are named, and on no other."""

from __future__ import annotations

import math

import pytest
import torch

from basinet import Noise
from basinet.core.lift import lift
from basinet.core.tree import stack, take
from basinet.families import Diagonal, Perturbed
from basinet.testing import check_family

CENTRE = {"a": torch.tensor([1.0, -2.0], dtype=torch.float64), "b": torch.tensor([[3.0]], dtype=torch.float64)}
COUNT = 20_000


def perturbed(sigma: float, names=("a", "b"), uniform=False) -> Perturbed:
    return Perturbed(CENTRE, {n: torch.tensor(sigma, dtype=torch.float64) for n in names}, {}, uniform)


def draws(family: Perturbed) -> dict[str, torch.Tensor]:
    return lift(lambda key: family.sample(Noise(key)).params)(Noise.seed(2).spread(COUNT).key)


def test_it_conforms():
    check_family(perturbed(0.3))


@pytest.mark.parametrize("uniform", [False, True])
def test_both_kinds_of_noise_have_standard_deviation_sigma(uniform):
    drawn = draws(perturbed(0.3, ("a",), uniform))
    assert torch.equal(drawn["b"], CENTRE["b"].expand(COUNT, 1, 1))
    fourth = 9 / 5 if uniform else 3.0  # the kurtosis
    error = 0.09 * math.sqrt((fourth - 1) / COUNT)
    assert ((drawn["a"].var(0) - 0.09).abs() < 4.5 * error).all()
    far = ((drawn["a"] - CENTRE["a"]) / 0.3).abs()
    assert bool((far <= math.sqrt(3) + 1e-12).all()) == uniform
    assert abs(float(((drawn["a"] - CENTRE["a"]) / 0.3).prod(1).mean())) < 4.5 / math.sqrt(COUNT)  # independent


def test_the_normal_density_is_that_of_equal_scales():
    at = {"a": torch.tensor([1.2, -2.5], dtype=torch.float64), "b": torch.tensor([[3.3]], dtype=torch.float64)}
    equal = Diagonal(CENTRE, {n: torch.full_like(x, 0.3) for n, x in CENTRE.items()}, {})
    assert torch.allclose(perturbed(0.3).log_prob(at), equal.log_prob(at))
    part = Diagonal({"a": CENTRE["a"]}, {"a": torch.full_like(CENTRE["a"], 0.3)}, {})
    assert torch.allclose(perturbed(0.3, ("a",)).log_prob(at), part.log_prob(at))


def test_the_uniform_density_is_one_over_the_volume_of_the_box():
    family = perturbed(0.3, uniform=True)
    volume = (2 * math.sqrt(3) * 0.3) ** 3
    log_prob = lift(family.log_prob)(draws(family))
    assert torch.allclose(log_prob, torch.full_like(log_prob, -math.log(volume)))
    outside = CENTRE | {"a": CENTRE["a"] + torch.tensor([0.0, 0.53])}
    assert family.log_prob(outside) == -math.inf


@pytest.mark.parametrize("uniform", [False, True])
def test_of_sigma_zero_it_is_the_point(uniform):
    family = perturbed(0.0, uniform=uniform)
    assert torch.equal(family.sample(Noise.seed(0)).params["a"], CENTRE["a"])
    assert family.log_prob(CENTRE) == math.inf
    assert family.log_prob(CENTRE | {"a": CENTRE["a"] + 1}) == -math.inf


def test_members_have_a_sigma_each_and_parameters_keep_their_order():
    pair = stack([perturbed(0.1, ("b",)), perturbed(0.2, ("b",))])
    assert float(take(pair, 1).sigma["b"]) == 0.2
    assert list(take(pair, 1).sample(Noise.seed(0)).params) == ["a", "b"]


def test_quad_is_the_covariance_of_linear_outputs():
    jacobian = {"a": torch.tensor([[1.0, 2.0], [0.0, 1.0]]).double(), "b": torch.tensor([[[3.0]], [[1.0]]]).double()}
    expected = 0.09 * torch.tensor([[5.0, 2.0], [2.0, 1.0]]).double()
    assert torch.allclose(perturbed(0.3, ("a",)).quad(jacobian), expected)


@pytest.mark.parametrize("uniform", [False, True])
def test_noise_of_low_rank_stays_in_its_span_and_has_a_density_there(uniform):
    """Of the matrix M = centre + sigma S z the coordinates S'(M - centre) are independent; J Sigma J' is that of
    draws."""
    kernel = Noise.seed(0).split("kernel").normal(torch.empty(4, 3, 2, dtype=torch.float64))
    basis = torch.linalg.qr(Noise.seed(0).split("span").normal(torch.empty(4, 4, dtype=torch.float64))).Q
    span, sigma = basis[:, :2], torch.tensor(0.3, dtype=torch.float64)
    if not uniform:
        check_family(Perturbed({"k": kernel[..., 0]}, {"k": sigma}, {}, uniform, {"k": basis}))  # of full rank
    family = Perturbed({"k": kernel}, {"k": sigma}, {}, uniform, {"k": span})
    moved = draws(family)["k"] - kernel  # (COUNT, 4, 3, 2)
    inside = torch.einsum("ir,nikl->nrkl", span, moved)
    assert torch.allclose(torch.einsum("ir,nrkl->nikl", span, inside), moved, atol=1e-12)
    error = 0.09 * math.sqrt(((9 / 5 if uniform else 3.0) - 1) / COUNT)
    assert ((inside.var(0) - 0.09).abs() < 4.5 * error).all()
    coordinates = Perturbed({"k": torch.zeros(2, 6, dtype=torch.float64)}, {"k": sigma}, {}, uniform)
    at = family.sample(Noise.seed(1)).params
    expected = coordinates.log_prob({"k": span.T @ (at["k"] - kernel).flatten(1)})
    assert torch.allclose(family.log_prob(at), expected) and bool(expected.isfinite())
    assert family.log_prob({"k": at["k"] + 0.01}) == -math.inf
    jacobian = Noise.seed(2).normal(torch.empty(2, 4, 3, 2, dtype=torch.float64))
    outputs = torch.einsum("oikl,nikl->no", jacobian, moved)
    quad = family.quad({"k": jacobian})
    scale = (quad.diag()[:, None] * quad.diag()).sqrt() * math.sqrt(2 / COUNT)
    assert ((torch.cov(outputs.T) - quad).abs() < 4.5 * scale).all()
