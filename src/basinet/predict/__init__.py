"""From a posterior to predictions: running samples on inputs, and what follows from their outputs."""

from .classes import ClassPredictive
from .closed import ClosedClassPredictive, ClosedLabelPredictive
from .counts import CountPredictive
from .crps import crps
from .draws import CACHE, Draws
from .forward import forward
from .labels import LabelPredictive
from .normal import NormalPredictive
from .norms import KEEP, kept_inputs, refreshed, settled
from .numbers import NumberPredictive
from .predictive import Predictive, make_predictive
from .real import RealPredictive
from .validation import SEEN, counting, few_of, log_likelihood, nll, worse
from .via import Outputs, Predictor, Via, assembled, default_via, side_by_side

__all__ = [
    "CACHE",
    "KEEP",
    "SEEN",
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
    "counting",
    "crps",
    "default_via",
    "few_of",
    "forward",
    "kept_inputs",
    "log_likelihood",
    "make_predictive",
    "nll",
    "refreshed",
    "settled",
    "side_by_side",
    "worse",
]
