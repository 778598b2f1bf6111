"""The rate of a sampler with mini-batches: that it heats by what is allowed, and falls where steps are not stable."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from basinet.chains.tempo import FIRST, LARGEST, MARGIN, Tempo, jolted
from basinet.core.noise import Noise


def first(d: int) -> Tempo:
    return Tempo.first({"x": torch.zeros(d)}, given=False)


def after(tempo: Tempo, grads: Tensor, clock: int, explored: int) -> Tempo:
    """A step of a chain whose noise has A = 1."""
    return tempo.heard({"x": grads}, None, 1.0, torch.tensor(clock), explored)


def settled(heat: float, d: int = 1000, steps: int = 2000, seed: int = 5) -> float:
    """The rate after an exploration in which batches give a rate r the temperature 1 + heat r."""
    tempo, noise = first(d), Noise.seed(seed)
    for t in range(steps):
        z = noise.split(f"{t}").normal(torch.empty(d, dtype=torch.float64))
        tempo = after(tempo, math.sqrt(2 * heat) * z, t, steps)
    return float(tempo.log_rate.exp())


@pytest.mark.parametrize("heat", [1.0, 20.0])
def test_the_rate_heats_by_the_margin(heat):
    """What counts is the mean of the last 50 log rates."""
    assert abs(math.log(settled(heat) * heat / MARGIN)) < 0.3


def test_a_rate_that_does_not_heat_is_the_largest():
    assert settled(0.0) == pytest.approx(LARGEST, rel=0.05)


def test_the_rate_stays_after_the_exploration():
    tempo = first(10)
    for t in range(300):
        before = tempo.log_rate
        tempo = after(tempo, torch.zeros(10), t, 200)
        if t >= 200:
            assert torch.equal(tempo.log_rate, before)
    assert float(tempo.log_rate.exp()) > FIRST


@pytest.mark.parametrize("size", [1e6, math.nan])
def test_steps_that_are_not_stable_leave_a_quarter_of_the_rate(size):
    tempo = first(10)
    for t in range(150):
        tempo = after(tempo, torch.full((10,), size * (-1.0) ** t if t < 2 else 0.0), t, 200)
        assert bool(tempo.fled) == (t == 1)  # the first gradient has none before it, nor has one after a return
    assert float(tempo.log_rate) == pytest.approx(math.log(FIRST / 4))  # it stays below


def test_with_few_parameters_chains_still_agree_on_the_rate():
    """With three parameters the temperature varies by as much as its size: eight chains end within a factor of two."""
    rates = [settled(5.0, d=3, steps=800, seed=seed) for seed in range(8)]
    assert max(rates) < 2 * min(rates), rates


@pytest.mark.parametrize("size", [1e6, math.nan])
def test_steps_that_are_not_stable_are_seen_after_the_exploration_too(size):
    tempo = first(10)
    for t in range(60):
        tempo = after(tempo, torch.full((10,), size if t == 55 else 0.0), t, 50)
        assert bool(tempo.fled) == (t == 55)
        if t == 54:
            before = float(tempo.log_rate)
    assert float(tempo.log_rate) == pytest.approx(before - math.log(4))


@pytest.mark.parametrize("scale", [None, 0.3])
def test_what_batches_add_to_the_noise_is_read_from_two_gradients(scale):
    """lr G V / (2 A) is the share of the variance of a step that batches add."""
    noise, rate, variance, heat = Noise.seed(1), 0.02, 4.0, 0.1
    g, before = ({"x": math.sqrt(variance) * noise.split(n).normal(torch.empty(200_000))} for n in "ab")
    units = None if scale is None else {"x": torch.full((200_000,), scale)}
    read = float(jolted(g, before, units, torch.tensor(rate), heat))
    expected = 1 + rate * (scale or 1.0) * variance / (2 * heat)
    assert read == pytest.approx(expected, abs=4.5 * (expected - 1) * math.sqrt(2 / 200_000))


def test_the_error_of_langevin_steps_is_read_from_two_gradients():
    """With full batches half the square of lr h / N, where h / N is the curvature c of the loss per example."""
    d, c, rate, heat = 100_000, 1.0, 0.2, 0.1
    z = Noise.seed(2).normal(torch.empty(d, dtype=torch.float64))
    x = Noise.seed(3).normal(torch.empty(d, dtype=torch.float64)) * math.sqrt(heat / (c * (1 - rate * c / 2)))
    y = x - rate * c * x + math.sqrt(2 * rate * heat) * z
    read = float(jolted({"x": c * y}, {"x": c * x}, None, torch.tensor(rate), heat))
    exact = 1 + rate * c**2 * (rate**2 * c**2 * float(x.square().mean()) + 2 * rate * heat) / (4 * heat)
    assert read == pytest.approx(exact, rel=1e-3)
    assert read - 1 == pytest.approx((rate * c) ** 2 / 2, rel=0.15)  # to first order
