"""The Kalman filter: exact Bayesian linear regression, batch by batch.

For outputs that are linear in the parameters and normal noise of known size nothing is approximated: the posterior
after all batches is that of all data at once, in any order and however they are cut. With `where=` it is exact for a
last layer on features that stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.noise import Noise
from ..core.tree import Params, Point
from ..curvature.updating import covariance_of
from ..data import Piece
from ..families import Family, Full
from ..problem import Problem
from ..problem.likelihoods import Gaussian
from ..problem.priors import Normal
from . import condition
from .filter import Filter, Prior, Seen

BEND = 1e-3  # the largest second difference of outputs that count as linear, as a share of their change


@dataclass(frozen=True, kw_only=True)
class Kalman(Filter):
    """The exact posterior of a linear model with normal noise, updated. It refuses any other model."""

    def numbers(self, parameters: int) -> int:
        return parameters**2

    def centred(self, prior: Normal) -> bool:
        return True

    def adapt(self, problem: Problem) -> Problem:
        if not isinstance(problem.likelihood, Gaussian):
            raise ValueError(
                f"Kalman is exact for normal noise, got {type(problem.likelihood).__name__}: use EKF or LOFI"
            )
        return super().adapt(problem)

    def opened(self, prior: Prior, buffers: Params) -> Family:
        return full_of(prior, buffers)

    def conditioned(self, before: Full, seen: Seen) -> Family:
        return condition.full(before, *seen)

    def checked(self, problem: Problem, point: Point, piece: Piece, names: tuple[str, ...], seen: Seen) -> None:
        """Moves the parameters in a direction that is drawn, once and twice as far: of linear outputs the second
        difference is zero."""
        like = {n: point.params[n] for n in names}
        step = Noise.seed(0, seen.push.device).split("step").normal_params(like)
        outputs = []
        with torch.no_grad():
            for far in (0.0, 1.0, 2.0):
                there = point.params | {n: x + far * step[n] for n, x in like.items()}
                outputs.append(problem.outputs(there, point.buffers, piece.inputs)[0].double())
        here, near, away = outputs
        bend, change = (away - 2 * near + here).abs().max(), (away - here).abs().max()
        rounding = 100 * torch.finfo(seen.push.dtype).eps * torch.stack(outputs).abs().max()
        if bool(bend > BEND * change + rounding):
            raise ValueError(
                "Kalman is exact for outputs that are linear in the parameters, and these are not: name those of the "
                "last layer, where=..., or use EKF"
            )


def full_of(prior: Prior, buffers: Params) -> Full:
    """A prior as a family with any covariance."""
    if prior.scale is not None:
        factor = torch.diag(torch.cat([x.reshape(-1) for x in prior.scale.values()]))
        return Full(prior.centre, factor, buffers)
    try:
        factor = torch.linalg.cholesky(covariance_of(prior.family, prior.centre))
    except torch.linalg.LinAlgError as error:
        raise ValueError(
            f"the prior's {type(prior.family).__name__} has a covariance that is not positive: a filter needs every "
            "parameter to have some variance"
        ) from error
    return Full(prior.centre, factor, buffers)
