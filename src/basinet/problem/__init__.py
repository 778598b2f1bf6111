"""What is inferred: a model, a likelihood, a prior, further terms and a temperature, scaled in one place."""

from . import likelihoods, priors, terms
from .problem import Batch, Problem

__all__ = ["Batch", "Problem", "likelihoods", "priors", "terms"]
