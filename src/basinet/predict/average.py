"""The average of probabilities over members and draws, in logarithms."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid

from .classes import ClassPredictive
from .labels import LabelPredictive
from .predictive import Predictive


def averaged(predictive: Predictive) -> Tensor:
    """The logarithm of the average probabilities, (B, ..., C); of labels their log-odds."""
    assert isinstance(predictive, (ClassPredictive, LabelPredictive))
    if isinstance(predictive, ClassPredictive):
        return _log_mean(predictive, predictive.log_probs)
    there, absent = (_log_mean(predictive, logsigmoid(sign * predictive.logits)) for sign in (1, -1))
    return there - absent


def _log_mean(predictive: Predictive, logs: Tensor) -> Tensor:
    mass = predictive.mass.log().to(logs)
    return torch.logsumexp(logs + mass.reshape(*mass.shape, *[1] * (logs.dim() - 2)), (0, 1))
