"""The methods: one file each, found by looking into this folder. Methods never import each other."""

from __future__ import annotations

import importlib
import pkgutil

from ..core.nearest import did_you_mean
from ..core.registry import known
from ..engine import Method


def discover() -> dict[str, type[Method]]:
    """The methods that are offered, by name: those of this folder, and those of users that say `offered = True`.

    >>> discover()["MAP"].__name__
    'MAP'
    """
    return {name: cls for name, cls in _known().items() if cls.offered or cls.__module__.startswith(f"{__name__}.")}


def _known() -> dict[str, type[Method]]:
    """All methods that can be saved and loaded: whoever derives from Method is one."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return dict(sorted(known("method").items()))


def find(name: str) -> type[Method]:
    """The method of that name, whatever the case of its letters.

    >>> find("laplace").__name__
    'Laplace'
    """
    methods = discover()
    for key, cls in _known().items():
        if key.lower() == name.lower():
            return cls
    raise ValueError(f"unknown method {name!r}.{did_you_mean(name, methods)}")


__all__ = ["Method", "discover", "find"]
