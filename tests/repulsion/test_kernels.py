"""Kernels against their formulas, their gradients against automatic ones, and distances in float32."""

import math

import pytest
import torch

from basinet.repulsion.kernels import Kernel, median_bandwidth, mixed, squared_distances, wide_bandwidth

FORMULAS = {
    "rbf": lambda x, y, h: torch.exp(-(x - y).square().sum() / (2 * h**2)),
    "imq": lambda x, y, h: (1 + (x - y).square().sum() / h**2) ** -0.5,
    "linear": lambda x, y, h: x @ y + 1,
}


def cloud(members: int = 5, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(members, *s, generator=generator, dtype=torch.float64) for s in ((2, 3), (4,), ())]


def flat(pieces: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([x.reshape(len(x), -1) for x in pieces], 1)


@pytest.mark.parametrize(
    ("word", "bandwidth"), [("rbf", None), ("rbf", 0.7), ("imq", None), ("imq", 0.7), ("linear", None)]
)
def test_values_and_slopes_are_those_of_the_formula(word, bandwidth):
    pieces, kernel = cloud(), Kernel(word, bandwidth)
    x, seen = flat(pieces), kernel.seen(pieces)
    h = bandwidth or float(median_bandwidth(squared_distances(pieces))) ** 0.5
    pairs = kernel.pairs(seen)
    values = torch.stack([torch.stack([FORMULAS[word](a, b, h) for b in x]) for a in x])
    torch.testing.assert_close(pairs.values, values, rtol=0, atol=1e-12)
    slope = torch.func.grad(lambda y, a: FORMULAS[word](y, a, h))
    slopes = torch.stack([sum(slope(y, a) for y in x) for a in x])
    torch.testing.assert_close(flat(mixed(pairs.slopes, seen)), slopes, rtol=0, atol=1e-12)
    other = cloud(3, seed=1)
    between = torch.stack([torch.stack([FORMULAS[word](a, b, h) for b in x]) for a in flat(other)])
    torch.testing.assert_close(kernel.between(kernel.seen(other, pieces), seen), between, rtol=0, atol=1e-12)


def test_the_median_is_of_all_pairs_and_midway():
    x = torch.tensor([[0.0], [1.0], [3.0]], dtype=torch.float64)  # squares: 0 0 0 1 1 4 4 9 9
    assert float(median_bandwidth(squared_distances([x]))) == pytest.approx(1 / (2 * math.log(4)))
    assert float(wide_bandwidth(squared_distances([x]))) == pytest.approx(4)  # of 1 1 4 4 9 9
    two = x[:2]  # 0 0 1 1: midway is 1/2, the lower median 0
    assert float(median_bandwidth(squared_distances([two]))) == pytest.approx(0.5 / (2 * math.log(3)))


@pytest.mark.parametrize("word", FORMULAS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("members", [1, 2, 7])
def test_equal_members_are_finite_and_radial_kernels_do_not_part_them(word, dtype, members):
    x = (torch.full((members, 4), 1 / 3, dtype=dtype), torch.full((members, 2), 1e4, dtype=dtype))
    kernel = Kernel(word)
    seen = kernel.seen(x)
    pairs = kernel.pairs(seen)
    assert all(torch.isfinite(part).all() for part in pairs)
    if word != "linear":
        assert (pairs.values == 1).all() and all((part == 0).all() for part in mixed(pairs.slopes, seen))


def test_members_close_together_far_from_zero_keep_their_distances_in_float32():
    generator = torch.Generator().manual_seed(0)
    centre = torch.randn(1, 10_000, generator=generator)  # norm 100
    members = centre + 1e-4 * torch.randn(6, 10_000, generator=generator)
    kernel = Kernel("rbf")
    exact = squared_distances([members.double()])
    squared = squared_distances(kernel.seen([members])).double()
    away = ~torch.eye(6, dtype=torch.bool)
    assert ((squared - exact) / exact)[away].abs().max() < 1e-4
    naive = squared_distances([members]).double()  # from the members as they are, 1e-7 x 100^2 is all that is left
    assert ((naive - exact) / exact)[away].abs().max() > 1
    single, exact = (kernel.pairs(kernel.seen([x])) for x in (members, members.double()))
    push, known = (
        mixed(single.slopes, kernel.seen([members]))[0],
        mixed(exact.slopes, kernel.seen([members.double()]))[0],
    )
    assert float((push - known).norm() / known.norm()) < 1e-3


@pytest.mark.parametrize(
    ("word", "bandwidth", "message"),
    [
        ("rfb", None, "unknown kernel 'rfb'. Did you mean 'rbf'"),
        ("linear", 1.0, "has no bandwidth"),
        ("rbf", 0.0, "positive, finite bandwidth"),
        ("imq", math.inf, "positive, finite bandwidth"),
        ("imq", math.nan, "positive, finite bandwidth"),
    ],
)
def test_bad_kernels_are_refused(word, bandwidth, message):
    with pytest.raises(ValueError, match=message):
        Kernel(word, bandwidth)
