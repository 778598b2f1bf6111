"""A normal distribution that differs from a sphere along few directions: low-rank Laplace."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, ravel
from .family import Family, family, root_of


@family
class Eigen(Family):
    """Variance `variance` along K orthonormal directions, 1 / `precision` across all others."""

    centre: Params
    """The mean."""
    basis: Params  # leaves (K, *shape): the directions, orthonormal over all leaves together
    variance: Tensor  # (K,)
    precision: Tensor  # ()
    buffers: Params
    """Norm statistics and other buffers of the network."""

    def sample(self, noise: Noise) -> Point:
        z = noise.normal_params(self.centre)
        rest = self.precision.rsqrt()
        along = self._along(z) * (self.variance.sqrt() - rest)
        return Point({n: c + rest * z[n] + self._across(along, n) for n, c in self.centre.items()}, self.buffers)

    def mean(self) -> Point:
        return Point(self.centre, self.buffers)

    def log_prob(self, params: Params) -> Tensor:
        difference = {n: params[n] - c for n, c in self.centre.items()}
        along = self._along(difference)
        whole = torch.stack([x.square().sum() for x in difference.values()]).sum()
        outside = sum(x.numel() for x in self.centre.values()) - len(self.variance)
        distance = self.precision * (whole - along.square().sum()) + (along.square() / self.variance).sum()
        volume = (2 * math.pi * self.variance).log().sum() + outside * (2 * math.pi / self.precision).log()
        return -0.5 * (distance + volume)

    def quad(self, jacobian: Params) -> Tensor:
        rows = ravel({n: jacobian[n] for n in self.centre}, 1)
        along = rows @ ravel({n: self.basis[n] for n in self.centre}, 1).mT  # (outputs, K)
        return rows @ rows.mT / self.precision + (along * (self.variance - 1 / self.precision)) @ along.mT

    def scaled(self, factor: float | Tensor) -> Eigen:
        by = root_of(factor, self.variance).square()
        return Eigen(self.centre, self.basis, self.variance * by, self.precision / by, self.buffers)

    def _along(self, params: Params) -> Tensor:
        """The coordinates in the basis, (K,)."""
        return torch.stack(
            [self.basis[n].reshape(len(self.variance), -1) @ params[n].reshape(-1) for n in self.centre]
        ).sum(0)

    def _across(self, coordinates: Tensor, name: str) -> Tensor:
        return torch.tensordot(coordinates, self.basis[name], 1)
