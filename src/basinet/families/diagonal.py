"""A normal distribution with independent parameters: mean-field VI, diagonal Laplace, IVON."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point
from .family import Family, family, root_of


@family
class Diagonal(Family):
    """N(centre, diag(scale^2))."""

    centre: Params
    """The mean."""
    scale: Params
    """Standard deviations."""
    buffers: Params
    """Norm statistics and other buffers of the network."""

    def sample(self, noise: Noise) -> Point:
        z = noise.normal_params(self.centre)
        return Point({n: c + self.scale[n] * z[n] for n, c in self.centre.items()}, self.buffers)

    def mean(self) -> Point:
        return Point(self.centre, self.buffers)

    def log_prob(self, params: Params) -> Tensor:
        terms = []
        for n, c in self.centre.items():
            z = (params[n] - c) / self.scale[n]
            terms.append((-0.5 * z.square() - self.scale[n].log() - 0.5 * math.log(2 * math.pi)).sum())
        return torch.stack(terms).sum()

    def quad(self, jacobian: Params) -> Tensor:
        rows = [(jacobian[n] * self.scale[n]).reshape(len(jacobian[n]), -1) for n in self.centre]
        joined = torch.cat(rows, 1)
        return joined @ joined.T

    def scaled(self, factor: float | Tensor) -> Diagonal:
        scale = {n: s * root_of(factor, s) for n, s in self.scale.items()}
        return Diagonal(self.centre, scale, self.buffers)
