"""Studies: one file a question, each with `run(options, say)`, found by looking into this folder.

A study that can do a part of its work says in `NARROWED_BY` by which of the options: sets, methods, splits,
examples.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Set
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import NamedTuple, TypeVar

from ..core.nearest import did_you_mean
from ..data import Data, datasets
from ..data.datasets import Splits

Say = Callable[[str], None]
T = TypeVar("T")


class Options(NamedTuple):
    """What every study is told."""

    out: Path  # folder for records and pools
    folder: Path | None = None  # folder of data sets that are not built in; what needs them is left out without it
    seed: int = 0
    device: str | None = None
    sets: tuple[str, ...] = ()  # data sets to run; none: all
    methods: tuple[str, ...] = ()  # methods to run; none: all
    splits: int | None = None  # how many splits of each set; None: all
    examples: int | None = None  # at most so many of each part of a set, for a quick look; None: what the study takes

    def cut(self, data: Data, most: int | None = None) -> Data:
        """The first examples, as many as wanted; `most` is what the study takes by itself, None: all."""
        count = most if self.examples is None else self.examples
        if count is not None and count < 1:
            raise ValueError(f"expected at least 1 example, got {count}")
        return data if count is None or count >= data.n else data.take(slice(0, count))

    def chosen(self, methods: Mapping[str, T], done: Set[str] = frozenset()) -> dict[str, T]:
        """Of methods by name those that were asked for and are not done."""
        return {n: m for n, m in methods.items() if (not self.methods or n in self.methods) and n not in done}

    def load(self, name: str) -> Splits:
        """A data set by name, with as many examples as were asked for."""
        splits = datasets.load(name, seed=self.seed, folder=self.folder)
        return replace(splits, train=self.cut(splits.train), test=self.cut(splits.test))


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


def check(study: ModuleType, options: Options) -> None:
    """Refuses options that the study would not heed."""
    for name in ("sets", "methods", "splits", "examples"):
        if getattr(options, name) and name not in study.NARROWED_BY:
            raise ValueError(f"the study {study.__name__.split('.')[-1]} takes no --{name}: leave it out")
