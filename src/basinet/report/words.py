"""Numbers and lists as words."""

from __future__ import annotations

import math
from collections.abc import Sequence


def listed(names: Sequence[str], most: int = 8) -> str:
    """Names in a sentence; of many, the first and how many more there are."""
    shown = [*names] if len(names) <= most else [*names[: most - 1], f"{len(names) - most + 1} others"]
    return shown[0] if len(shown) == 1 else f"{', '.join(shown[:-1])} and {shown[-1]}"


def number(value: float) -> str:
    """A number in three or four digits that count."""
    if math.isnan(value):
        return "-"
    if not math.isfinite(value):
        return "infinite" if value > 0 else "minus infinite"
    if value == 0:
        return "0"
    if abs(value) >= 1e7:
        return f"{value:.3g}"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    digits = (
        max(0, 2 - math.floor(math.log10(abs(value)))) if abs(value) < 1 else 3 - math.floor(math.log10(abs(value)))
    )
    return f"{value:.{min(digits, 6)}f}" if abs(value) >= 1e-5 else f"{value:.2g}"


def in_units(unit: str) -> str:
    """A unit behind a name, if there is one."""
    return f" ({unit})" if unit else ""
