"""The step size of chains that reject nothing: that the mean square of energy errors is what was asked for."""

from __future__ import annotations

import math

import pytest
import torch

from basinet.chains.stride import ORDER, Stride
from basinet.core.noise import Noise

RIGHT = 0.37  # the size at which E^2 / (d tolerance) is 1 on average


@pytest.mark.parametrize("chains", [1, 2, 16])
@pytest.mark.parametrize("first", [1e-3, 50.0])
def test_the_mean_square_of_errors_is_the_tolerance_with_any_number_of_chains(chains, first):
    """Errors z (e / RIGHT)^3 with normal z. A mean of logarithms would give 1.24 times that size for one chain."""
    stride = Stride(*(x.expand(chains) for x in Stride.at(first, torch.zeros(()))))
    good = torch.ones(chains, dtype=torch.bool)
    for t in range(1500):
        z = Noise.seed(3).split(t).normal(torch.empty(chains, dtype=torch.float64))
        stride = stride.heard((z * (stride.log_size.exp() / RIGHT) ** (ORDER / 2)).square(), good)
    size = float(stride.settled().log_size[0].exp())
    # about 500 steps count: 2 / 500 is the variance of their mean square, z = 4.5; far ones weigh a little less
    assert abs(math.log(size / RIGHT)) < 4.5 * math.sqrt(2 / 500 / chains) / ORDER + 0.02
    assert not bool(stride.searching.any())


def test_steps_that_fail_become_smaller_until_they_do_not():
    stride = Stride(*(x.expand(2) for x in Stride.at(1.0, torch.zeros(()))))
    for _ in range(40):
        size = stride.log_size.exp()
        stride = stride.heard((size / 1e-4) ** ORDER, size < 1e-3)
    assert 5e-5 < float(stride.log_size[0].exp()) < 2e-4


def test_another_metric_begins_another_search():
    stride = Stride(*(x.expand(2) for x in Stride.at(0.1, torch.zeros(()))))
    for _ in range(50):
        stride = stride.heard((stride.log_size.exp() / RIGHT) ** ORDER, torch.ones(2, dtype=torch.bool))
    after = stride.anew(torch.full((2,), math.log(3.0)))
    assert bool(after.searching.all())
    torch.testing.assert_close(after.log_size, stride.log_size + math.log(3.0))
