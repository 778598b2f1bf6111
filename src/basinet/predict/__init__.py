"""From a posterior to predictions: running samples on inputs, and what follows from their outputs."""

from .classes import ClassPredictive
from .closed import ClosedClassPredictive, ClosedLabelPredictive
from .counts import CountPredictive
from .crps import crps
from .draws import Draws
from .forward import forward
from .labels import LabelPredictive
from .normal import NormalPredictive
from .numbers import NumberPredictive
from .predictive import Predictive, make_predictive
from .real import RealPredictive
from .via import Outputs, Predictor, Via, assembled, default_via

__all__ = [
    "ClassPredictive",
    "ClosedClassPredictive",
    "ClosedLabelPredictive",
    "CountPredictive",
    "Draws",
    "LabelPredictive",
    "NormalPredictive",
    "NumberPredictive",
    "Outputs",
    "Predictive",
    "Predictor",
    "RealPredictive",
    "Via",
    "assembled",
    "crps",
    "default_via",
    "forward",
    "make_predictive",
]
