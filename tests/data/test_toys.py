"""The generated problems follow the distributions that their docstrings state."""

import math

import pytest
import torch

from basinet.data.toys import gaps, gaussians, in_gaps, moons

MAKERS = [gaps, in_gaps, moons, gaussians]


@pytest.mark.parametrize("make", MAKERS)
def test_the_seed_decides(make):
    assert make(101, seed=2).fingerprint() == make(101, seed=2).fingerprint()
    assert make(101, seed=2).fingerprint() != make(101, seed=3).fingerprint()
    assert make(101).n == 101


@pytest.mark.parametrize("make", MAKERS)
def test_no_examples_are_refused(make):
    with pytest.raises(ValueError, match="at least one example"):
        make(0)


@pytest.mark.parametrize(
    ("make", "intervals"),
    [
        (gaps, [(-0.7, -0.3), (0.3, 0.7)]),
        (in_gaps, [(-1.5, -0.7), (-0.3, 0.3), (0.7, 1.5)]),
    ],
)
def test_gaps_follow_their_distribution(make, intervals):
    n = 5000
    data = make(n, seed=1)
    x, y = data.inputs, data.targets
    assert x.shape == y.shape == (n, 1)
    lengths = [high - low for low, high in intervals]
    for (low, high), length in zip(intervals, lengths):
        inside = x[(x > low - 1e-6) & (x < high + 1e-6)]
        share = length / sum(lengths)
        assert abs(len(inside) - n * share) / math.sqrt(n * share * (1 - share)) < 4  # binomial z
        middle = (inside.mean().item() - (low + high) / 2) / (length / math.sqrt(12 * len(inside)))
        assert abs(middle) < 4  # uniform: variance length^2 / 12
    outside = torch.ones_like(x, dtype=torch.bool)
    for low, high in intervals:
        outside &= ~((x > low - 1e-6) & (x < high + 1e-6))
    assert not outside.any()
    noise = (y - torch.sin(3 * x)) / 0.05
    assert abs(noise.mean().item()) * math.sqrt(n) < 4
    assert abs(noise.square().sum().item() - n) / math.sqrt(2 * n) < 4  # chi-squared z


def test_moons_without_noise_lie_on_the_half_circles():
    data = moons(1001, noise=0.0)
    zero, one = (data.inputs[data.targets == c].double() for c in (0, 1))
    assert (len(zero), len(one)) == (501, 500)
    assert torch.allclose(zero.norm(dim=1), torch.ones(501).double(), atol=1e-6)
    assert torch.allclose((one - torch.tensor([1.0, 0.5])).norm(dim=1), torch.ones(500).double(), atol=1e-6)
    assert zero[:, 1].min() > -1e-6
    assert one[:, 1].max() < 0.5 + 1e-6
    for angle in (torch.atan2(zero[:, 1], zero[:, 0]), torch.atan2(0.5 - one[:, 1], 1 - one[:, 0])):
        z = (angle.mean().item() - math.pi / 2) / (math.pi / math.sqrt(12 * len(angle)))
        assert abs(z) < 4  # uniform on [0, pi]


def test_moons_noise_is_a_standard_deviation():
    n = 4000
    noise = (moons(n, noise=0.3, seed=5).inputs - moons(n, noise=0.0, seed=5).inputs) / 0.3
    assert abs(noise.square().sum().item() - 2 * n) / math.sqrt(4 * n) < 4  # chi-squared z, 2 n terms


@pytest.mark.parametrize("noise", [-0.1, math.nan, math.inf])
def test_moons_refuse_a_bad_noise(noise):
    with pytest.raises(ValueError, match="expected a finite noise >= 0, got"):
        moons(10, noise=noise)


def test_gaussians_have_their_means_and_spread():
    n = 5000
    data = gaussians(n, seed=1)
    assert data.inputs.shape == (n, 2)
    assert data.targets.bincount().tolist() == [1000] * 5
    for c in range(5):
        mean = 2 * torch.tensor([math.cos(2 * math.pi * c / 5), math.sin(2 * math.pi * c / 5)])
        residual = (data.inputs[data.targets == c] - mean) / 0.5
        assert residual.mean(0).abs().max().item() * math.sqrt(1000) < 4
        assert abs(residual.square().sum().item() - 2000) / math.sqrt(4000) < 4
        assert abs(residual.prod(1).sum().item()) / math.sqrt(1000) < 4  # the axes are uncorrelated
    assert not torch.equal(data.targets, data.targets.sort().values)
