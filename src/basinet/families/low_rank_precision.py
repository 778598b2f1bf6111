"""A normal distribution whose precision is a diagonal plus a few columns: what LOFI keeps of a stream.

    N(m, (Y + C'C)^-1),   Y diagonal, C (K, P)

With V = C Y^-1/2 and V V' = Q diag(s^2) Q', nothing of the size P x P is made:

    (Y + C'C)^-1 = R R',   R = Y^-1/2 (I - V' Q diag(1 / (r (r + 1))) Q' V),   r = sqrt(1 + s^2)
    log det (Y + C'C) = log det Y + sum log r^2
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, ravel, unravel
from .family import Family, family, root_of


@family
class LowRankPrecision(Family):
    """N(centre, (diag(precision) + sum_k columns_k columns_k')^-1)."""

    centre: Params
    """The mean."""
    precision: Params
    """The diagonal, above 0."""
    columns: Params  # leaves (K, ...); columns of zeros count for nothing
    buffers: Params
    """Norm statistics and other buffers of the network."""

    def sample(self, noise: Noise) -> Point:
        z = ravel(noise.normal_params(self.centre))
        step = unravel(self._rooted(z.unsqueeze(0))[0] / ravel(self.precision).sqrt(), self.centre)
        return Point({n: c + step[n] for n, c in self.centre.items()}, self.buffers)

    def mean(self) -> Point:
        return Point(self.centre, self.buffers)

    def log_prob(self, params: Params) -> Tensor:
        difference = ravel({n: params[n] - c for n, c in self.centre.items()})
        diagonal, columns = ravel(self.precision), self._joined()
        square = (diagonal * difference.square()).sum() + (columns @ difference).square().sum()
        logs = diagonal.log().sum() + torch.log1p(self._spectrum()[0]).sum()
        return 0.5 * (logs - square - len(difference) * math.log(2 * math.pi))

    def quad(self, jacobian: Params) -> Tensor:
        rows = ravel({n: jacobian[n] for n in self.centre}, 1)
        root = self._rooted(rows / ravel(self.precision).sqrt())
        return root @ root.mT

    def scaled(self, factor: float | Tensor) -> LowRankPrecision:
        if not isinstance(factor, Tensor) and factor == 0:
            raise ValueError("expected a covariance scale above 0: of a precision, none is infinite; got 0")
        precision = {n: x / root_of(factor, x).square() for n, x in self.precision.items()}
        columns = {n: x / root_of(factor, x) for n, x in self.columns.items()}
        return LowRankPrecision(self.centre, precision, columns, self.buffers)

    def _joined(self) -> Tensor:
        """The columns, (K, P)."""
        return ravel({n: self.columns[n] for n in self.centre}, 1)

    def _spectrum(self) -> tuple[Tensor, Tensor, Tensor]:
        """s^2, (K,), Q and V."""
        whitened = self._joined() / ravel(self.precision).sqrt()
        squares, basis = torch.linalg.eigh(whitened @ whitened.mT)
        return squares.clamp(min=0), basis, whitened

    def _rooted(self, rows: Tensor) -> Tensor:
        """Rows (k, P) times the symmetric root of (I + V'V)^-1."""
        squares, basis, whitened = self._spectrum()
        r = (1 + squares).sqrt()
        along = basis.mT @ whitened  # (K, P)
        return rows - ((rows @ along.mT) / (r * (r + 1))) @ along
