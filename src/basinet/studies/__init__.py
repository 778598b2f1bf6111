"""Studies: one file a question, each with `run(options, say)`, found by looking into this folder."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

from ..core.nearest import did_you_mean
from ..data import datasets
from ..data.datasets import Splits

Say = Callable[[str], None]


class Options(NamedTuple):
    """What every study is told."""

    out: Path  # folder for records and pools
    folder: Path | None = None  # folder of data sets that are not built in; what needs them is left out without it
    seed: int = 0
    device: str | None = None
    examples: int | None = None  # training examples used at most, for a quicker look; None: all

    def load(self, name: str) -> Splits:
        """A data set by name, with as many training examples as were asked for."""
        splits = datasets.load(name, seed=self.seed, folder=self.folder)
        if self.examples is None:
            return splits
        if self.examples < 1:
            raise ValueError(f"expected at least 1 training example, got {self.examples}")
        return replace(splits, train=splits.train.take(slice(0, self.examples)))


def discover() -> dict[str, ModuleType]:
    """All studies by name."""
    names = sorted(m.name for m in pkgutil.iter_modules(__path__))
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names}


def find(name: str) -> ModuleType:
    """The study of that name."""
    studies = discover()
    if name not in studies:
        raise ValueError(f"unknown study {name!r}.{did_you_mean(name, studies)}")
    return studies[name]
