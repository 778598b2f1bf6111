"""Layers of a network while it runs: taps on what they are given and give, patches of convolutions, heads, features."""

from .heads import heads
from .patches import patches
from .taps import Tap, Taps

__all__ = ["Tap", "Taps", "heads", "patches"]
