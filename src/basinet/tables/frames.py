"""Tables that are in memory already: a data frame (pandas, or what turns into one), or an array (N, D)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import date
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, NamedTuple

import numpy as np

from .table import Table, cells, plain
from .values import Values, listed, shown


class Framed(NamedTuple):
    """A table, and what its frame says about columns beyond their values."""

    table: Table
    categories: tuple[str, ...]  # columns whose values are names, though they may look like numbers


def is_frame(rows: Any) -> bool:
    """Whether rows are a data frame: pandas's, or one that turns into it, as those of polars and pyarrow do."""
    return hasattr(rows, "to_pandas") or (hasattr(rows, "iloc") and hasattr(rows, "columns"))


def table_of(rows: Any, name: str = "the table", names: Sequence[str] | None = None) -> Framed:
    """The table that a data frame or an array (N, D) is: cells are read as those of files.

    Columns of an array, and of a frame whose columns have no names, are x0, x1 ... unless `names` says otherwise.
    `name` is what errors call the table.

    >>> table_of(np.array([[1.0, 2.0], [3.0, 4.0]])).table.columns["x1"]
    array([2., 4.])
    """
    frame = rows.to_pandas() if hasattr(rows, "to_pandas") else rows
    if not is_frame(frame):
        return _array(np.asarray(frame), name, names)
    known = list(frame.columns) if names is None else list(names)
    if not all(isinstance(column, str) for column in known):
        known = [f"x{i}" for i in range(len(known))]
    if twice := sorted({column for column in known if known.count(column) > 1}):
        raise ValueError(f"{name}: expected a different name for each column, got {listed(twice)} more than once")
    series = [frame.iloc[:, i] for i in range(len(known))]
    columns = {column: _series(x, f"{name}: column {shown(column)}") for column, x in zip(known, series)}
    return Framed(Table(name, columns), tuple(column for column, x in zip(known, series) if hasattr(x, "cat")))


def _array(x: np.ndarray, name: str, names: Sequence[str] | None) -> Framed:
    if x.ndim != 2:
        raise ValueError(f"{name}: expected an array (rows, columns), got one of shape {x.shape}")
    known = [f"x{i}" for i in range(x.shape[1])] if names is None else list(names)
    labels = [f"{name}: column {shown(column)}" for column in known]
    read = _mixed if x.dtype.kind == "O" else plain
    return Framed(Table(name, {column: read(x[:, i], labels[i]) for i, column in enumerate(known)}), ())


def _series(series: Any, label: str) -> Values:
    """A pandas series as values."""
    if hasattr(series, "cat"):
        names = [*_mixed(np.array(list(series.cat.categories), object), label).astype(object), None]
        return np.array([names[code] for code in series.cat.codes], object)  # a missing value has the code -1
    kind = getattr(series.dtype, "kind", "O")
    if kind == "M":
        zone = getattr(series.dtype, "tz", None)
        return plain((series if zone is None else series.dt.tz_convert("UTC").dt.tz_localize(None)).to_numpy(), label)
    gone = series.isna().to_numpy()
    if kind in "biuf":
        if isinstance(series.dtype, np.dtype):
            return plain(series.to_numpy(), label)
        dtype = float if gone.any() else {"b": bool, "i": np.int64, "u": np.uint64, "f": float}[kind]
        return plain(series.to_numpy(dtype=dtype, **({"na_value": np.nan} if gone.any() else {})), label)
    if kind not in "OUST":
        raise ValueError(f"{label}: expected numbers, text, booleans or dates, got {series.dtype}; leave it out")
    objects = series.to_numpy(dtype=object, copy=True)
    objects[gone] = None
    return _mixed(objects, label)


def _mixed(objects: np.ndarray, label: str) -> Values:
    """Objects of any kind as values: numbers where all are such, else the text of each."""
    if all(type(v) is float for v in objects):
        return objects.astype(np.float64)
    return cells([_text(v, label, row) for row, v in enumerate(objects, 1)])


def _text(value: Any, label: str, row: int) -> str:
    """One cell as text; empty where there is none."""
    if isinstance(value, str):
        return value
    if value is None or type(value).__name__ in ("NAType", "NaTType"):
        return ""
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    if isinstance(value, (Real, Decimal)):
        number = float(value)
        return "" if math.isnan(number) else str(value) if isinstance(value, Integral) else repr(number)
    if isinstance(value, date):  # a time, too
        return value.isoformat()
    if isinstance(value, np.datetime64):
        return "" if np.isnat(value) else str(value)
    got = f"{type(value).__name__} in row {row:,}"
    raise TypeError(f"{label}: an argument must be made of strings, numbers, booleans or dates, got a {got}")
