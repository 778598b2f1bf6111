"""Tables as files: csv, parquet and npz in, csv and parquet out."""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..core.documented import with_field_doc
from ..core.nearest import did_you_mean
from ..data.formats import read_arrays, reason
from .decimals import with_points
from .values import MISSING, Values, is_number, listed, shown

READ = (".csv", ".npz", ".parquet")
WRITTEN = (".csv", ".parquet")
_WIDEST = 20_000  # columns that one array of an npz file may become
_CELLS = 1_000_000  # of a csv file, made at a time when it is written


@with_field_doc
@dataclass(frozen=True, eq=False)
class Table:
    """Named columns of equal length; at least one column and one row."""

    name: str
    """Where it came from, as errors call it."""
    columns: dict[str, Values]
    """Values by the name of their column."""
    notes: tuple[str, ...] = ()
    """What a person should know about how it was read."""

    def __post_init__(self) -> None:
        if not self.columns:
            raise ValueError(f"{self.name}: expected at least one column, got none")
        if self.n == 0:
            raise ValueError(f"{self.name}: expected at least one row under the names {listed(self.columns)}, got none")

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(next(iter(self.columns.values())))

    def column(self, name: str) -> Values:
        """A column by name."""
        if name not in self.columns:
            few = len(self.columns) <= 20 and all(len(word) <= 60 for word in (name, *self.columns))
            known = did_you_mean(name, self.columns) if few else f" Known: {listed(self.columns)}."
            raise ValueError(f"{self.name}: there is no column {shown(name)}.{known}")
        return self.columns[name]

    def take(self, rows: slice | np.ndarray) -> Table:
        """Some of the rows."""
        return Table(self.name, {name: values[rows] for name, values in self.columns.items()}, self.notes)


def read_table(path: Path | str, names: Sequence[str] = ()) -> Table:
    """The table in a csv, parquet or npz file.

    csv: utf-8, a line of names first, separated by comma, semicolon, tab or bar; cells that are empty, NA, N/A, NaN,
    null or ? have no value; decimal commas become points, where a cell such as 1,5 leaves no doubt. npz: an array (N,)
    or (N, 1) is a column, an array x (N, D) the columns x.0, x.1 ...; N is that of the first of `names` that is there
    (else of the first array), and arrays of other lengths are left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(f"{folder}/rows.csv").write_text("city;rent\\nBonn;850\\nUlm;790\\n")
    ...     list(read_table(f"{folder}/rows.csv").columns)
    ['city', 'rent']
    """
    path = Path(path)
    kind = path.suffix.lower()
    if kind not in READ:
        raise ValueError(f"{path}: expected a file that ends in {', '.join(READ)}, got {path.suffix or 'no ending'!r}")
    if not path.is_file():
        raise ValueError(f"{path}: {'expected a file, got a folder' if path.is_dir() else 'there is no such file'}")
    columns = {".csv": _csv, ".npz": _npz, ".parquet": _parquet}[kind](path, names)
    if kind != ".csv" or not (changed := with_points({name: cells.tolist() for name, cells in columns.items()})):
        return Table(path.name, columns)
    note = f"numbers with a comma are read as decimals (1,5 is 1.5) in {listed(changed, 5)}"
    return Table(path.name, columns | {name: _objects(cells) for name, cells in changed.items()}, (note,))


def write_table(columns: Mapping[str, np.ndarray | list[str]], path: Path | str, kind: str = "") -> None:
    """Writes columns as csv (numbers with nine digits) or parquet; `kind` is the ending, where `path` lacks it.

    Text in csv that a spreadsheet would take for a formula gets an apostrophe in front.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     write_table({"a": np.array([1.5, 2.0])}, f"{folder}/rows.csv")
    ...     Path(f"{folder}/rows.csv").read_text().splitlines()
    ['a', '1.5', '2']
    """
    ending = (kind or Path(path).suffix).lower()
    if ending not in WRITTEN:
        raise ValueError(f"{path}: expected a file that ends in {' or '.join(WRITTEN)}, got {ending or 'no ending'!r}")
    if ending == ".parquet":
        arrow, parquet = _arrow()
        parquet.write_table(arrow.table(dict(columns)), str(path))
        return
    rows = max(map(len, columns.values()), default=0)
    step = max(1, _CELLS // max(1, len(columns)))
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(map(_no_formula, columns))
        for begin in range(0, rows, step):
            some = [column[begin : begin + step] for column in columns.values()]
            plain = [column.tolist() if isinstance(column, np.ndarray) else column for column in some]
            cells = [[_no_formula(v) if isinstance(v, str) else f"{v:.9g}" for v in column] for column in plain]
            writer.writerows(zip(*cells))


def _no_formula(text: str) -> str:
    """Text that a spreadsheet shows and does not run."""
    return f"'{text}" if text[:1] in tuple("=+-@\t\r") and not is_number(text) else text


def _csv(path: Path, names: Sequence[str]) -> dict[str, Values]:
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            first = file.readline()
            file.seek(0)
            reader = csv.reader(file, delimiter=max(",;\t|", key=first.count), skipinitialspace=True, strict=True)
            header = [name.strip() for name in next(reader, [])]
            rows = []
            for row in reader:
                if len(row) > 1 or (row and (row[0].strip() or len(header) == 1)):  # not an empty line
                    if len(row) != len(header):
                        raise ValueError(
                            f"line {reader.line_num} has {len(row)} cells under {len(header)} names; "
                            "quote cells that hold a separator"
                        )
                    rows.append(row)
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        why = "it is not utf-8 text; save it as such" if isinstance(error, UnicodeDecodeError) else reason(error)
        raise ValueError(f"{path}: cannot be read as csv: {why}") from error
    if not any(header):
        raise ValueError(f"{path}: expected a first line with the names of the columns, got nothing")
    if any("\0" in name for name in header):
        raise ValueError(
            f"{path}: cannot be read as csv: the first line has bytes that are not text; save the file as utf-8"
        )
    header = [name or f"unnamed_{place}" for place, name in enumerate(header, 1)]
    _refuse_twice(path, header)
    texts = zip(*rows) if rows else ((),) * len(header)
    return {name: cells(column) for name, column in zip(header, texts)}


def _refuse_twice(path: Path, names: Iterable[str]) -> None:
    if twice := [name for name, count in Counter(names).items() if count > 1]:
        raise ValueError(f"{path}: expected a different name for each column, got {listed(twice)} more than once")


def cells(column: Sequence[str]) -> Values:
    """Text as values: cells that are empty, or say that there is no value, have none."""
    stripped = [cell.strip() for cell in column]
    return _objects([None if cell.lower() in MISSING else cell for cell in stripped])


def _objects(cells: Sequence[str | None]) -> Values:
    objects = np.empty(len(cells), object)
    objects[:] = cells
    return objects


def _npz(path: Path, names: Sequence[str]) -> dict[str, Values]:
    try:
        arrays = {key: x for key, x in read_arrays(path).items() if x.ndim > 0}
    except ValueError as error:
        raise ValueError(f"{path}: cannot be read as npz: {error}") from error
    if not arrays:
        raise ValueError(f"{path}: expected arrays with a leading axis of rows, got none")
    wanted = [key for name in names for key in (name, name.rpartition(".")[0]) if key in arrays]
    n = len(arrays[wanted[0] if wanted else next(iter(arrays))])
    columns: dict[str, Values] = {}
    for key, x in arrays.items():
        if len(x) != n:
            continue
        if x.ndim > 2 or (x.ndim == 2 and x.shape[1] > _WIDEST):
            raise ValueError(
                f"{path}: expected arrays (N,) or (N, D) with D up to {_WIDEST:,}, got {key!r} of shape {x.shape}"
            )
        width = math.prod(x.shape[1:])
        parts = {key: x.reshape(n)} if width == 1 else {f"{key}.{i}": x[:, i] for i in range(width)}
        _refuse_twice(path, (*parts, *(name for name in parts if name in columns)))
        columns |= {name: plain(part, f"{path}: array {key!r}") for name, part in parts.items()}
    return columns


def _parquet(path: Path, names: Sequence[str]) -> dict[str, Values]:
    arrow, parquet = _arrow()
    try:
        content = parquet.read_table(str(path))
    except Exception as error:  # arrow's own errors, and those of the file system
        raise ValueError(f"{path}: cannot be read as parquet: {reason(error)}") from error
    names = content.column_names  # made again each time it is asked for
    _refuse_twice(path, names)
    columns = zip(names, content.columns)
    return {name: _arrow_values(arrow, column, f"{path}: column {shown(name)}") for name, column in columns}


def _arrow_values(arrow: Any, column: Any, label: str) -> Values:
    kind = column.type
    if arrow.types.is_dictionary(kind):
        column, kind = column.cast(kind.value_type), kind.value_type
    if arrow.types.is_decimal(kind):
        column = column.cast(arrow.float64())
    elif arrow.types.is_temporal(kind) and not (arrow.types.is_time(kind) or arrow.types.is_duration(kind)):
        column = column.cast(arrow.timestamp("us"), safe=False)
    elif arrow.types.is_boolean(kind) and column.null_count:
        column = column.cast(arrow.float64())
    elif arrow.types.is_null(kind):
        return np.full(len(column), None, object)
    elif arrow.types.is_string(kind) or arrow.types.is_large_string(kind):
        return cells(["" if cell is None else cell for cell in column.to_pylist()])
    elif not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)):
        raise ValueError(f"{label}: expected numbers, text, booleans or dates, got {kind}; leave it out of the file")
    return plain(column.to_numpy(), label)


def plain(x: np.ndarray, label: str) -> Values:
    """An array as values: one of five kinds."""
    kind = x.dtype.kind
    if kind == "S":
        try:
            x = np.char.decode(x, "utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{label}: expected text in utf-8, got other bytes") from error
    if kind in "SU":
        return cells(x.tolist())
    if kind == "M":
        return x.astype("datetime64[us]")
    if kind not in "biuf":
        raise ValueError(f"{label}: expected numbers, text, booleans or dates, got {x.dtype}; leave it out of the file")
    large = kind == "u" and x.dtype.itemsize == 8 and len(x) > 0 and int(x.max()) > np.iinfo(np.int64).max
    with np.errstate(over="ignore"):
        return x.astype(np.float64 if kind == "f" or large else np.int64 if kind in "iu" else bool)


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError('parquet files expected pyarrow, got none; pip install "basinet[files]"') from error
    return pyarrow, pyarrow.parquet
