"""The maximum of a function of a positive number, on a logarithmic scale: a coarse grid, then golden section.

    low |------ x1 --- x2 ------| high      x1, x2 at 0.382 and 0.618 of what is left

The grid finds the stretch in which the highest maximum lies, and goes on beyond an end at which it lies. Of a function
with one maximum there, the part beyond the lower of two inner values cannot hold it: each evaluation leaves 0.618 of
the stretch (Kiefer 1953).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal, NamedTuple

RATIO = (math.sqrt(5) - 1) / 2
STEP = math.log(10) / 2  # of the grid: two points a power of ten
Edge = Literal["low", "high"]


class Search(NamedTuple):
    """The result of a search for a maximum."""

    best: float  # of all numbers that were tried
    values: dict[float, float]  # the function at each of them, in the order in which they were tried
    widened: bool  # whether the grid was carried on beyond an end
    edge: Edge | None  # the end at which the maximum still lies after that


def golden_section(
    function: Callable[[float], float],
    low: float,
    high: float,
    iterations: int,
    widen: int = 3,
    at_zero: float = -math.inf,
) -> Search:
    """The maximum of `function` on [low, high], to a factor of 10^(0.618^iterations).

    An end at which the maximum lies is moved by up to `widen` powers of ten; the lower one only while something better
    was found than `at_zero`, what the function tends to at zero.
    """
    grid = logarithmic_grid(low, high, iterations)
    count = len(grid)
    values: dict[float, float] = {}

    def at(place: float) -> float:
        x = math.exp(place)
        if x not in values:
            values[x] = function(x)
        return values[x]

    best, edge = _best(at, grid)
    for _ in range(2 * widen):
        if edge is None or (edge == "low" and at(best) <= at_zero):
            break
        grid = [grid[0] - STEP, *grid] if edge == "low" else [*grid, grid[-1] + STEP]
        best, edge = _best(at, grid)
    i = grid.index(best)
    a, b = grid[max(0, i - 1)], grid[min(i + 1, len(grid) - 1)]
    x1, x2 = b - RATIO * (b - a), a + RATIO * (b - a)
    for _ in range(iterations):
        if at(x1) >= at(x2):
            b, x2 = x2, x1
            x1 = b - RATIO * (b - a)
        else:
            a, x1 = x1, x2
            x2 = a + RATIO * (b - a)
    return Search(max(values, key=lambda x: values[x]), values, len(grid) > count, edge)


def logarithmic_grid(low: float, high: float, iterations: int) -> list[float]:
    """Logarithms from that of low to that of high, at most STEP apart, on which a search begins; refuses numbers
    that are not a range."""
    if not 0 < low < high < math.inf:
        raise ValueError(f"expected a range of two positive numbers, the smaller first, got {low} and {high}")
    if iterations < 1:
        raise ValueError(f"expected at least 1 iteration, got {iterations}")
    begin, end = math.log(low), math.log(high)
    count = max(2, math.ceil((end - begin) / STEP - 1e-9))
    return [begin + (end - begin) * i / count for i in range(count + 1)]


def _best(at: Callable[[float], float], grid: list[float]) -> tuple[float, Edge | None]:
    """Where on the grid the function is highest, and the end at which that is."""
    best = max(grid, key=at)
    return best, "low" if best == grid[0] else "high" if best == grid[-1] else None
