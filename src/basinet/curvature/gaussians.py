"""From curvature and a normal prior to a normal posterior: precision = a H + diag(prior), for any a and prior.

Each structure has eigenvalues in which the prior is seen beforehand, so that many priors are tried at no cost, and the
family that the posterior is. A precision that is not positive is raised by at most JITTER of its largest value.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core.tree import Params
from ..families import Diagonal, Eigen, Family, Full, Kronecker
from .structures import Diagonals, Directions, Factors, Matrix

LEAF = 128  # rows of a triangular matrix that are inverted at once
JITTER = 1e-6  # of the largest precision: what is put right as rounding; more is an error
Prior = Mapping[str, float]  # the precision of each parameter tensor


class NotPositive(ValueError):
    """A precision that is not positive definite: there is no posterior."""


class Curved(ABC):
    """Curvature in a structure."""

    @abstractmethod
    def eigenvalues(self, prior: Prior) -> dict[str, Tensor]:
        """Of D^-1/2 H D^-1/2 with D = diag(prior), those that are not zero; by tensor where tensors are independent,
        else under ''."""

    @abstractmethod
    def posterior(self, centre: Params, share: float, prior: Prior, buffers: Params) -> tuple[Family, float]:
        """N(centre, (share H + D)^-1), and log det(share H + D) - log det D, with D = diag(prior)."""


@dataclass(frozen=True, eq=False)
class CurvedDiagonal(Curved):
    """Independent elements."""

    curvature: Diagonals

    def eigenvalues(self, prior: Prior) -> dict[str, Tensor]:
        return {n: h.flatten() / prior[n] for n, h in self.curvature.values.items()}

    def posterior(self, centre: Params, share: float, prior: Prior, buffers: Params) -> tuple[Diagonal, float]:
        precision = {n: positive(share * h + prior[n], n) for n, h in self.curvature.values.items()}
        scale = {n: precision[n].rsqrt().to(c) for n, c in centre.items()}
        return Diagonal(centre, scale, buffers), _volume(precision, prior)


@dataclass(frozen=True, eq=False)
class CurvedKronecker(Curved):
    """Independent tensors, each diagonal in a basis of its own."""

    left: Params  # (o, o), eigenvectors
    right: Params  # (i, i), eigenvectors
    values: Params  # (o, i), in that basis

    @staticmethod
    def of(factors: Factors, params: Params) -> CurvedKronecker:
        """From factors: eigenvalues of a Kronecker product are the products of eigenvalues. Bases are kept in the
        precision of the params: all families that are made of them share them."""
        left, right, values = {}, {}, {n: _matrix(x) for n, x in factors.diagonal.items()}
        known: list[tuple[Tensor, tuple[Tensor, Tensor]]] = []  # that of a layer's matrix and of its bias are one
        for n, g in factors.left.items():
            known = [x for x in known if torch.equal(x[0], g)] or [(g, _eigen(g, n))]
            across, basis = known[0][1]
            left[n] = basis.to(params[n])
            if n in factors.right:
                along, basis = _eigen(factors.right[n], n)
                right[n] = basis.to(params[n])
                values[n] = across.unsqueeze(1) * along
            else:
                values[n] = across.unsqueeze(1)
        return CurvedKronecker(left, right, {n: values[n] for n in params})

    def corrected(self, diagonals: Diagonals) -> CurvedKronecker:
        """The same bases with the curvature that there is along each of their directions."""
        better = {n: _matrix(diagonals.values[n]) if n in self.right else v for n, v in self.values.items()}
        return CurvedKronecker(self.left, self.right, better)

    def eigenvalues(self, prior: Prior) -> dict[str, Tensor]:
        return {n: v.flatten() / prior[n] for n, v in self.values.items()}

    def posterior(self, centre: Params, share: float, prior: Prior, buffers: Params) -> tuple[Kronecker, float]:
        precision = {n: positive(share * v + prior[n], n) for n, v in self.values.items()}
        variance = {n: precision[n].reciprocal().to(c) for n, c in centre.items()}
        return Kronecker(centre, self.left, self.right, variance, buffers), _volume(precision, prior)


@dataclass(frozen=True, eq=False)
class CurvedFull(Curved):
    """All elements together."""

    curvature: Matrix
    params: Params

    def eigenvalues(self, prior: Prior) -> dict[str, Tensor]:
        root = self._spread(prior).rsqrt()
        try:
            return {"": torch.linalg.eigvalsh(root.unsqueeze(1) * self.curvature.values * root)}
        except torch.linalg.LinAlgError as error:
            raise NotPositive(
                f"the curvature has no eigenvalues that can be found ({str(error).splitlines()[0][:120]}): standardise "
                "inputs and targets, or use structure='diagonal'"
            ) from error

    def posterior(self, centre: Params, share: float, prior: Prior, buffers: Params) -> tuple[Full, float]:
        spread = self._spread(prior)
        precision = share * self.curvature.values
        precision.diagonal().add_(spread)
        factor = inverse_factor(precision, ", ".join(self.params))
        volume = -2 * float(factor.diagonal().log().sum()) - float(spread.log().sum())
        return Full(centre, factor.to(next(iter(centre.values()))), buffers), volume

    def _spread(self, prior: Prior) -> Tensor:
        each = [self.curvature.values.new_full((x.numel(),), prior[n]) for n, x in self.params.items()]
        return torch.cat(each)


@dataclass(frozen=True, eq=False)
class CurvedLowRank(Curved):
    """Few directions, for a prior that is the same in all."""

    curvature: Directions

    def eigenvalues(self, prior: Prior) -> dict[str, Tensor]:
        return {"": self.curvature.values / one_precision(prior)}

    def posterior(self, centre: Params, share: float, prior: Prior, buffers: Params) -> tuple[Eigen, float]:
        like, rest = next(iter(centre.values())), one_precision(prior)
        basis = {n: x.to(like) for n, x in self.curvature.basis.items()}
        variance = (share * self.curvature.values + rest).reciprocal()
        volume = float(torch.log1p(self.curvature.values * (share / rest)).sum())
        return Eigen(centre, basis, variance.to(like), like.new_full((), rest), buffers), volume


def one_precision(prior: Prior) -> float:
    """That of all parameters, where it is one."""
    if len(set(prior.values())) > 1:
        raise ValueError(
            "structure='low-rank' has one prior precision for all parameters, got several: use a Normal prior of one "
            "scale, or another structure"
        )
    return next(iter(prior.values()))


def _volume(precision: Params, prior: Prior) -> float:
    return math.fsum(float((x / prior[n]).log().sum()) for n, x in precision.items())


def _eigen(matrix: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Eigenvalues and eigenvectors; values below zero by rounding are zero."""
    if not bool(matrix.isfinite().all()):
        raise FloatingPointError(
            f"the curvature of {name} is NaN or infinite: check that the parameters are finite and near a mode"
        )
    values, vectors = torch.linalg.eigh(matrix)
    if bool(values[0] < -JITTER * values.abs().amax()):
        return values, vectors  # an exact Hessian: whether the posterior exists depends on the prior
    return values.clamp(min=0), vectors


def positive(precision: Tensor, name: str) -> Tensor:
    largest = precision.abs().amax()
    if bool(precision.amin() > 0):
        return precision
    if not bool(precision.amin() > -JITTER * largest):
        raise _not_positive(name, float(precision.amin()), float(largest))
    return precision.clamp(min=JITTER * float(largest))


def inverse_factor(precision: Tensor, name: str) -> Tensor:
    """The lower triangular L with L L' = precision^-1: from the Cholesky factor of the matrix read backwards."""
    largest = float(precision.diagonal().abs().amax())
    turned = precision.flip(0, 1)
    for jitter in (0.0, 1e-4 * JITTER, 1e-2 * JITTER, JITTER):
        if jitter:
            turned.diagonal().add_(jitter * largest)
        factor, failed = torch.linalg.cholesky_ex(turned)
        if not failed and bool(factor.diagonal().isfinite().all()):
            inverse = torch.zeros_like(factor)
            _invert(factor, inverse)
            return inverse.mT.flip(0, 1)
    if not bool(precision.isfinite().all()):
        raise FloatingPointError(
            f"the curvature of {name} is NaN or infinite: check that the parameters are finite and near a mode"
        )
    raise _not_positive(name, float(torch.linalg.eigvalsh(precision)[0]), largest)


def _invert(factor: Tensor, inverse: Tensor) -> None:
    """Writes the inverse of a lower triangular matrix: of its halves, then what is below them, in a third of the work
    that solving for an identity takes."""
    n = len(factor)
    if n <= LEAF:
        identity = torch.eye(n, dtype=factor.dtype, device=factor.device)
        inverse.copy_(torch.linalg.solve_triangular(factor, identity, upper=False))
        return
    top, low = slice(n // 2), slice(n // 2, n)
    _invert(factor[top, top], inverse[top, top])
    _invert(factor[low, low], inverse[low, low])
    below = torch.linalg.solve_triangular(factor[top, top], -factor[low, top], upper=False, left=False)
    inverse[low, top] = torch.linalg.solve_triangular(factor[low, low], below, upper=False)


def _not_positive(name: str, least: float, largest: float) -> NotPositive:
    return NotPositive(
        f"the posterior precision of {name} is not positive definite: its least eigenvalue is {least:.3g}, the largest "
        f"{largest:.3g}, and only rounding errors up to {JITTER:g} of that are corrected. Use curvature='ggn', train "
        "longer, or use a narrower prior"
    )


def _matrix(x: Tensor) -> Tensor:
    return x.reshape(x.shape[0] if x.dim() else 1, -1)
