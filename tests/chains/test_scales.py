"""Spreads of parameters, from few draws."""

from __future__ import annotations

import torch

from basinet.chains.scales import Scales
from basinet.core.noise import Noise


def test_narrow_parameters_stay_narrow_beside_wide_ones():
    """Spreads over five orders of magnitude, each within a factor of its own: none is drawn to the widest."""
    chains, kept, sd = 4, 30, torch.logspace(-3, 2, 6, dtype=torch.float64)
    scales = Scales.none(torch.zeros(chains, 6, dtype=torch.float64))
    for t in range(kept):
        z = Noise.seed(t).normal(torch.empty(chains, 6, dtype=torch.float64))
        scales = scales.add(
            10 * sd * torch.arange(4.0).double()[:, None] + sd * z, torch.ones(chains, dtype=torch.bool)
        )
    ratio = scales.variance()[0] / sd**2
    assert bool((ratio > 0.5).all() and (ratio < 2.0).all())  # whatever the distance between chains


def test_before_two_draws_all_spreads_are_one():
    assert bool((Scales.none(torch.zeros(3, 2)).variance() == 1).all())
