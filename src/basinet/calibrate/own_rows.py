"""How wide a mixture should be whose members were validated on rows of their own.

No row is new to all members, so the mixture itself cannot be judged. But a member can, and two can where both left a
row out. With deviations in units of the members' own standard deviation, which fits their errors,

    1           is the variance of a member's error,
    b           that of members around each other, half of the mean squared difference of two,
    1 - c b     the variance of the mixture's error, c = 1 - sum_k w_k^2 (1 - 1 / M for equal weights),
    1 + c b     the variance that the mixture states

so that deviations from the mean have to be multiplied by the square root of (1 - c b) / (1 + c b).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ..core.wording import option
from ..engine.progress import Progress
from ..predict import Predictive, RealPredictive

FAR = 9.0  # squared deviations count up to this: a few inputs where members go far apart do not decide
LEAST = 0.1  # of a member's variance is left at least
FEWEST = 10  # pairs of predictions, below which members say nothing of each other


def mixture_factor(
    seen: Sequence[Sequence[Predictive]], rows: Tensor, weights: Tensor | None, spread: float = 1.0
) -> float:
    """What deviations from the mean are multiplied by, beyond the `spread` of members one by one, whose predictions of
    their `rows` (M, n) are given."""
    members = len(seen)
    if members == 1:
        return 1.0
    mean, sd = zip(*(_moments(one) for one in seen))  # of each (n, ...)
    between = _between(mean, sd, rows) / spread**2
    if math.isnan(between):
        return 1.0
    mass = torch.full((members,), 1 / members) if weights is None else weights.double().cpu()
    share = float(1 - (mass / mass.sum()).square().sum()) * between
    return math.sqrt(max(LEAST, 1 - share) / (1 + share))


def _moments(predictives: Sequence[Predictive]) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of one member at its rows."""
    real = [p for p in predictives if isinstance(p, RealPredictive)]
    return torch.cat([p.mean.cpu() for p in real]), torch.cat([p.sd.cpu() for p in real])


def _between(mean: Sequence[Tensor], sd: Sequence[Tensor], rows: Tensor) -> float:
    """Half of the mean squared difference of two members where both left a row out, in units of their variance; NaN
    where there are hardly any such rows."""
    order = torch.arange(rows.shape[1]).expand_as(rows)
    place = torch.full((len(rows), int(rows.max()) + 1), -1).scatter_(1, rows, order)  # of a row among those of each
    ratios = []
    for i in range(len(mean)):
        for j in range(i + 1, len(mean)):
            both = place[i][rows[j]] >= 0
            at, there = place[i][rows[j][both]], both.nonzero()[:, 0]
            squares = (mean[i][at] - mean[j][there]).square() / (2 * sd[i][at] * sd[j][there])
            ratios.append(squares.flatten().clamp(max=FAR))
    pairs = torch.cat(ratios)
    if len(pairs) < FEWEST:
        more = option("Data.held_out with a larger fraction", "a larger --val", "a larger validation_fraction")
        Progress("", 0).warn(
            f"only {len(pairs)} rows were left out by two members at once: the spread is that of members one by one, "
            f"which is too wide for their mixture: use {more}"
        )
        return math.nan
    return float(pairs.double().mean())
