"""basinet: Bayesian neural networks and deep ensembles in PyTorch.

Posteriors that are tested to be posteriors, ensembles that train at once. Start with `Problem`, `fit` and `score`;
every method (`basinet.MAP`, ...) is an attribute of this module, listed by `basinet.methods.discover()`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import curvature, data, families, metrics, networks, optim
from .advice import Advice, Budget, advise
from .checkpoints import swag_of_checkpoints
from .compare import compare
from .conformal import conformal
from .core.noise import Noise
from .core.version import VERSION as __version__
from .cost import Cost, cost
from .data import Data, corruptions, datasets
from .engine import Engine, Event
from .fit import fit
from .input_gradients import input_gradients
from .pool import FileError
from .posterior import Posterior, mix
from .predict import Predictive
from .problem import Problem, likelihoods, priors
from .saving import load
from .scoring import score, size_curve
from .temper import temper
from .weigh import weigh

if TYPE_CHECKING:
    from .methods.map import MAP

__all__ = [
    "MAP",
    "Advice",
    "Budget",
    "Cost",
    "Data",
    "Engine",
    "Event",
    "FileError",
    "Noise",
    "Posterior",
    "Predictive",
    "Problem",
    "__version__",
    "advise",
    "compare",
    "conformal",
    "corruptions",
    "cost",
    "curvature",
    "data",
    "datasets",
    "families",
    "fit",
    "input_gradients",
    "likelihoods",
    "load",
    "metrics",
    "mix",
    "networks",
    "optim",
    "priors",
    "score",
    "size_curve",
    "swag_of_checkpoints",
    "temper",
    "weigh",
]


def __getattr__(name: str) -> Any:
    from .methods import discover

    methods = discover()
    if name in methods:
        return methods[name]
    raise AttributeError(f"module 'basinet' has no attribute {name!r}")


def __dir__() -> list[str]:
    from .methods import discover

    return sorted({*__all__, *discover()})
