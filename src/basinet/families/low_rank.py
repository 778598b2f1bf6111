"""A normal distribution whose covariance is a diagonal plus a few columns: SWAG, low-rank Laplace.

    N(m, D + C'C),   D diagonal, C (K, P) with a column of the covariance's root a row

Everything is computed with W = C D^-1/2 in K x K, never in P x P:

    log det (D + C'C) = log det D + log det (I + W W')
    r' (D + C'C)^-1 r = |u - W's|^2 + |s|^2,   u = D^-1/2 r,   s = (I + W W')^-1 W u

The second line is Woodbury's identity as a sum of squares, so that no difference of large numbers is taken.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point
from .family import Family, family, root_of


@family
class LowRank(Family):
    """N(centre, diag(diagonal) + sum_k columns_k columns_k')."""

    centre: Params
    """The mean."""
    diagonal: Params
    """Variances; a density needs them above 0."""
    columns: Params  # leaves (K, ...)
    buffers: Params
    """Norm statistics and other buffers of the network."""

    def sample(self, noise: Noise) -> Point:
        z = noise.split("diagonal").normal_params(self.centre)
        first = next(iter(self.columns.values()))
        weights = noise.split("columns").normal(torch.empty(len(first), dtype=first.dtype, device=first.device))
        return Point(
            {
                n: c + self.diagonal[n].sqrt() * z[n] + torch.tensordot(weights, self.columns[n], 1)
                for n, c in self.centre.items()
            },
            self.buffers,
        )

    def mean(self) -> Point:
        return Point(self.centre, self.buffers)

    def log_prob(self, params: Params) -> Tensor:
        scale = {n: x.sqrt() for n, x in self.diagonal.items()}
        u = {n: ((params[n] - c) / scale[n]).reshape(-1) for n, c in self.centre.items()}
        w = {n: _rows(self.columns[n] / scale[n]) for n in self.centre}  # (K, P) in parts
        inner = torch.stack([w[n] @ w[n].T for n in w]).sum(0)
        root = torch.linalg.cholesky(inner + torch.eye(len(inner), dtype=inner.dtype, device=inner.device))
        projected = torch.stack([w[n] @ u[n] for n in w]).sum(0)
        s = torch.cholesky_solve(projected[:, None], root)[:, 0]
        square = torch.stack([(u[n] - s @ w[n]).square().sum() for n in w]).sum() + s.square().sum()
        logs = torch.stack([x.log().sum() for x in scale.values()]).sum() + root.diagonal().log().sum()
        count = sum(x.numel() for x in self.centre.values())
        return -0.5 * square - logs - 0.5 * count * math.log(2 * math.pi)

    def quad(self, jacobian: Params) -> Tensor:
        """J Sigma J' for a Jacobian given per parameter, leaves (outputs, *shape): (outputs, outputs)."""
        rows = {n: _rows(jacobian[n]) for n in self.centre}
        straight = [(rows[n] * self.diagonal[n].reshape(-1)) @ rows[n].T for n in rows]
        along = torch.stack([rows[n] @ _rows(self.columns[n]).T for n in rows]).sum(0)  # (outputs, K)
        return torch.stack(straight).sum(0) + along @ along.T

    def scaled(self, factor: float | Tensor) -> LowRank:
        diagonal = {n: x * root_of(factor, x) ** 2 for n, x in self.diagonal.items()}
        columns = {n: x * root_of(factor, x) for n, x in self.columns.items()}
        return LowRank(self.centre, diagonal, columns, self.buffers)


def _rows(x: Tensor) -> Tensor:
    """(K, ...) as (K, P)."""
    return x.reshape(len(x), -1)
