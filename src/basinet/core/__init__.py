"""The ground everything stands on: trees of tensors, keyed noise, models, lifting over members."""

from .model import Model
from .noise import Noise
from .registry import Saved
from .tree import Params, Point

__all__ = ["Model", "Noise", "Params", "Point", "Saved"]
