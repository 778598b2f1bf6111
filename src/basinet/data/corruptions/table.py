"""`corrupt`, and the table of corruptions with their parameters at each severity."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ...core.nearest import did_you_mean
from ...core.noise import Noise
from . import blurs, digital, noises, weather
from .jpeg import jpeg


class Corruption(NamedTuple):
    group: str
    change: Callable[..., Tensor]  # of images (B, C, H, W) in [0, 1], a key per image, and the values of a severity
    severities: tuple[tuple[float, ...], ...]


TABLE = {
    "gaussian_noise": Corruption("noise", noises.gaussian, ((0.04,), (0.06,), (0.08,), (0.09,), (0.10,))),
    "shot_noise": Corruption("noise", noises.shot, ((500,), (250,), (100,), (75,), (50,))),
    "impulse_noise": Corruption("noise", noises.impulse, ((0.01,), (0.02,), (0.03,), (0.05,), (0.07,))),
    "speckle_noise": Corruption("noise", noises.speckle, ((0.06,), (0.10,), (0.12,), (0.16,), (0.20,))),
    "defocus_blur": Corruption("blur", blurs.defocus, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1))),
    "glass_blur": Corruption("blur", blurs.glass, ((0.05, 1, 1), (0.25, 1, 1), (0.4, 1, 1), (0.25, 1, 2), (0.4, 1, 2))),
    "motion_blur": Corruption("blur", blurs.motion, ((6, 1), (6, 1.5), (6, 2), (8, 2), (9, 2.5))),
    "zoom_blur": Corruption("blur", blurs.zooms, ((0.05,), (0.10,), (0.15,), (0.20,), (0.25,))),
    "gaussian_blur": Corruption("blur", blurs.gaussian, ((0.4,), (0.6,), (0.7,), (0.8,), (1.0,))),
    "snow": Corruption(
        "weather",
        weather.snow,
        (
            (0.10, 0.2, 1.00, 0.60, 8, 3, 0.95),
            (0.10, 0.2, 1.00, 0.50, 10, 4, 0.90),
            (0.15, 0.3, 1.75, 0.55, 10, 4, 0.90),
            (0.25, 0.3, 2.25, 0.60, 12, 6, 0.85),
            (0.30, 0.3, 1.25, 0.65, 14, 12, 0.80),
        ),
    ),
    "frost": Corruption("weather", weather.frost, ((1, 0.2), (1, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": Corruption("weather", weather.fog, ((0.2, 3), (0.5, 3), (0.75, 2.5), (1, 2), (1.5, 1.75))),
    "brightness": Corruption("weather", weather.brightness, ((0.05,), (0.10,), (0.15,), (0.20,), (0.30,))),
    "spatter": Corruption(
        "weather",
        weather.spatter,
        (
            (0.62, 0.1, 0.7, 0.70, 0.5, 0),
            (0.65, 0.1, 0.8, 0.70, 0.5, 0),
            (0.65, 0.3, 1.0, 0.69, 0.5, 0),
            (0.65, 0.1, 0.7, 0.69, 0.6, 1),
            (0.65, 0.1, 0.5, 0.68, 0.6, 1),
        ),
    ),
    "saturate": Corruption("weather", weather.saturate, ((0.3, 0), (0.1, 0), (1.5, 0), (2, 0.1), (2.5, 0.2))),
    "contrast": Corruption("digital", digital.contrast, ((0.75,), (0.5,), (0.4,), (0.3,), (0.15,))),
    "elastic_transform": Corruption(
        "digital",
        digital.elastic,
        ((0, 0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": Corruption("digital", digital.pixelate, ((0.95,), (0.90,), (0.85,), (0.75,), (0.65,))),
    "jpeg_compression": Corruption("digital", jpeg, ((80,), (65,), (58,), (50,), (40,))),
}
NAMES = tuple(TABLE)
GROUPS = {
    group: tuple(name for name in NAMES if TABLE[name].group == group)
    for group in ("noise", "blur", "weather", "digital")
}
PIECE = 2**22  # numbers of an image batch that are corrupted at once, so that memory does not grow with images


def corrupt(images: Tensor, name: str, severity: int, seed: int = 0, begin: int = 0) -> Tensor:
    """Images (B, C, H, W), grey or colour, in [0, 1] or uint8, corrupted; of the same shape, dtype and device.

    `name` is one of `NAMES`, `severity` 1 to 5. Image i has its own noise, a function only of seed, i and name, so a
    slice is corrupted as in the whole: `begin` is the number that the first image here has in the whole. Severities
    share their noise. The work is done in float32, whatever the dtype.

    >>> images = torch.full((2, 1, 8, 8), 0.5)
    >>> foggy = corrupt(images, "fog", 3)
    >>> foggy.shape, bool((foggy != images).any())
    (torch.Size([2, 1, 8, 8]), True)
    """
    change, values = _asked(name, severity)
    _check(images)
    _, channels, height, width = images.shape
    noise = Noise.seed(seed, images.device)
    out = torch.empty_like(images)
    size = max(1, PIECE // (channels * height * width))
    for first in range(0, len(images), size):
        piece = images[first : first + size]
        numbers = begin + first + torch.arange(len(piece), device=images.device)
        x = piece.float() / 255 if images.dtype == torch.uint8 else piece.float().clamp(0, 1)
        x = change(x, noise.split(numbers).split(name), *values).clamp(0, 1)
        out[first : first + size] = (255 * x).round() if images.dtype == torch.uint8 else x
    return out


def _asked(name: str, severity: int) -> tuple[Callable[..., Tensor], tuple[float, ...]]:
    if name not in TABLE:
        raise ValueError(f"expected the name of a corruption, got {name!r}.{did_you_mean(str(name), NAMES)}")
    if isinstance(severity, bool) or severity not in (1, 2, 3, 4, 5):
        raise ValueError(f"expected a severity of 1, 2, 3, 4 or 5, got {severity!r}")
    return TABLE[name].change, TABLE[name].severities[int(severity) - 1]


def _check(images: Tensor) -> None:
    """Errors for anything but a batch of images in [0, 1]."""
    if not isinstance(images, Tensor):
        raise TypeError(f"expected images as a tensor, got {type(images).__name__}; torch.from_numpy makes one")
    if images.dim() != 4 or images.shape[1] not in (1, 3) or 0 in images.shape[2:]:
        raise ValueError(
            f"expected images (B, C, H, W) with C = 1 or 3 channels, got {tuple(images.shape)}; reshape flat images, "
            "images[None] makes a batch of one, and permute(0, 3, 1, 2) brings channels to the front"
        )
    if images.dtype == torch.uint8 or not len(images):
        return
    if not images.is_floating_point():
        raise ValueError(f"expected images of floating point in [0, 1], or of uint8, got {images.dtype}")
    low, high = images.amin().item(), images.amax().item()
    if low >= -1e-6 and high <= 1 + 1e-6:
        return
    if low >= 0 and 1 < high <= 255:
        advice = "divide by 255, or pass uint8"
    else:
        advice = "if the images were standardised, corrupt before you standardise"
    raise ValueError(f"expected values in [0, 1], got {low:.3g} to {high:.3g}; {advice}")
