"""Scores of predictions against what happened: tensors in, tensors out, nothing of the rest of the library."""

from .bootstrap import Interval, bootstrap_difference
from .calibration import adaptive_ece, classwise_ece
from .classification import Reliability, accuracy, brier, calibration_gap, ece, in_bins, nll, reliability
from .comparison import agreement, total_variation
from .diversity import (
    ErrorParts,
    disagreement,
    error_correlation,
    error_parts,
    gradient_cosine,
    mean_of_pairs,
    pairwise_kl,
)
from .ood import aupr, auroc, fpr95, symmetric_kl
from .pit import pit_histogram, quantile_calibration_error, randomized_pit
from .regression import coverage, crps_gaussian, crps_gaussian_mixture, interval_width, mae, rmse
from .selective import RiskCoverage, aurc, excess_aurc, risk_coverage

__all__ = [
    "ErrorParts",
    "Interval",
    "Reliability",
    "RiskCoverage",
    "accuracy",
    "adaptive_ece",
    "agreement",
    "aupr",
    "aurc",
    "auroc",
    "bootstrap_difference",
    "brier",
    "calibration_gap",
    "classwise_ece",
    "coverage",
    "crps_gaussian",
    "crps_gaussian_mixture",
    "disagreement",
    "ece",
    "error_correlation",
    "error_parts",
    "excess_aurc",
    "fpr95",
    "gradient_cosine",
    "in_bins",
    "interval_width",
    "mae",
    "mean_of_pairs",
    "nll",
    "pairwise_kl",
    "pit_histogram",
    "quantile_calibration_error",
    "randomized_pit",
    "reliability",
    "risk_coverage",
    "rmse",
    "symmetric_kl",
    "total_variation",
]
