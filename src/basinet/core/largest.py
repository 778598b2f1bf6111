"""The largest positive number that a function accepts, on a logarithmic scale: a coarse grid, then bisection.

low |-- yes -- yes -- ... -- yes | no -- no --| high      the end lies between the last yes and the no behind it
"""

from __future__ import annotations

import math
from collections.abc import Callable

from .golden import STEP, Edge, Search, logarithmic_grid


def largest(
    function: Callable[[float], float], low: float, high: float, iterations: int, floor: float, widen: int = 3
) -> Search:
    """The largest number at which `function` is at least `floor`, to a factor of 10^(0.5^(iterations + 1)).

    The grid goes from low to high, and on by up to `widen` powers of ten: up while the last number is accepted, down
    while none is. Where none was, `best` is the smallest number that was tried, and its value is below the floor.
    """
    grid = logarithmic_grid(low, high, iterations)
    count = len(grid)
    values: dict[float, float] = {}

    def accepts(place: float) -> bool:
        x = math.exp(place)
        if x not in values:
            values[x] = function(x)
        return values[x] >= floor

    accepted = [x for x in grid if accepts(x)]
    for _ in range(2 * widen):
        if accepted and accepted[-1] != grid[-1]:
            break
        further = grid[-1] + STEP if accepted else grid[0] - STEP
        grid = [*grid, further] if accepted else [further, *grid]
        accepted += [further] if accepts(further) else []
    widened = len(grid) > count
    edge: Edge | None = "low" if not accepted else "high" if accepted[-1] == grid[-1] else None
    if edge is not None:
        return Search(math.exp(grid[0] if edge == "low" else grid[-1]), values, widened, edge)
    a = accepted[-1]
    b = grid[grid.index(a) + 1]
    for _ in range(iterations):
        middle = (a + b) / 2
        a, b = (middle, b) if accepts(middle) else (a, middle)
    return Search(math.exp(a), values, widened, None)
