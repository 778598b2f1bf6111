"""Small generated problems in one and two dimensions, whose distribution is known and can be plotted."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.noise import Noise
from .data import Data

_CLUSTERS = ((-0.7, -0.3), (0.3, 0.7))
_GAPS = ((-1.5, -0.7), (-0.3, 0.3), (0.7, 1.5))


def gaps(n: int, seed: int = 0) -> Data:
    """Regression with nothing in the middle: x uniform on [-0.7, -0.3] and [0.3, 0.7], y = sin 3x + 0.05 e.

    Inputs and targets are (n, 1); e is standard normal. A good posterior is uncertain where `in_gaps` draws.
    """
    return _sine(n, Noise.seed(seed).split("gaps"), _CLUSTERS)


def in_gaps(n: int, seed: int = 0) -> Data:
    """The same function where `gaps` has no inputs: x uniform on (-0.3, 0.3) and on 0.7 < |x| < 1.5."""
    return _sine(n, Noise.seed(seed).split("in_gaps"), _GAPS)


def moons(n: int, noise: float = 0.1, seed: int = 0) -> Data:
    """Two classes on interleaved half circles of radius 1, plus normal noise of standard deviation `noise`.

    Class 0 is (cos t, sin t), class 1 is (1 - cos t, 1/2 - sin t), t uniform on [0, pi]. Inputs are (n, 2).
    """
    if not 0 <= noise < math.inf:
        raise ValueError(f"expected a finite noise >= 0, got {noise}; it is a standard deviation")
    key = Noise.seed(seed).split("moons")
    classes = _classes(n, 2, key)
    t = math.pi * key.split("angle").uniform(torch.empty(n))
    side = 1.0 - 2.0 * classes  # +1 or -1
    curve = torch.stack((classes + side * t.cos(), 0.5 * classes + side * t.sin()), -1)
    return Data(curve + noise * key.split("noise").normal(curve), classes)


def gaussians(n: int, seed: int = 0) -> Data:
    """Five classes, each a round normal of standard deviation 0.5, means evenly on the circle of radius 2.

    Class c has mean 2 (cos a, sin a), a = 2 pi c / 5. Neighbours overlap slightly. Inputs are (n, 2).
    """
    key = Noise.seed(seed).split("gaussians")
    classes = _classes(n, 5, key)
    angle = 2 * math.pi / 5 * classes.to(torch.get_default_dtype())
    mean = 2.0 * torch.stack((angle.cos(), angle.sin()), -1)
    return Data(mean + 0.5 * key.split("noise").normal(mean), classes)


def _sine(n: int, key: Noise, intervals: tuple[tuple[float, float], ...]) -> Data:
    x = _on(intervals, key.split("x").uniform(torch.empty(n, 1)))
    return Data(x, (3 * x).sin() + 0.05 * key.split("noise").normal(x))


def _on(intervals: tuple[tuple[float, float], ...], u: Tensor) -> Tensor:
    """Uniform numbers on [0, 1) laid on the intervals, end to end."""
    place = u * sum(high - low for low, high in intervals)
    x, start = torch.empty_like(u), 0.0
    for low, high in intervals:
        x = torch.where(place >= start, low + place - start, x)
        start += high - low
    return x


def _classes(n: int, count: int, key: Noise) -> Tensor:
    """Labels 0 ... count - 1 in random order, as equal in number as n allows."""
    return key.split("class").permutation(n) % count
