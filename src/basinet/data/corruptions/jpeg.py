"""JPEG: what its compression loses, without the coding that loses nothing.

Luma and chroma, chroma at half the resolution, cosine transforms of 8 x 8 blocks, and their coefficients rounded to
multiples of the standard's example tables (ITU-T T.81, Annex K) scaled to a quality as the IJG's library does.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from ...core.noise import Noise
from .colour import from_ycc, to_ycc

# rows from low to high vertical frequency
LUMA = """
16 11 10 16 24 40 51 61   12 12 14 19 26 58 60 55   14 13 16 24 40 57 69 56   14 17 22 29 51 87 80 62
18 22 37 56 68 109 103 77   24 35 55 64 81 104 113 92   49 64 78 87 103 121 120 101   72 92 95 98 112 100 103 99
"""
CHROMA = f"""
17 18 24 47 {"99 " * 4} 18 21 26 66 {"99 " * 4} 24 26 56 {"99 " * 5} 47 66 {"99 " * 6} {"99 " * 32}
"""


def jpeg(x: Tensor, noise: Noise, quality: float) -> Tensor:
    """Images as they look after JPEG of a quality of 1 to 100."""
    height, width = x.shape[-2:]
    block = 8 if x.shape[1] == 1 else 16
    x = F.pad((255 * x).round(), (0, -width % block, 0, -height % block), mode="replicate")
    if x.shape[1] == 1:
        out = rounded(x - 128, table(LUMA, quality)) + 128
    else:
        luma, chroma = to_ycc(x)
        luma = rounded(luma.round() - 128, table(LUMA, quality)) + 128
        chroma = rounded(F.avg_pool2d(chroma, 2).round(), table(CHROMA, quality))
        chroma = F.interpolate(chroma, x.shape[-2:], mode="bilinear", align_corners=False)
        out = from_ycc(luma, chroma)
    return out[..., :height, :width].round() / 255


def cosines() -> Tensor:
    """The cosine transform of 8 numbers: an orthonormal matrix, frequencies in rows."""
    frequency, place = torch.arange(8.0)[:, None], torch.arange(8.0)
    matrix = torch.cos(math.pi / 8 * frequency * (place + 0.5)) / 2
    matrix[0] /= math.sqrt(2)
    return matrix


def table(words: str, quality: float) -> Tensor:
    """The steps (8, 8) to which coefficients are rounded."""
    scale = 5000 / quality if quality < 50 else 200 - 2 * quality
    steps = torch.tensor([float(word) for word in words.split()]).reshape(8, 8)
    return ((steps * scale + 50) / 100).floor().clamp(1, 255)


def rounded(x: Tensor, steps: Tensor) -> Tensor:
    """Channels (B, C, H, W), sides multiples of 8, with the coefficients of their blocks rounded to multiples."""
    batch, channels, height, width = x.shape
    matrix, steps = cosines().to(x), steps.to(x)
    blocks = x.reshape(batch, channels, height // 8, 8, width // 8, 8).transpose(3, 4)
    coefficients = matrix @ blocks @ matrix.T / steps
    # many lie half-way (sums of 64 integers over 8): up, whatever the rounding
    coefficients = (coefficients + 0.501).floor() * steps
    return (matrix.T @ coefficients @ matrix).transpose(3, 4).reshape(x.shape)
