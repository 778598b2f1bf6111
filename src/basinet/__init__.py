"""basinet: Bayesian neural networks and deep ensembles in PyTorch.

Posteriors that are tested to be posteriors, ensembles that train at once. Start with `Problem`, `fit` and `score`;
every method (`basinet.MAP`, ...) is an attribute of this module, listed by `basinet.methods.discover()`.

What this module names is imported when it is first used, torch included, so that `import basinet` takes no time.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import curvature, data, families, metrics, networks, optim
    from .advice.advise import Advice, Budget, advise
    from .checkpoints import swag_of_checkpoints
    from .compare import compare
    from .conformal import conformal
    from .core import Noise
    from .cost import Cost, cost
    from .data import Data, corruptions, datasets
    from .diagnose import Diagnosis, diagnose
    from .engine import Engine, Event
    from .fit import fit
    from .input_gradients import input_gradients
    from .methods.map import MAP
    from .pool import FileError
    from .posterior import Posterior, mix
    from .predict import Predictive
    from .problem import Problem, likelihoods, priors, terms
    from .saving import load
    from .scoring import score, size_curve
    from .temper import temper
    from .weigh import weigh

__version__: str

__all__ = [
    "MAP",
    "Advice",
    "Budget",
    "Cost",
    "Data",
    "Diagnosis",
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
    "diagnose",
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
    "terms",
    "weigh",
]

_HOMES = {
    "advice": ("Advice", "Budget", "advise"),
    "checkpoints": ("swag_of_checkpoints",),
    "compare": ("compare",),
    "conformal": ("conformal",),
    "core": ("Noise",),
    "cost": ("Cost", "cost"),
    "data": ("Data", "corruptions", "datasets"),
    "diagnose": ("Diagnosis", "diagnose"),
    "engine": ("Engine", "Event"),
    "fit": ("fit",),
    "input_gradients": ("input_gradients",),
    "pool": ("FileError",),
    "posterior": ("Posterior", "mix"),
    "predict": ("Predictive",),
    "problem": ("Problem", "likelihoods", "priors", "terms"),
    "saving": ("load",),
    "scoring": ("score", "size_curve"),
    "temper": ("temper",),
    "weigh": ("weigh",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return import_module(".core.version", __name__).VERSION
    if name in _HOME:
        return getattr(import_module(f".{_HOME[name]}", __name__), name)
    if not name.startswith("_") and find_spec(f".{name}", __name__):
        return import_module(f".{name}", __name__)
    from .methods import discover

    methods = discover()
    if name in methods:
        return methods[name]
    raise AttributeError(f"module 'basinet' has no attribute {name!r}")


def __dir__() -> list[str]:
    from .methods import discover

    return sorted({*__all__, *discover()})


class _Package(ModuleType):
    """Where a module and the function in it have one name (`fit`, `compare`, ...), the package has the function, and
    keeps it when `import basinet.fit` would put the module in its place."""

    def __setattr__(self, name: str, value: object) -> None:
        if not (name in _HOME and isinstance(value, ModuleType)):
            super().__setattr__(name, value)

    def __reduce__(self) -> tuple[Any, ...]:
        """By name, as all modules are pickled: functions that use this one travel to other processes with it."""
        return import_module, (self.__name__,)


sys.modules[__name__].__class__ = _Package
