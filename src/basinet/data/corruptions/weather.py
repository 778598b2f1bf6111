"""Weather and light: snow, frost, fog, brightness, spatter on the lens, saturation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ...core.noise import Noise
from .colour import from_hsv, luma, paint, to_hsv
from .filters import blur, convolve, grain, pixels, streak, zoom
from .keyed import uniform
from .textures import crystals, plasma


def snow(
    x: Tensor,
    noise: Noise,
    mean: float,
    spread: float,
    size: float,
    least: float,
    reach: float,
    sigma: float,
    keep: float,
) -> Tensor:
    """Flakes, grain above `least`, enlarged and drawn out as they fall, on an image that whitens by 1 - `keep`."""
    flakes = zoom(mean + spread * grain(x, noise.split("flakes")), size)
    flakes = torch.where(flakes < least, 0.0, flakes).clamp(0, 1)
    angle = math.pi * (uniform(noise.split("angle")) / 2 + 1 / 4)  # from 45 to 135 degrees
    flakes = streak(flakes, angle, reach * pixels(x), sigma * pixels(x))
    white = torch.maximum(x, 1.5 * luma(x) + 0.5)
    return keep * x + (1 - keep) * white + flakes + flakes.flip(2, 3)


def frost(x: Tensor, noise: Noise, keep: float, cover: float) -> Tensor:
    """Adds `cover` times a texture of ice crystals to `keep` times the image."""
    ice = crystals(x, noise)
    return keep * x + cover * (paint(0.80, 0.92, 1.0, x) * ice)


def fog(x: Tensor, noise: Noise, amount: float, decay: float) -> Tensor:
    """Adds a plasma fractal, and scales the sum back to the brightest value that was there."""
    most = x.amax((1, 2, 3), keepdim=True)
    return (x + amount * plasma(x, noise, decay)) * most / (most + amount)


def brightness(x: Tensor, noise: Noise, amount: float) -> Tensor:
    """Adds to the value of hue, saturation, value."""
    if x.shape[1] == 1:
        return x + amount
    hue, saturation, value = to_hsv(x).unbind(1)
    return from_hsv(torch.stack((hue, saturation, (value + amount).clamp(0, 1)), 1))


def saturate(x: Tensor, noise: Noise, scale: float, shift: float) -> Tensor:
    """Scales and shifts the saturation; value and hue stay. Grey images stay."""
    if x.shape[1] == 1:
        return x
    hue, saturation, value = to_hsv(x).unbind(1)
    return from_hsv(torch.stack((hue, (scale * saturation + shift).clamp(0, 1), value), 1))


def spatter(
    x: Tensor, noise: Noise, mean: float, spread: float, smooth: float, least: float, amount: float, mud: int
) -> Tensor:
    """Drops of water, or mud, where blurred grain exceeds `least`; `amount` is the water's strength, the mud's blur."""
    liquid = mean + spread * blur(grain(x, noise), smooth * pixels(x))
    if mud:
        cover = blur((liquid > least).to(x.dtype), amount * pixels(x))
        cover = torch.where(cover < 0.8, 0.0, cover)
        return (1 - cover) * x + cover * paint(63 / 255, 42 / 255, 20 / 255, x)
    drops = torch.where(liquid > least, liquid, 0.0)
    light = convolve(drops, torch.tensor([[-2.0, -1.0, 0.0], [-1.0, 1.0, 1.0], [0.0, 1.0, 2.0]]))  # from a corner
    drops = drops * light.clamp_min(0)
    drops = amount * drops / drops.amax((1, 2, 3), keepdim=True).clamp_min(1e-6)
    return x + drops * paint(175 / 255, 238 / 255, 238 / 255, x)
