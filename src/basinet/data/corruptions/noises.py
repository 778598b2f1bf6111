"""Noise: of the sensor, of counting photons, of dead pixels, and in proportion to the light."""

from __future__ import annotations

import torch
from torch import Tensor

from ...core.noise import Noise
from .keyed import normal, poisson, uniform


def gaussian(x: Tensor, noise: Noise, scale: float) -> Tensor:
    """Adds normal noise of standard deviation `scale`."""
    return x + scale * normal(noise, x.shape[1:])


def shot(x: Tensor, noise: Noise, photons: float) -> Tensor:
    """Counts photons, of which white has `photons` on average: variance x / photons."""
    return poisson(noise, photons * x) / photons


def impulse(x: Tensor, noise: Noise, share: float) -> Tensor:
    """Sets a share of the values to 0 or 1, equally often."""
    u = uniform(noise, x.shape[1:])
    return torch.where(u < share / 2, 0.0, torch.where(u < share, 1.0, x))


def speckle(x: Tensor, noise: Noise, scale: float) -> Tensor:
    """Multiplies by 1 plus normal noise: standard deviation `scale` x."""
    return x + scale * x * normal(noise, x.shape[1:])
