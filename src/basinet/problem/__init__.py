"""What is inferred: a model, a likelihood, a prior, further terms and a temperature, scaled in one place."""

from . import likelihoods, priors, terms
from .exact import Conjugate, conjugate
from .problem import Batch, Problem

__all__ = ["Batch", "Conjugate", "Problem", "conjugate", "likelihoods", "priors", "terms"]
