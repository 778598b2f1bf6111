"""The rate of a sampler with momentum: that it heats by what is allowed, and falls where steps are not stable."""

from __future__ import annotations

import math

import pytest
import torch

from basinet.chains.tempo import FIRST, LARGEST, MARGIN, Tempo
from basinet.core.noise import Noise


def found(heat: float, steps: int = 2000) -> float:
    """The rate after an exploration in which a rate r gives the temperature 1 + heat r, with noise."""
    tempo = Tempo.first(torch.zeros(()))
    z = 0.1 * Noise.seed(5).normal(torch.empty(steps, dtype=torch.float64))
    for t in range(steps):
        tempo = tempo.heard(1 + heat * tempo.log_rate.exp() + z[t], 1000, torch.tensor(t), steps)
    return float(tempo.log_rate.exp())


@pytest.mark.parametrize("heat", [1.0, 20.0])
def test_the_rate_heats_by_the_margin(heat):
    """The mean of the last 50 log rates counts: noise of .1 in each temperature moves it by less than a tenth."""
    assert abs(math.log(found(heat) * heat / MARGIN)) < 0.3


def test_a_rate_that_does_not_heat_is_the_largest():
    assert found(0.0) == pytest.approx(LARGEST, rel=0.05)


def test_the_first_half_keeps_the_first_rate_and_what_follows_the_exploration_the_last():
    tempo = Tempo.first(torch.zeros(()))
    for t in range(300):
        before = tempo.log_rate
        tempo = tempo.heard(torch.tensor(50.0 if t < 100 else 1.0, dtype=torch.float64), 1000, torch.tensor(t), 200)
        if t < 100 or t >= 200:
            assert torch.equal(tempo.log_rate, before)
    assert float(tempo.log_rate.exp()) != FIRST


def test_steps_that_are_not_stable_lower_the_rate_at_once():
    tempo = Tempo.first(torch.zeros(()))
    for t in range(150, 160):
        tempo = tempo.heard(torch.tensor(1e9, dtype=torch.float64), 1000, torch.tensor(t), 200)
    assert float(tempo.log_rate) == pytest.approx(math.log(FIRST) - 0.5)


def test_a_noisy_thermometer_leaves_the_rate_near_the_first():
    """Of three momenta, whose temperature is a chi-square, correlated over ten steps: 8 chains."""
    rates = []
    for chain in range(8):
        tempo, p = Tempo.first(torch.zeros(())), torch.zeros(3, dtype=torch.float64)
        z = Noise.seed(chain).normal(torch.empty(800, 3, dtype=torch.float64))
        for t in range(800):
            p = 0.9 * p + math.sqrt(1 - 0.9**2) * z[t]
            tempo = tempo.heard(p.square().mean(), 3, torch.tensor(t), 800)
        rates.append(float(tempo.log_rate) - math.log(FIRST))
    assert max(map(abs, rates)) < 1.5
