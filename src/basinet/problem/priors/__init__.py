"""Priors: what is believed of the parameters before any data. One file per prior.

Your own is a frozen dataclass derived from `Prior`: an energy, its normaliser and a way to draw; it saves as these do.
"""

from .from_family import Density, FromFamily
from .laplace import Laplace
from .log_uniform import LogUniform
from .normal import Normal
from .prior import Prior
from .scale_mixture import ScaleMixture
from .student_t import StudentT

__all__ = [
    "Density",
    "FromFamily",
    "Laplace",
    "LogUniform",
    "Normal",
    "Prior",
    "ScaleMixture",
    "StudentT",
]
