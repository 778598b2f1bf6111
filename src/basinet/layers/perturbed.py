"""Linear layers and convolutions whose weights are normal, computed without one draw of the weights for all examples.

    local    z = W a + b + sqrt(S^2 a^2 + s^2) e,   e fresh for each example and output   (Kingma et al. 2015)
    flipout  z = W a + b + r * (D (a * q) + d),     D = S * E, d = s * e one draw for the batch; q, r random signs of
                                                    each example                             (Wen et al. 2018)

with standard deviations S, s of weight and bias. Each example's z has the law that a draw of the weights gives it, and
examples are (nearly) independent, so that the gradient of a batch is less noisy. `local` holds for a layer that sees an
example once, as one vector: places of an image or a sequence share their weights, and it would draw them apart.
"""

from __future__ import annotations

from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["local", "flipout"]
FUNCTIONS = {nn.Linear: F.linear, nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d, nn.Conv3d: F.conv3d}
SETTINGS = ("stride", "padding", "dilation", "groups")  # of a convolution
GIVEN = ("weight_scale", "bias_scale", "normals")  # buffers: standard deviations, and e of local noise, (B, o)


def perturbable(layer: nn.Module) -> bool:
    """Whether a layer is of a class that has a perturbed form; a subclass may compute something else."""
    return type(layer) in FUNCTIONS and getattr(layer, "padding_mode", "zeros") == "zeros"


class Perturbed(nn.Module):
    """A layer with noise of the standard deviations that its buffers hold; without noise where these
    are empty."""

    weight: Tensor
    bias: Any  # Tensor | None
    weight_scale: Tensor
    bias_scale: Tensor
    normals: Tensor

    def __init__(self, layer: nn.Module, kind: Kind) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias  # type: ignore[assignment]
        self.kind, self.linear = kind, isinstance(layer, nn.Linear)
        self.function: Any = FUNCTIONS[type(layer)]
        self.settings = () if self.linear else tuple(getattr(layer, name) for name in SETTINGS)
        for name in GIVEN:
            self.register_buffer(name, torch.empty(0, dtype=layer.weight.dtype))  # type: ignore[arg-type]

    def forward(self, x: Tensor) -> Tensor:
        mean = self._run(x, self.weight, self.bias)
        if self.weight_scale.numel() == 0:
            return mean
        return mean + (self._local(x) if self.kind == "local" else self._flipout(x, mean))

    def _local(self, x: Tensor) -> Tensor:
        spread = self.bias_scale * self.bias_scale if self._noisy_bias else None  # the slope of a power costs more
        variance = self._run(x * x, self.weight_scale * self.weight_scale, spread)
        tiny = torch.finfo(variance.dtype).tiny  # the root has a slope where an example is all zeros
        return variance.clamp(min=tiny).sqrt() * self.normals

    def _flipout(self, x: Tensor, mean: Tensor) -> Tensor:
        draw = self.weight_scale * torch.randn_like(self.weight)
        shift = self.bias_scale * torch.randn_like(self.bias) if self._noisy_bias else None
        channel = -1 if self.linear else 1
        return self._run(x * _signs(x, channel), draw, shift) * _signs(mean, channel)

    def _run(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.function(x, weight, bias, *self.settings)

    @property
    def _noisy_bias(self) -> bool:
        return self.bias_scale.numel() > 0

    def extra_repr(self) -> str:
        return f"{self.function.__name__}, {self.kind}"


def _signs(x: Tensor, channel: int) -> Tensor:
    """-1 or 1 for each example and channel, the same at all places, ready to multiply x (B, ...)."""
    shape = [1] * x.dim()
    shape[0], shape[channel] = x.shape[0], x.shape[channel]
    like = torch.empty(shape, dtype=torch.float32, device=x.device)
    return torch.where(torch.rand_like(like) < 0.5, -1.0, 1.0).to(x.dtype)
