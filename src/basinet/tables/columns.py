"""How a column of a table becomes inputs of a network: what was fitted to the training rows, as numbers and names.

    number    (x - mean) / sd
    category  one input per value, 1 where the column has it; with `other` one more for all the rest
    date      the year with its fraction, standardised; sine and cosine of the place in the year and of the day of
              the week; of the time of day too, where training had times

A missing value is refused, or becomes `fill` (median, or most frequent value) and, where training had missing ones,
a further input that says so.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from dataclasses import dataclass

import numpy as np

from ..core.registry import Saved
from ..core.wording import imputing, sharing
from .values import Values, dates, listed, missing, numbers, refuse, texts

LARGEST = 1e30  # of a standardised value: far inside what 32 bits hold
_SMALLEST = float(np.finfo(np.float64).tiny)
_DAY = np.timedelta64(86_400_000_000, "us")


class Column(Saved, kind="column"):
    """One column. `name` is that of the file."""

    name: str

    @property
    @abstractmethod
    def features(self) -> tuple[str, ...]:
        """A name for each input it becomes."""

    @abstractmethod
    def encode(self, values: Values, label: str) -> np.ndarray:
        """(N, inputs) float64. `label` says in errors whose values they are."""

    @abstractmethod
    def decode(self, inputs: np.ndarray) -> list[str]:
        """The cells of (N, inputs) as a file has them, as far as 32 bits tell; empty where a value was missing."""


@dataclass(frozen=True, kw_only=True)
class Number(Column):
    """A column of numbers."""

    name: str
    mean: float  # of the training rows
    sd: float  # of the training rows, divisor N; 1 where they are all equal
    fill: float | None = None  # takes the place of a missing value; None: refused
    flagged: bool = False  # a further input is 1 where the value is missing

    @staticmethod
    def fit(name: str, values: Values, label: str, fill: bool) -> Number:
        """From the training rows."""
        x = numbers(values, label)
        gone, x = np.isnan(x), x[~np.isnan(x)]
        _some(x, label)
        mean, sd = moments(x, label)
        return Number(name=name, mean=mean, sd=sd, fill=float(np.median(x)) if fill else None, flagged=bool(gone.any()))

    @property
    def features(self) -> tuple[str, ...]:
        return (self.name, f"{self.name} missing") if self.flagged else (self.name,)

    def encode(self, values: Values, label: str) -> np.ndarray:
        x = numbers(values, label)
        gone = np.isnan(x)
        _refuse_missing(gone, self.fill, label)
        x = np.where(gone, self.fill if self.fill is not None else 0.0, x)
        z = standardised(x, self.mean, self.sd, values, label)
        return np.stack([z, gone] if self.flagged else [z], 1)

    def decode(self, inputs: np.ndarray) -> list[str]:
        step = max(float(np.power(10.0, np.floor(np.log10(self.sd)) - 5)), _SMALLEST)
        with np.errstate(over="ignore", under="ignore"):
            x = self.mean + self.sd * inputs[:, 0].astype(np.float64)
            x = np.round(x / step) * step + 0.0  # no minus zero
        return _unless_missing([f"{v:.10g}" for v in x], inputs, self.flagged)


@dataclass(frozen=True, kw_only=True)
class Category(Column):
    """A column of names."""

    name: str
    values: tuple[str, ...]  # those that have an input of their own
    other: bool = False  # all other values share one more input; False: they are refused
    fill: str | None = None  # takes the place of a missing value; None: refused
    flagged: bool = False  # a further input is 1 where the value is missing

    @staticmethod
    def fit(name: str, values: Values, train: np.ndarray, label: str, fill: bool, other: bool) -> Category:
        """From all rows (which values there are) and the training rows (how frequent they are).

        With `other`, values that training has once or never have no input of their own, so that what they share is
        learned from something.
        """
        known = texts(values)
        counts = Counter(v for i in train if (v := known[i]) is not None)
        _some(np.array(list(counts)), label)
        names = [v for v, count in counts.items() if count > 1] if other else {v for v in known if v is not None}
        most = max(sorted(counts), key=counts.__getitem__) if fill else None
        flagged = any(known[i] is None for i in train)
        return Category(name=name, values=tuple(sorted(names)), other=other, fill=most, flagged=flagged)

    @property
    def features(self) -> tuple[str, ...]:
        own = tuple(f"{self.name} = {value}" for value in self.values)
        rest = (f"{self.name} = other",) if self.other else ()
        return own + rest + ((f"{self.name} missing",) if self.flagged else ())

    def encode(self, values: Values, label: str) -> np.ndarray:
        names = texts(values)
        gone = missing(values)
        _refuse_missing(gone, self.fill, label)
        place = {value: i for i, value in enumerate(self.values)}
        none = len(self.values)
        index = np.array([place.get(self.fill if v is None else v, none) for v in names])  # type: ignore[arg-type]
        if not self.other:
            refuse(
                index == none,
                np.array(names, object),
                label,
                f"expected a value that was there in training (known: {listed(self.values, 10)}; to allow others fit "
                f"with {sharing()})",
            )
        x = np.zeros((len(names), len(self.features)))
        x[np.arange(len(names)), index] = 1.0
        if self.flagged:
            x[:, -1] = gone
        return x

    def decode(self, inputs: np.ndarray) -> list[str]:
        names = (*self.values, "other") if self.other else self.values
        return _unless_missing([names[k] for k in inputs[:, : len(names)].argmax(1)], inputs, self.flagged)


@dataclass(frozen=True, kw_only=True)
class Date(Column):
    """A column of dates, with or without times."""

    name: str
    mean: float  # of the year with its fraction, in the training rows
    sd: float  # of the same; 1 where they are all equal
    times: bool  # training had times of day other than midnight
    fill: str | None = None  # takes the place of a missing value; None: refused
    flagged: bool = False  # a further input is 1 where the value is missing

    @staticmethod
    def fit(name: str, values: Values, label: str, fill: bool) -> Date:
        """From the training rows."""
        x = dates(values, label)
        gone, x = np.isnat(x), x[~np.isnat(x)]
        _some(x, label)
        mean, sd = moments(_year(x)[0], label)
        times = bool((x != x.astype("datetime64[D]")).any())
        median = str(np.sort(x)[len(x) // 2]) if fill else None
        return Date(name=name, mean=mean, sd=sd, times=times, fill=median, flagged=bool(gone.any()))

    @property
    def features(self) -> tuple[str, ...]:
        cycles = ("year", "week", "day") if self.times else ("year", "week")
        parts = ("years", *(f"{wave} of {cycle}" for cycle in cycles for wave in ("sine", "cosine")))
        named = tuple(f"{self.name}: {part}" for part in parts)
        return (*named, f"{self.name} missing") if self.flagged else named

    def encode(self, values: Values, label: str) -> np.ndarray:
        x = dates(values, label)
        gone = np.isnat(x)
        _refuse_missing(gone, self.fill, label)
        if self.fill is not None:
            x = np.where(gone, np.datetime64(self.fill, "us"), x)
        years, of_year = _year(x)
        day = x.astype("datetime64[D]")
        of_week = (day.astype(np.int64) + 3) % 7 / 7  # 1970 began on a Thursday; Monday is 0
        cycles = [of_year, of_week] + ([(x - day) / _DAY] if self.times else [])
        waves = [wave(2 * np.pi * turn) for turn in cycles for wave in (np.sin, np.cos)]
        z = standardised(years, self.mean, self.sd, values, label)
        return np.stack([z, *waves, gone] if self.flagged else [z, *waves], 1)

    def decode(self, inputs: np.ndarray) -> list[str]:
        years = self.mean + self.sd * inputs[:, 0]
        whole = np.floor(years)
        begin = (whole.astype(np.int64) - 1970).astype("datetime64[Y]")
        length = (begin + 1).astype("datetime64[us]") - begin.astype("datetime64[us]")
        exact = begin.astype("datetime64[us]") + ((years - whole) * length.astype(np.float64)).astype("timedelta64[us]")
        near = (
            (exact + _DAY // 2880).astype("datetime64[m]")
            if self.times
            else (exact + _DAY // 2).astype("datetime64[D]")
        )
        return _unless_missing([str(v).replace("T", " ") for v in near], inputs, self.flagged)


def moments(x: np.ndarray, label: str) -> tuple[float, float]:
    """Mean and standard deviation (divisor N); 1 for the latter where all values are equal."""
    scale = float(np.abs(x).max()) or 1.0  # squares of very large and very small values stay in range
    mean, sd = float((x / scale).mean()) * scale, float((x / scale).std()) * scale
    sd = sd if x.min() < x.max() and sd > 0 else 1.0
    if not (np.isfinite(mean) and np.isfinite(sd)):
        raise ValueError(f"{label}: expected numbers of a size that can be averaged, got up to {scale:.3g}")
    return mean, sd


def standardised(x: np.ndarray, mean: float, sd: float, values: Values, label: str) -> np.ndarray:
    """(x - mean) / sd, refused where it leaves what 32 bits hold."""
    with np.errstate(over="ignore", invalid="ignore"):
        z = (x - mean) / sd
    wrong = ~(np.abs(z) < LARGEST)
    remedy = "leave such rows out, or fit to the logarithm of the column"
    near = f"expected numbers near those of training (mean {mean:.3g}, sd {sd:.3g}; {remedy})"
    refuse(wrong, values, label, near)
    return z


def _year(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The year with its fraction, and the fraction."""
    year = x.astype("datetime64[Y]")
    begin, end = year.astype("datetime64[us]"), (year + 1).astype("datetime64[us]")
    fraction = (x - begin) / (end - begin)
    return year.astype(np.int64) + 1970 + fraction, fraction


def _unless_missing(cells: list[str], inputs: np.ndarray, flagged: bool) -> list[str]:
    """The cells, empty where the last input says that there was none."""
    return ["" if flagged and gone > 0.5 else cell for cell, gone in zip(cells, inputs[:, -1])]


def _some(present: np.ndarray, label: str) -> None:
    if len(present) == 0:
        raise ValueError(f"{label}: expected values in the training rows, got none there; drop the column")


def _refuse_missing(gone: np.ndarray, fill: object, label: str) -> None:
    if fill is None and gone.any():
        raise ValueError(
            f"{label}: {int(gone.sum()):,} missing, the first in row {int(gone.argmax()) + 1}; {imputing()}"
        )
