"""A normal distribution with any covariance: full Laplace, and exact posteriors of linear problems."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, ravel, unravel
from .family import Family, family, root_of


@family
class Full(Family):
    """N(centre, factor factor'), over all P elements of the params in the order of `ravel`."""

    centre: Params
    """The mean."""
    factor: Tensor  # (P, P), lower triangular with a positive diagonal
    buffers: Params
    """Norm statistics and other buffers of the network."""

    def sample(self, noise: Noise) -> Point:
        z = noise.normal(self.factor[0])
        step = unravel(self.factor @ z, self.centre)
        return Point({n: c + step[n] for n, c in self.centre.items()}, self.buffers)

    def mean(self) -> Point:
        return Point(self.centre, self.buffers)

    def log_prob(self, params: Params) -> Tensor:
        difference = ravel({n: params[n] - c for n, c in self.centre.items()})
        z = torch.linalg.solve_triangular(self.factor, difference.unsqueeze(-1), upper=False).squeeze(-1)
        return -0.5 * z.square().sum() - self.factor.diagonal().log().sum() - 0.5 * len(z) * math.log(2 * math.pi)

    def quad(self, jacobian: Params) -> Tensor:
        root = ravel({n: jacobian[n] for n in self.centre}, 1) @ self.factor
        return root @ root.T

    def scaled(self, factor: float | Tensor) -> Full:
        return Full(self.centre, self.factor * root_of(factor, self.factor), self.buffers)
