"""Distributions over (params, buffers): few families, in which many methods end."""

from .delta import Delta
from .diagonal import Diagonal
from .empirical import Empirical
from .family import Family, family
from .mixture import Mixture
from .perturbed import Perturbed

__all__ = ["Delta", "Diagonal", "Empirical", "Family", "Mixture", "Perturbed", "family"]
