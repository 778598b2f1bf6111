"""The minimum of a function of a positive factor: on a grid that goes on past its upper end where it still falls."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

FURTHER = [10 ** (k / 2.5) for k in range(1, 6)]  # times the last factor: two powers of ten at a time
END = 1e10  # beyond which nothing is tried
GAIN = 1e-5  # for less, the grid does not go on


def tried_on(function: Callable[[Sequence[float]], Mapping[float, float]], grid: Sequence[float]) -> dict[float, float]:
    """What `function` gives at the factors of a grid, and of those that follow for as long as it is lowest at the last
    one. It takes several factors at once, and leaves out those at which it is not defined."""
    tried = dict(function(grid))
    gain = math.inf if tried else 0.0
    while gain > GAIN:
        best = min(tried, key=lambda m: tried[m])
        more = [best * f for f in FURTHER if best * f <= END * (1 + 1e-9)]
        if best != max(tried) or not more:
            break
        values = function(more)
        gain = tried[best] - min(values.values(), default=math.inf)
        tried |= values
    return tried


def chosen_of(tried: Mapping[float, float]) -> float:
    """The largest factor that is as good as the best, to GAIN: where a function is flat, rounding does not choose."""
    lowest = min(tried.values())
    return max(m for m, value in tried.items() if value <= lowest + GAIN)
