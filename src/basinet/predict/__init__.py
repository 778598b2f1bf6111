"""From a posterior to predictions: running samples on inputs, and what follows from their outputs."""

from .classes import ClassPredictive
from .counts import CountPredictive
from .crps import crps
from .draws import Draws
from .forward import forward
from .labels import LabelPredictive
from .numbers import NumberPredictive
from .predictive import Predictive, make_predictive
from .real import RealPredictive
from .temperature import Temperature, tempered

__all__ = [
    "ClassPredictive",
    "CountPredictive",
    "Draws",
    "LabelPredictive",
    "NumberPredictive",
    "Predictive",
    "RealPredictive",
    "Temperature",
    "crps",
    "forward",
    "make_predictive",
    "tempered",
]
