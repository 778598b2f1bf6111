"""A normal distribution with a Kronecker-structured covariance for each parameter tensor: KFAC, EKFAC."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point
from .family import Family, family, root_of


@family
class Kronecker(Family):
    """Tensors are independent of each other. Each, seen as a matrix (o, i) of its first axis against the rest, has
    covariance (L x R) diag(variance) (L x R)' in the eigenvectors L of its outputs and R of its inputs.

    KFAC has variances 1 / (l_o r_i + precision); the eigenvalue-corrected form has others in the same basis. A name
    that is missing in `left` or `right` has the identity there: a bias has no `right`, a norm's scale neither.
    """

    centre: Params
    """The mean."""
    left: Params  # (o, o), orthonormal columns
    right: Params  # (i, i), orthonormal columns
    variance: Params  # (o, i), in the basis of left and right
    buffers: Params
    """Norm statistics and other buffers of the network."""

    def sample(self, noise: Noise) -> Point:
        z = noise.normal_params(self.centre)
        params = {}
        for n, c in self.centre.items():
            step = self.variance[n].sqrt() * matrix(z[n])
            step = self.left[n] @ step if n in self.left else step
            step = step @ self.right[n].mT if n in self.right else step
            params[n] = c + step.reshape(c.shape)
        return Point(params, self.buffers)

    def mean(self) -> Point:
        return Point(self.centre, self.buffers)

    def log_prob(self, params: Params) -> Tensor:
        terms = []
        for n, c in self.centre.items():
            z, variance = self._rotated(n, matrix(params[n] - c)), self.variance[n]
            terms.append(-0.5 * (z.square() / variance + (2 * math.pi * variance).log()).sum())
        return torch.stack(terms).sum()

    def quad(self, jacobian: Params) -> Tensor:
        rows = []
        for n in self.centre:
            each = jacobian[n].reshape(len(jacobian[n]), *self.variance[n].shape)
            rows.append((self._rotated(n, each) * self.variance[n].sqrt()).flatten(1))
        joined = torch.cat(rows, 1)
        return joined @ joined.T

    def scaled(self, factor: float | Tensor) -> Kronecker:
        variance = {n: v * root_of(factor, v).square() for n, v in self.variance.items()}
        return Kronecker(self.centre, self.left, self.right, variance, self.buffers)

    def _rotated(self, name: str, x: Tensor) -> Tensor:
        """L' x R for x (..., o, i)."""
        x = self.left[name].mT @ x if name in self.left else x
        return x @ self.right[name] if name in self.right else x


def matrix(x: Tensor) -> Tensor:
    """A parameter as a matrix: its first axis against the rest; a number as (1, 1)."""
    return x.reshape(x.shape[0] if x.dim() else 1, -1)
