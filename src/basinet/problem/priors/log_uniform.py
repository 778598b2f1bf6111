"""The improper density 1 / |theta| of each parameter, flat in log |theta|: energy = sum log |theta|."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ...core.noise import Noise
from ...core.tree import Params
from .prior import Prior, total


@dataclass(frozen=True, kw_only=True)
class LogUniform(Prior):
    """No scale is preferred (the prior of variational dropout). It has no integral: it cannot be sampled or normalised,
    and a mode under it is a network of zeros, so it serves methods that average over the weights."""

    def energy(self, params: Params) -> Tensor:
        return total(x.abs().log() for x in params.values())

    def log_normaliser(self, params: Params) -> Tensor:
        raise ValueError(f"LogUniform is improper and has no normaliser, so no log_prob: {_INSTEAD}")

    def sample(self, like: Params, noise: Noise) -> Params:
        raise ValueError(f"LogUniform is improper and cannot be sampled: {_INSTEAD}")


_INSTEAD = "use a proper prior such as priors.StudentT or priors.ScaleMixture"
