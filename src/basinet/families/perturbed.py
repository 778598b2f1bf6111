"""A point with noise of a stated size on some of its tensors: what parameter ensembling by perturbation (PEP) gives."""

from __future__ import annotations

import math
from dataclasses import field

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point
from .family import Family, family

ROOT = math.sqrt(3)  # half the width of the uniform distribution of variance one


@family
class Perturbed(Family):
    """centre + sigma z on the tensors that `sigma` names, z independent with mean zero and variance one; the others
    stay. Of sigma zero it is the point. A matrix with a span S, orthonormal columns, has centre + sigma S z: noise of
    rank r, which has a density only in the directions of S."""

    centre: Params
    """The point that is perturbed, which is the mean."""
    sigma: Params  # (), the standard deviation of each tensor that is perturbed
    buffers: Params
    """Norm statistics and other buffers of the network."""
    uniform: bool = False
    """Whether z is uniform on +-sqrt(3) rather than normal."""
    span: Params = field(default_factory=dict)  # (rows, r), of tensors whose noise is of low rank

    def sample(self, noise: Noise) -> Point:
        moved = {n: self.centre[n] + s * self._standard(noise.split(n), n) for n, s in self.sigma.items()}
        return Point(self.centre | moved, self.buffers)

    def mean(self) -> Point:
        return Point(self.centre, self.buffers)

    def log_prob(self, params: Params) -> Tensor:
        """The log density of the tensors that are perturbed; the others have none, and are not looked at."""
        terms, outside = [], []
        for n, s in self.sigma.items():
            offset = params[n] - self.centre[n]
            largest = self.centre[n].abs()
            if n in self.span:
                across, largest = offset.flatten(1), largest.max()
                offset = self.span[n].T @ across  # (r, columns)
                rest = (across - self.span[n] @ offset).abs().max()
                outside.append(rest > 100 * torch.finfo(rest.dtype).eps * (largest + offset.abs().max()))
            if self.uniform:
                rounding = 4 * torch.finfo(offset.dtype).eps * (largest + s)
                outside.append((offset.abs() > ROOT * s + rounding).any())
                each = torch.full_like(offset, -math.log(2 * ROOT))
            else:
                z = torch.where(offset == 0, 0.0, offset / s)  # sigma may be zero
                outside.append(z.isinf().any())
                each = -0.5 * z.square() - 0.5 * math.log(2 * math.pi)
            terms.append((each - s.log()).sum())
        return torch.where(torch.stack(outside).any(), -torch.inf, torch.stack(terms).sum())

    def quad(self, jacobian: Params) -> Tensor:
        """J Sigma J' for a Jacobian given per parameter, leaves (outputs, *shape): (outputs, outputs)."""
        rows = torch.cat([(self._along(n, jacobian[n]) * s).flatten(1) for n, s in self.sigma.items()], 1)
        return rows @ rows.T

    def _standard(self, noise: Noise, name: str) -> Tensor:
        """z, or S z where the noise is of low rank, in the shape of the tensor."""
        like, span = self.centre[name], self.span.get(name)
        if span is not None:
            like = like.flatten(1)[: span.shape[1]]  # (r, columns)
        z = 2 * ROOT * (noise.uniform(like) - 0.5) if self.uniform else noise.normal(like)
        return z if span is None else (span @ z).reshape(self.centre[name].shape)

    def _along(self, name: str, rows: Tensor) -> Tensor:
        """Rows (outputs, *shape) of a Jacobian, in the directions that have noise."""
        if name not in self.span:
            return rows
        return torch.einsum("oij,ir->orj", rows.flatten(2), self.span[name])
