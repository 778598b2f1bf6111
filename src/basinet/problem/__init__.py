"""What is inferred: a model, a likelihood, a prior and a temperature, scaled in one place."""

from . import likelihoods, priors
from .exact import Conjugate, conjugate
from .problem import Batch, Problem

__all__ = ["Batch", "Conjugate", "Problem", "conjugate", "likelihoods", "priors"]
