"""From a posterior to predictions: running samples on inputs, and what follows from their outputs."""

from .classes import ClassPredictive
from .forward import Draws, forward
from .predictive import Predictive, make_predictive
from .real import RealPredictive

__all__ = ["ClassPredictive", "Draws", "Predictive", "RealPredictive", "forward", "make_predictive"]
