"""Pure optimisers, and the schedules their learning rates follow."""

from .optimizers import SGD, Adam, AdamW, Optimizer
from .schedules import Constant, Cosine, Cyclic, Linear, Plateau, Rate, Validated, WarmUp

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Cyclic",
    "Linear",
    "Optimizer",
    "Plateau",
    "Rate",
    "Validated",
    "WarmUp",
]
