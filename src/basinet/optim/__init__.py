"""Pure optimisers, and the schedules their learning rates follow."""

from .optimizers import SGD, Adam, AdamW, Optimizer
from .schedules import Constant, Cosine, Cyclic, Linear, Rate, Validated, WarmUp

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Constant",
    "Cosine",
    "Cyclic",
    "Linear",
    "Optimizer",
    "Rate",
    "Validated",
    "WarmUp",
]
