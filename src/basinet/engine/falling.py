"""Whether training ended because it was done, or because its steps were spent while it still got better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

LAST = 0.25  # of the steps, over which the fall is judged
WORTH = 0.05  # nats per example that count


def still_falling(curves: Mapping[str, Sequence[Any]], planned: int) -> float:
    """By how much the validation NLL, or the loss where there is none, fell over the last quarter of the planned steps;
    0 where that is little, or where a member stopped before. `curves` are those of one member."""
    seen = curves.get("val_nll") or curves.get("loss") or ()
    steps = curves.get("step") or ()
    if len(seen) < 8 or len(seen) != len(steps) or steps[-1] < planned:
        return 0.0
    begin = next(i for i, step in enumerate(steps) if step >= (1 - LAST) * planned)
    fall = min(seen[:begin] or seen[:1]) - min(seen[begin:])
    return float(fall) if fall > WORTH else 0.0


def falling_line(falls: Sequence[float], planned: int) -> str:
    """What is said of members that were still getting better, by as much as `falls`."""
    count = sum(fall > 0 for fall in falls)
    who = "training" if len(falls) == 1 else f"{count} of {len(falls)} members"
    return (
        f"{who} still improved when the {planned:,} steps that were planned were done, by {max(falls):.2g} nats per "
        "example over the last quarter: more epochs may be better"
    )
