"""Whether chains sample what they should: convergence, effective sample sizes, temperatures, and a verdict in words."""

from .convergence import ess_bulk, ess_mean, ess_tail, mcse_mean, rhat
from .plots import autocorrelation, rank_counts
from .temperatures import Temperature, configurational_temperature, kinetic_temperature
from .verdict import Finding, Transitions, findings, verdict

__all__ = [
    "Finding",
    "Temperature",
    "Transitions",
    "autocorrelation",
    "configurational_temperature",
    "ess_bulk",
    "ess_mean",
    "ess_tail",
    "findings",
    "kinetic_temperature",
    "mcse_mean",
    "rank_counts",
    "rhat",
    "verdict",
]
