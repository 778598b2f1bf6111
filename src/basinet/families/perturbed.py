"""A point with noise of one size on some of its tensors: what parameter ensembling by perturbation (PEP) gives."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point
from .family import Family, family

ROOT = math.sqrt(3)  # half the width of the uniform distribution of variance one


@family
class Perturbed(Family):
    """centre + sigma z on the tensors that `sigma` names, z independent with mean zero and variance one; the others
    stay. Of sigma zero it is the point."""

    centre: Params
    sigma: Params  # (), the standard deviation of each tensor that is perturbed
    buffers: Params
    uniform: bool = False  # z uniform on +-sqrt(3), rather than normal

    def sample(self, noise: Noise) -> Point:
        moved = {n: self.centre[n] + s * self._standard(noise.split(n), self.centre[n]) for n, s in self.sigma.items()}
        return Point(self.centre | moved, self.buffers)

    def mean(self) -> Point:
        return Point(self.centre, self.buffers)

    def log_prob(self, params: Params) -> Tensor:
        """The log density of the tensors that are perturbed; the others have none, and are not looked at."""
        terms, outside = [], []
        for n, s in self.sigma.items():
            offset = params[n] - self.centre[n]
            if self.uniform:
                rounding = 4 * torch.finfo(offset.dtype).eps * (self.centre[n].abs() + s)
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
        rows = torch.cat([(jacobian[n] * s).flatten(1) for n, s in self.sigma.items()], 1)
        return rows @ rows.T

    def _standard(self, noise: Noise, like: Tensor) -> Tensor:
        return 2 * ROOT * (noise.uniform(like) - 0.5) if self.uniform else noise.normal(like)
