"""All figures of a run, prepared: each maker gives one figure, or None where the run has nothing for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from .calibration import intervals, pit, reliability, sets
from .chains import chains
from .diagnostics import diagnostics
from .figure import Figure
from .ranking import cost, gaps, size
from .run import Run
from .shift import shift
from .uncertainty import ood, risk, split

MAKERS: tuple[Callable[[Run], Figure | None], ...] = (
    gaps,
    cost,
    size,
    reliability,
    intervals,
    pit,
    risk,
    split,
    ood,
    shift,
    sets,
    chains,
    diagnostics,
)


def figures(run: Run) -> list[Figure]:
    """Those that the run has something for, in the order of the page."""
    with np.errstate(over="ignore", invalid="ignore"):  # of numbers that are infinite, or hardly less
        drawn = [make(run) for make in MAKERS]
    return [figure for figure in drawn if figure is not None and figure.views]


def chosen(run: Run, most: int = 6) -> Iterator[str]:
    """Rows that are in colour when the page opens: the best, and the best single network among them."""
    names = [row.name for row in run.rows]
    single = next((row.name for row in run.rows if row.members == 1), None)
    first = names[:most]
    if single is not None and single not in first:
        first[-1] = single
    yield from first
