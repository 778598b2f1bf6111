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
    from . import curvature, data, families, filters, metrics, networks, optim, tables
    from . import diagnostics as diagnostics
    from . import engine as engine
    from . import methods as methods
    from . import testing as testing
    from .advice.advise import Advice, Budget, advise
    from .calibrate.conformal import conformal
    from .calibrate.temper import temper
    from .calibrate.weigh import weigh
    from .changes import RunLength
    from .checkpoints import swag_of_checkpoints
    from .compare import compare
    from .core import Noise
    from .cost.cost import Cost, cost
    from .data import Data, corruptions, datasets
    from .diagnose import Diagnosis, diagnose
    from .engine import Engine, Event
    from .filters import EKF, LOFI, RVGA, Kalman
    from .fit import fit
    from .input_gradients import input_gradients
    from .methods.anchored import Anchored as Anchored
    from .methods.batch_ensemble import BatchEnsemble as BatchEnsemble
    from .methods.ema import EMA as EMA
    from .methods.flow_vi import FlowVI as FlowVI
    from .methods.forde import FoRDE as FoRDE
    from .methods.gaussian_vi import GaussianVI as GaussianVI
    from .methods.hmc import HMC as HMC
    from .methods.ivon import IVON as IVON
    from .methods.laplace import Laplace as Laplace
    from .methods.lit import LIT as LIT
    from .methods.mala import MALA as MALA
    from .methods.map import MAP
    from .methods.mc_dropout import MCDropout as MCDropout
    from .methods.mclmc import MCLMC as MCLMC
    from .methods.mean_field import MeanField as MeanField
    from .methods.metropolis_hastings import MetropolisHastings as MetropolisHastings
    from .methods.nuts import NUTS as NUTS
    from .methods.pep import PEP as PEP
    from .methods.psgld import PSGLD as PSGLD
    from .methods.random_prior import RandomPrior as RandomPrior
    from .methods.sghmc import SGHMC as SGHMC
    from .methods.sgld import SGLD as SGLD
    from .methods.sgnht import SGNHT as SGNHT
    from .methods.snapshot import Snapshot as Snapshot
    from .methods.svgd import SVGD as SVGD
    from .methods.swa import SWA as SWA
    from .methods.swag import SWAG as SWAG
    from .methods.variational_dropout import VariationalDropout as VariationalDropout
    from .methods.vbll import VBLL as VBLL
    from .methods.wgd import WGD as WGD
    from .online import online
    from .pool import FileError
    from .posterior import Posterior, mix
    from .predict import Predictive
    from .problem import Problem, likelihoods, priors, terms
    from .saving import load
    from .scoring import score, size_curve

__version__: str

__all__ = [
    "EKF",
    "LOFI",
    "MAP",
    "RVGA",
    "Advice",
    "Budget",
    "Cost",
    "Data",
    "Diagnosis",
    "Engine",
    "Event",
    "FileError",
    "Kalman",
    "Noise",
    "Posterior",
    "Predictive",
    "Problem",
    "RunLength",
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
    "filters",
    "fit",
    "input_gradients",
    "likelihoods",
    "load",
    "metrics",
    "mix",
    "networks",
    "online",
    "optim",
    "priors",
    "score",
    "size_curve",
    "swag_of_checkpoints",
    "tables",
    "temper",
    "terms",
    "weigh",
]

_HOMES = {
    "advice": ("Advice", "Budget", "advise"),
    "changes": ("RunLength",),
    "checkpoints": ("swag_of_checkpoints",),
    "compare": ("compare",),
    "calibrate.conformal": ("conformal",),
    "calibrate.temper": ("temper",),
    "calibrate.weigh": ("weigh",),
    "core": ("Noise",),
    "cost.cost": ("Cost", "cost"),
    "data": ("Data", "corruptions", "datasets"),
    "diagnose": ("Diagnosis", "diagnose"),
    "engine": ("Engine", "Event"),
    "filters": ("EKF", "LOFI", "RVGA", "Kalman"),
    "fit": ("fit",),
    "input_gradients": ("input_gradients",),
    "online": ("online",),
    "pool": ("FileError",),
    "posterior": ("Posterior", "mix"),
    "predict": ("Predictive",),
    "problem": ("Problem", "likelihoods", "priors", "terms"),
    "saving": ("load",),
    "scoring": ("score", "size_curve"),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def _attribute(name: str) -> Any:
    """What the package has under a name, imported now."""
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


if not TYPE_CHECKING:  # type checkers see the block above, and refuse names that are not in it
    __getattr__ = _attribute


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
