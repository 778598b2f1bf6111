"""What validation data see of a normal posterior: a few draws in pairs z, -z, the same at every report.

The mean of a wide posterior may predict well where its draws do not, and what predicts in the end are draws. With pairs
the mean of the draws is that of the posterior, so that four of them are enough to compare one report with another.
"""

from __future__ import annotations

from typing import Any

from ..core.noise import Noise
from ..core.tree import Params, Point, leaves
from ..data import Data, Stream
from ..families import Family
from ..problem import Problem
from ..problem.spread import noise_factor, with_noise

PAIRS = 4  # of draws


def draws(family: Family, centre: Params, buffers: Params) -> list[Point]:
    """Draws of what is random in a network, in pairs; everything else is at its `centre`."""
    mean, points = family.mean().params, []
    key = Noise.seed(0, leaves(mean)[0].device).split("judged")
    for k in range(PAIRS):
        drawn = family.sample(key.split(k)).params
        points += [Point(centre | x, buffers) for x in (drawn, {n: 2 * mean[n] - drawn[n] for n in drawn})]
    return points


def settled(
    problem: Problem, centre: Params, points: list[Point], val: Data | Stream | None
) -> tuple[Params, dict[str, list[Any]]]:
    """The centre with the noise under which validation data are most probable at these draws, and its factor for the
    curves; as it was without such data, or where no noise is learned."""
    if val is None or problem.likelihood.spread is None:
        return centre, {}
    factor = noise_factor(problem, points, val)
    return with_noise(problem, centre, factor), {"noise_factor": [factor]}
