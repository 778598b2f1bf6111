"""A scale that shows differences between rows, though some are far off."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from . import measures
from .words import listed


def scale_of(rows: dict[str, tuple[Sequence[Any], Any]]) -> tuple[tuple[float, float] | None, str]:
    """A scale that shows how rows differ though some are far off, and a note that names those. Of each row: all
    that is to be seen of it, and the number it is judged by. None: nothing is off, the scale is that of all."""
    judged, low, high = np.array([(value, min(seen), max(seen)) for seen, value in rows.values()]).T
    off = measures.off_scale(judged, low, high)
    if not off.any():
        return None, ""
    least, most = float(low[~off].min()), float(high[~off].max())
    room = 0.06 * (most - least)
    far = listed([name for name, is_far in zip(rows, off) if is_far])
    return (least - room if least else 0.0, most + room), f"Beyond the scale: {far}."
