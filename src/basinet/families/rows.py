"""A normal distribution over one linear layer, its rows independent, each with any covariance: VBLL."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point
from .family import Family, family, root_of


@family
class Rows(Family):
    """Row c of the matrix, with element c of the bias behind it if there is one, is N(centre_c, factor_c factor_c')
    of D elements."""

    centre: Params
    """One matrix (C, ...), and a bias (C,) or none."""
    factor: Tensor  # (C, D, D), lower triangular with a positive diagonal
    buffers: Params
    """Norm statistics and other buffers of the network."""

    def sample(self, noise: Noise) -> Point:
        z = noise.normal(self.factor[..., 0])  # (C, D)
        step = torch.einsum("cij,cj->ci", self.factor, z)
        return Point(self._apart(self._joined(self.centre) + step), self.buffers)

    def mean(self) -> Point:
        return Point(self.centre, self.buffers)

    def log_prob(self, params: Params) -> Tensor:
        difference = self._joined(params) - self._joined(self.centre)
        z = torch.linalg.solve_triangular(self.factor, difference.unsqueeze(-1), upper=False)
        logs = self.factor.diagonal(dim1=-2, dim2=-1).log().sum()
        return -0.5 * z.square().sum() - logs - 0.5 * difference.numel() * math.log(2 * math.pi)

    def quad(self, jacobian: Params) -> Tensor:
        parts = [jacobian[n].reshape(len(jacobian[n]), len(x), -1) for n, x in self.centre.items()]
        root = torch.einsum("oci,cij->ocj", torch.cat(parts, -1), self.factor).flatten(1)
        return root @ root.T

    def scaled(self, factor: float | Tensor) -> Rows:
        return Rows(self.centre, self.factor * root_of(factor, self.factor), self.buffers)

    def _joined(self, params: Params) -> Tensor:
        """(C, D)."""
        return torch.cat([params[n].reshape(len(x), -1) for n, x in self.centre.items()], -1)

    def _apart(self, rows: Tensor) -> Params:
        widths = [x[0].numel() for x in self.centre.values()]
        parts = rows.split(widths, -1)
        return {n: part.reshape(x.shape) for (n, x), part in zip(self.centre.items(), parts)}
