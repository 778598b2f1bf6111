"""Thermometers of samplers, on draws whose temperature is known."""

from __future__ import annotations

import pytest
import torch
from autoregressions import autoregressive

from basinet.core.noise import Noise
from basinet.diagnostics import configurational_temperature, kinetic_temperature
from basinet.diagnostics.temperatures import chi_square_interval


@pytest.mark.parametrize(
    ("freedom", "low", "high"), [(30, 13.787, 53.672), (100, 67.328, 140.169), (1000, 888.564, 1118.948)]
)  # tables of the chi-square distribution
def test_the_interval_is_that_of_the_chi_square(freedom, low, high):
    assert chi_square_interval(freedom, 2.576) == pytest.approx((low, high), rel=4e-3)


def test_the_kinetic_temperature_of_normal_momenta():
    repeats, kept, numbers = 3000, 20, 7
    momenta = Noise.seed(0).normal(torch.empty(repeats, kept, numbers, dtype=torch.float64))
    squares = momenta.square().sum(-1)
    wrong = sum(not kinetic_temperature(row, numbers).right for row in squares)
    assert abs(wrong - 10) < 4.5 * 10**0.5  # 3,000 times a third of a per cent, z = 4.5
    assert not kinetic_temperature(1.5 * squares[0], numbers).right
    assert kinetic_temperature(1.5 * squares, numbers).value == pytest.approx(1.5, rel=0.02)


@pytest.mark.parametrize("phi", [0.0, 0.7])
def test_thermometers_of_correlated_chains_raise_few_alarms_and_see_what_is_wrong(phi):
    repeats, chains, kept, numbers = 200, 4, 100, 5
    draws = autoregressive(chains, kept, phi, 3, repeats * numbers) * (1 - phi**2) ** 0.5
    for heat in (1.0, 1.6):
        x = heat**0.5 * draws.unflatten(2, (repeats, numbers))
        kinetic = [kinetic_temperature(one.square().sum(-1), numbers).right for one in x.unbind(2)]
        places = [configurational_temperature(one, one).right for one in x.unbind(2)]
        for right in (kinetic, places):
            if heat == 1:
                assert repeats - sum(right) <= 5  # a third of a per cent; 5 in 200 have probability 6e-4
            else:
                assert sum(right) < 0.1 * repeats


@pytest.mark.parametrize("chains", [1, 4])
@pytest.mark.parametrize(("heat", "right"), [(1.0, True), (1.4, False)])
def test_the_configurational_temperature_of_a_normal(chains, heat, right):
    scale = torch.tensor([0.1, 1.0, 5.0], dtype=torch.float64)
    z = Noise.seed(1).normal(torch.empty(chains, 1200, 3, dtype=torch.float64))
    positions = 3.0 + heat**0.5 * scale * z  # of N(3, scale^2) at a temperature
    temperature = configurational_temperature(positions, (positions - 3.0) / scale**2)
    assert temperature.right is right
    assert temperature.value == pytest.approx(heat, abs=0.15)
