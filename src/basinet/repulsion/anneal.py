"""How much the posterior's pull counts along a run: at first little, so that members spread out before they settle.

With x in (0, 1] the part of the steps done, this one included:

    none     1
    linear   min(1, 2 x)
    tanh     tanh((1.3 x)^5), a half at x = .68
    cyclic   linear, five times over: members are driven apart again at the start of each cycle
"""

from __future__ import annotations

from torch import Tensor

from ..core.nearest import did_you_mean

ANNEALS = ("none", "linear", "tanh", "cyclic")
CYCLES = 5


def check_anneal(word: str) -> None:
    """Raises for a word that is none of them."""
    if word not in ANNEALS:
        raise ValueError(f"unknown annealing {word!r}.{did_you_mean(word, ANNEALS)}")


def anneal_weight(word: str, clock: Tensor, steps: int) -> float | Tensor:
    """The factor of the pull at step `clock` = 0, 1, ... of `steps`: 1.0, or () in float64."""
    if word == "none":
        return 1.0
    done = clock.double() + 1
    if word == "tanh":
        return (1.3 * done / steps).pow(5).tanh()
    length = steps if word == "linear" else -(-steps // CYCLES)
    return (2 * ((done - 1) % length + 1) / length).clamp(max=1.0)
