"""Distributions over (params, buffers): few families, in which many methods end."""

from .delta import Delta
from .diagonal import Diagonal
from .empirical import Empirical
from .family import Family, family
from .low_rank import LowRank
from .mixture import Mixture

__all__ = ["Delta", "Diagonal", "Empirical", "Family", "LowRank", "Mixture", "family"]
