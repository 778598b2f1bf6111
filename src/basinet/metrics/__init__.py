"""Scores of predictions against what happened: tensors in, tensors out, nothing of the rest of the library."""

from .classification import Reliability, accuracy, brier, ece, nll, reliability
from .regression import coverage, crps_gaussian, crps_gaussian_mixture, rmse

__all__ = [
    "Reliability",
    "accuracy",
    "brier",
    "coverage",
    "crps_gaussian",
    "crps_gaussian_mixture",
    "ece",
    "nll",
    "reliability",
    "rmse",
]
