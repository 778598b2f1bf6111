"""Augmentation of images as a batched tensor operation, with the noise of the member that sees them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.noise import Noise
from ..core.registry import Saved


class Augmentation(Saved, kind="augmentation"):
    """A random change of inputs (B, ...) that leaves their targets true. Runs under vmap: no data-dependent branch."""

    @abstractmethod
    def __call__(self, inputs: Any, noise: Noise) -> Any:
        """Changed inputs, of the same shapes."""


@dataclass(frozen=True, kw_only=True)
class CropFlip(Augmentation):
    """Images (B, C, H, W) padded with zeros, cropped at random to their size, and mirrored half of the time."""

    padding: int = 4
    """Pixels added on each side."""
    flip: bool = True
    """Whether left and right are exchanged with probability one half."""

    def __post_init__(self) -> None:
        if self.padding < 0:
            raise ValueError(f"expected padding of at least 0 pixels, got {self.padding}")

    def __call__(self, inputs: Tensor, noise: Noise) -> Tensor:
        if inputs.dim() != 4:
            raise ValueError(
                f"CropFlip expects images (B, C, H, W), got {tuple(inputs.shape)}: reshape the inputs, or use another "
                "augmentation"
            )
        batch, channels, height, width = inputs.shape
        words = noise.words(3 * batch).reshape(3, batch, 1)
        shift = words[:2] % (2 * self.padding + 1)
        rows = shift[0] + torch.arange(height, device=inputs.device)  # (B, H)
        columns = torch.arange(width, device=inputs.device).expand(batch, width)
        if self.flip:
            columns = torch.where(words[2] < 2**31, width - 1 - columns, columns)
        columns = shift[1] + columns  # (B, W)
        padded = F.pad(inputs, (self.padding,) * 4)
        tall = padded.gather(2, rows[:, None, :, None].expand(batch, channels, height, padded.shape[3]))
        return tall.gather(3, columns[:, None, None, :].expand(batch, channels, height, width))
