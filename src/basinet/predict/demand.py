"""What predicting with one member takes an input, told by how it predicts, before there is a posterior."""

from __future__ import annotations

from ..problem.likelihoods import Gaussian, Likelihood
from .tangent import TOGETHER
from .via import MOST, Via


def predicting(via: Via, likelihood: Likelihood, outputs: int, samples: int, last: bool) -> tuple[int, float]:
    """How many sets of outputs are held, and how many forward passes they take, or work like it.

    `outputs` are those of an input; `last` says that only the last layer is random: what is before it is run once for
    several draws, and no gradient goes back through it. A covariance of outputs counts as a set for each.
    """
    if via == "sample":
        return samples, float(samples)
    closed = via != "linear" or (isinstance(likelihood, Gaussian) and outputs <= MOST)
    if not closed:
        return samples, float(-(-samples // TOGETHER) if last else 2 * samples)
    return (2 if via == "probit" else 1 + outputs), 1.0 if last else 1.0 + 2 * outputs
