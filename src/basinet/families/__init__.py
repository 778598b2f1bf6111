"""Distributions over (params, buffers): few families, in which many methods end."""

from .delta import Delta
from .diagonal import Diagonal
from .eigen import Eigen
from .empirical import Empirical
from .family import Family, family
from .flow import Flow
from .full import Full
from .kronecker import Kronecker
from .low_rank import LowRank
from .low_rank_precision import LowRankPrecision
from .mixture import Mixture
from .partial import Partial
from .perturbed import Perturbed
from .rows import Rows

__all__ = [
    "Delta",
    "Diagonal",
    "Eigen",
    "Empirical",
    "Family",
    "Flow",
    "Full",
    "Kronecker",
    "LowRank",
    "LowRankPrecision",
    "Mixture",
    "Partial",
    "Perturbed",
    "Rows",
    "family",
]
