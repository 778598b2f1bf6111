"""Studies: one file per question, each with `run(options, say)`, found by looking into this folder.

`basinet study NAME` runs one, in a checkout of the repository; the installed package does not have them.

They are written with the public API, as a user's program is; what else they take of the package is listed, with the
reason, in tests/studies/test_public_api.py.

A study that can do a part of its work says in `NARROWED_BY` by which of the options: sets, methods, splits,
examples, preset, changes. `python -m studies NAME` runs one without the packages that the command `basinet` needs.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple, TypeVar, get_type_hints

from basinet import Data, Engine, datasets
from basinet.core.nearest import did_you_mean
from basinet.data import Splits
from basinet.pool import append_record, describe, fingerprint, read_records

__all__ = [
    "Options", "Say", "append_record", "check", "describe", "did_you_mean", "discover", "find", "fingerprint", "names",
    "read_records",
]  # fmt: skip

Say = Callable[[str], None]
T = TypeVar("T")

FROM = {  # where the files of image sets come from, said where one is missing
    "mnist": "LeCun and Cortes, in mnist.npz or the four idx files",
    "fashion_mnist": "Zalando, github.com/zalandoresearch/fashion-mnist, in fashion_mnist.npz or the four idx files",
    "cifar10": "Krizhevsky, www.cs.toronto.edu/~kriz/cifar.html, the binary or Python version",
    "cifar100": "Krizhevsky, www.cs.toronto.edu/~kriz/cifar.html, the binary or Python version",
    "svhn": "Netzer et al., ufldl.stanford.edu/housenumbers, as svhn_test*.npz with differenced planes",
}


class Options(NamedTuple):
    """What every study is told."""

    out: Path  # folder for records and pools
    folder: Path | None = None  # folder of data sets that are not built in; what needs them is left out without it
    seed: int = 0
    device: str | None = None
    sets: tuple[str, ...] = ()  # data sets to run; none: all
    methods: tuple[str, ...] = ()  # methods to run; none: all
    splits: int | None = None  # how many splits of each set; None: all
    examples: int | None = None  # the most of each part of a set, for a quick look; None: what the study takes
    on: str | None = None  # where members train: "ray", "ray:ADDRESS"; None: on this machine
    preset: str = ""  # one of the study's settings by name; none: its own choice
    changes: tuple[str, ...] = ()  # "NAME=VALUE" for fields of its settings

    def engine(self, progress: bool = False) -> Engine:
        """The engine that was asked for."""
        return Engine(device=self.device, executor=self.on, progress=progress)

    def cut(self, data: Data, most: int | None = None) -> Data:
        """The first examples, as many as wanted; `most` is what the study takes by itself, None: all."""
        count = most if self.examples is None else self.examples
        if count is not None and count < 1:
            raise ValueError(f"expected at least 1 example, got {count}")
        return data if count is None or count >= data.n else data.take(slice(0, count))

    def chosen(self, methods: Mapping[str, T], done: Set[str] = frozenset()) -> dict[str, T]:
        """Of methods by name those that were asked for and are not done."""
        return {n: m for n, m in methods.items() if (not self.methods or n in self.methods) and n not in done}

    def changed(self, settings: T) -> T:
        """A dataclass of settings with the changes that were asked for; what does not fit is refused."""
        known = get_type_hints(type(settings))
        values = {}
        for change in self.changes:
            name, equals, text = change.partition("=")
            if not equals:
                raise ValueError(f"expected --with NAME=VALUE, got {change!r}")
            if name not in {f.name for f in fields(settings)}:  # type: ignore[arg-type]
                raise ValueError(f"there is no setting {name!r}.{did_you_mean(name, known)}")
            values[name] = _parsed(name, text, known[name])
        return replace(settings, **values)  # type: ignore[type-var]

    def has_files(self, name: str, sets: Sequence[str], say: Say) -> bool:
        """Whether there is a folder for what reads the files of some image sets. Where there is none it is left out,
        and what was asked for by name is refused."""
        if self.folder is None:
            words = f"give --folder with the files of {'; '.join(f'{s} ({FROM[s]})' for s in sets)}"
            if self.preset or name in self.sets:
                raise ValueError(f"{name} needs files: {words}")
            say(f"{name} left out: {words}")
        return self.folder is not None

    def without_folder(self, built_in: Collection[str], offered: Sequence[str], say: Say) -> list[str]:
        """Of the sets that are asked for, or all that are offered, those that can be run: without a folder those that
        are built in. What is left out is said; where nothing is left that is an error."""
        wanted = list(self.sets or offered)
        can = [name for name in wanted if self.folder is not None or name in built_in]
        if left := [name for name in wanted if name not in can]:
            known = [f"{name} ({FROM[name]})" if name in FROM else name for name in left]
            words = f"for want of --folder with their files: {'; '.join(known)}"
            if not can:
                raise ValueError(f"nothing to do, {words}")
            say(f"left out, {words}")
        return can

    def images(self, name: str) -> dict[str, Data]:
        """The parts of an image set from the folder; where its files are missing, says where they come from."""
        assert self.folder is not None
        with _said_where_from(name):
            return datasets.load_images(name, self.folder)

    def load(self, name: str) -> Splits:
        """A data set by name, with as many examples as were asked for."""
        with _said_where_from(name):
            splits = datasets.load(name, seed=self.seed, folder=self.folder)
        return replace(splits, train=self.cut(splits.train), test=self.cut(splits.test))


@contextmanager
def _said_where_from(name: str) -> Iterator[None]:
    """Where reading an image set fails, says where its files come from."""
    try:
        yield
    except ValueError as error:
        if name not in FROM:
            raise
        raise ValueError(f"{error}. Its files come from {FROM[name]}") from None


def _parsed(name: str, text: str, kind: Any) -> Any:
    """A value of one of the kinds that settings have, from its text."""
    kinds = str(kind)
    answers = {"yes": True, "true": True, "no": False, "false": False}
    try:
        if kind is bool:
            return answers[text.lower()]
        if "tuple" in kinds:
            listed = [word.strip() for word in text.split(",") if word.strip()]
            return tuple(map(int, listed)) if "int" in kinds else tuple(listed)
        if "None" in kinds and text.lower() == "none":
            return None
        return int(text) if "int" in kinds else float(text) if "float" in kinds else text
    except (ValueError, KeyError):
        what = {"bool": "yes or no", "int": "a whole number", "float": "a number"}
        wanted = next((words for kind_of, words in what.items() if kind_of in kinds), "another value")
        raise ValueError(f"expected {wanted} for --with {name}=, got {text!r}") from None


def names() -> list[str]:
    """All studies that there are."""
    return sorted(m.name for m in pkgutil.iter_modules(__path__) if not m.name.startswith("_"))


def discover() -> dict[str, ModuleType]:
    """All studies by name."""
    return {name: importlib.import_module(f"{__name__}.{name}") for name in names()}


def find(name: str) -> ModuleType:
    """The study of that name."""
    if name not in names():
        raise ValueError(f"unknown study {name!r}.{did_you_mean(name, names())}")
    return importlib.import_module(f"{__name__}.{name}")


def check(study: ModuleType, options: Options) -> None:
    """Refuses options that the study would not heed."""
    if options.on and getattr(study, "HERE", False):
        raise ValueError(f"the study {study.__name__.split('.')[-1]} runs on this machine: leave --on out")
    for name in ("sets", "methods", "splits", "examples", "preset", "changes"):
        if getattr(options, name) and name not in study.NARROWED_BY:
            given = "with" if name == "changes" else name
            raise ValueError(f"the study {study.__name__.split('.')[-1]} takes no --{given}: leave it out")
