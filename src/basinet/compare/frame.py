"""A small table: rows that are dicts, columns by name."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class Frame(Sequence[dict[str, Any]]):
    """A list of rows; `frame["nll"]` is a column, `frame[0]` a row, `print(frame)` a table.

    Rows may lack columns that others have: there the column has None. `to_pandas()` needs pandas.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]]) -> None:
        self.rows = [dict(row) for row in rows]

    @property
    def columns(self) -> list[str]:
        """The names of all columns, in the order in which they come up."""
        return list(dict.fromkeys(name for row in self.rows for name in row))

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.rows)

    def __getitem__(self, key: Any) -> Any:
        if not isinstance(key, str):
            return self.rows[key]
        if key not in self.columns:
            raise KeyError(f"there is no column {key!r}; there are {', '.join(self.columns)}")
        return [row.get(key) for row in self.rows]

    def where(self, **values: Any) -> Frame:
        """The rows that have these values: `frame.where(method="MAP")`."""
        return Frame([row for row in self.rows if all(row.get(name) == value for name, value in values.items())])

    def to_pandas(self) -> Any:
        """The same as a pandas DataFrame."""
        try:
            import pandas  # type: ignore[import-untyped]
        except ImportError as error:
            raise ImportError("to_pandas expected pandas, got none: pip install pandas") from error
        return pandas.DataFrame(self.rows, columns=self.columns)

    def __str__(self) -> str:
        names = self.columns
        cells = [[_shown(row.get(name)) for name in names] for row in self.rows]
        wide = [max(len(name), *(len(row[i]) for row in cells), 0) for i, name in enumerate(names)]
        text = [all(isinstance(v, str) for v in self[name]) for name in names]
        lines = [
            "  ".join(c.ljust(w) if t else c.rjust(w) for c, w, t in zip(row, wide, text)).rstrip()
            for row in (names, *cells)
        ]
        return "\n".join(lines)

    __repr__ = __str__


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)
