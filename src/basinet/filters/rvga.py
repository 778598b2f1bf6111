"""R-VGA: the recursive variational Gaussian approximation (Lambert, Bonnabel and Bach 2022).

    precision_t = precision_(t-1) + E_q[H(theta)],   mean_t = mean_(t-1) + covariance_(t-1) E_q[grad log p(y_t | theta)]

with q = N(mean_t, covariance_t) itself: both equations are implicit. They are solved by Newton steps from the last
posterior, each of which begins with what the last posterior knows, so that no example is counted twice. H is the
Gauss-Newton matrix, for classes and normal noise minus the Hessian where the outputs are linear in the parameters.
Expectations are over pairs of draws that mirror each other, whose key comes from the batch: the same stream gives the
same posterior. Where the log likelihood is quadratic nothing depends on the draws, and it is the Kalman filter.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Literal

import torch

from ..core.noise import Noise
from ..core.tree import Params, Point, leaves, take
from ..data import Piece
from ..families import Diagonal, Family
from ..problem import Problem
from . import condition
from .ekf import diagonal_of
from .filter import Prior, Seen, observed
from .kalman import full_of
from .linearised import Linearised


@dataclass(frozen=True, kw_only=True)
class RVGA(Linearised):
    """A network filtered by what its batches say on average over the posterior itself, not at its mean only."""

    structure: Literal["full", "diagonal"] = "full"
    """Structure of the covariance: full, or the diagonal of the precision."""
    draws: int = 20
    """Draws of the parameters over which gradients and curvature are averaged: an even number."""
    iterations: int = 3
    """Newton steps for a batch."""

    def __post_init__(self) -> None:
        if self.structure not in ("full", "diagonal"):
            raise ValueError(f"expected structure 'full' or 'diagonal', got {self.structure!r}")
        if self.draws < 2 or self.draws % 2:
            raise ValueError(f"expected an even number of draws, at least 2, got {self.draws}")
        super().__post_init__()

    def numbers(self, parameters: int) -> int:
        return parameters**2 if self.structure == "full" else parameters

    def opened(self, prior: Prior, buffers: Params) -> Family:
        return full_of(prior, buffers) if self.structure == "full" else diagonal_of(prior, buffers, self.label)

    def conditioned(self, before: Any, seen: Seen) -> Family:
        if isinstance(before, Diagonal):
            return condition.diagonal(before, *seen, decoupled=False)
        return condition.full(before, *seen)

    def seen(self, problem: Problem, point: Point, piece: Piece, names: tuple[str, ...], part: Any) -> Seen:
        """The average over draws: rows of all of them, each with its share."""
        half = self.draws // 2
        drawn = part.draws(Noise.seed(_number(piece), piece.targets.device).split("rvga"), 0, half).params
        mean = {n: point.params[n] for n in names}
        rows, push = [], torch.zeros_like(torch.cat([x.reshape(-1) for x in mean.values()]))
        for s in range(half):
            step = {n: x - mean[n] for n, x in take({n: drawn[n] for n in names}, s).items()}
            for sign in (1.0, -1.0):
                there = point.params | {n: x + sign * step[n] for n, x in mean.items()}
                seen = observed(problem, Point(there, point.buffers), piece, names)
                rows.append(seen.rows / self.draws**0.5)
                push = push + seen.push / self.draws
        return Seen(torch.cat(rows), push)


def _number(piece: Piece) -> int:
    """A number that follows from the examples."""
    number = 0
    for x in (*leaves(piece.inputs), piece.targets):
        number = zlib.crc32(x.detach().cpu().contiguous().numpy().tobytes(), number)
    return number
