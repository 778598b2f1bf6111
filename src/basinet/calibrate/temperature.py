"""Temperature scaling of predictions: softmax(f / T) of each member, or the average p to the power 1 / T, renormalised.

Vector scaling has a factor and a shift for each class: softmax(a log p + b) of the average p.

T above one softens, below one sharpens; T = 1 changes nothing. Guo et al. (2017) scale one network. Members that are
calibrated one by one make an average that is under-confident, so for ensembles the two are different things (Ashukha et
al. 2020).

Of real numbers T is a factor on the spread: every deviation from the mean is multiplied by it, around the mean of each
member or of the mixture. Quantiles may be recalibrated instead (`recalibrated.py`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, NamedTuple

from torch import Tensor

from ..predict.average import averaged
from ..predict.classes import ClassPredictive
from ..predict.labels import LabelPredictive
from ..predict.predictive import Predictive
from ..predict.real import RealPredictive
from ..problem.likelihoods import Bernoulli, Categorical
from .recalibrated import RecalibratedPredictive

Of = Literal["members", "average", "classes", "quantiles"]
LEAST = -100.0  # of a log-probability whose factor is its own: a class may have no probability at all


class Temperature(NamedTuple):
    """What logits are divided by, and the spread of numbers multiplied; of classes, factors of the average's
    log-probabilities, and what is added; of quantiles, the shares of K equal stretches of the distribution function."""

    of: Of
    values: Tensor  # (M,), of each member; (), of the average; (2, C), factors and shifts of classes; or (K,), shares


def tempered(predictive: Predictive, temperature: Temperature) -> Predictive:
    """The predictive at a temperature: outputs become log-probabilities (of labels log-odds) divided by T.

    Of members, each sample of member m is divided by T_m, and axes stay. The average, scaled as one or by classes, is
    one distribution, on axes of one member and one sample: all of its entropy counts as aleatoric. Real numbers keep
    their axes.
    """
    if isinstance(predictive, RealPredictive):
        return _of_numbers(predictive, temperature)
    if not isinstance(predictive, (ClassPredictive, LabelPredictive)):
        raise TypeError(f"expected predictions of classes, labels or real numbers, got {type(predictive).__name__}")
    if temperature.of == "quantiles":
        raise TypeError(f"expected predictions of real numbers, got {type(predictive).__name__}")
    if temperature.of == "classes":
        if not isinstance(predictive, ClassPredictive):
            raise TypeError(f"expected predictions of classes, got {type(predictive).__name__}")
        logs = averaged(predictive)
        factor, shift = temperature.values.to(logs)
        return ClassPredictive((factor * logs.clamp(min=LEAST) + shift)[None, None], Categorical(), {})
    if temperature.of == "average":
        weights, logits = None, averaged(predictive)[None, None]
    else:
        weights = predictive.weights
        logits = predictive.log_probs if isinstance(predictive, ClassPredictive) else predictive.logits
    scaled = logits / temperature.values.to(logits).reshape(-1, *[1] * (logits.dim() - 1))
    if isinstance(predictive, ClassPredictive):
        return ClassPredictive(scaled, Categorical(), {}, weights)
    return LabelPredictive(scaled, Bernoulli(), {}, weights)


def _of_numbers(predictive: RealPredictive, temperature: Temperature) -> Predictive:
    if temperature.of in ("members", "average"):
        return replace(predictive, stretch=temperature.values)
    if temperature.of != "quantiles":
        raise TypeError(f"expected predictions of {temperature.of}, got {type(predictive).__name__}")
    return RecalibratedPredictive.of(predictive, temperature.values)
