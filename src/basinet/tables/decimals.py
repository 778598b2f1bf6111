"""Numbers written with a comma, 1,5: read where a file leaves no doubt that the comma is a decimal one."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

_WHOLE = re.compile(r"[+-]?\d+")
_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(?:,\d{3})+")  # 1,234 may be 1234, or 1.234

Cells = Sequence[str | None]


def with_points(columns: Mapping[str, Cells]) -> dict[str, list[str | None]]:
    """The columns whose numbers have decimal commas, with points; none where no cell of the file decides it.

    A cell that can have no comma between thousands (1,5 or 0,125) decides for the whole file.
    """
    numeric = {name: cells for name, cells in columns.items() if _mostly_commas(cells)}
    if not any(_decides(cell) for cells in numeric.values() for cell in cells):
        return {}
    return {name: [_with_point(cell) for cell in cells] for name, cells in numeric.items()}


def in_doubt(cells: Cells) -> int | None:
    """The row of a number that may have a comma for decimals or for thousands, where most cells are such."""
    if not _mostly_commas(cells):
        return None
    return next(row for row, cell in enumerate(cells) if cell is not None and "," in cell and _is_number(cell))


def _mostly_commas(cells: Cells) -> bool:
    """Whether some cells are numbers with a comma, and half of all or more are numbers."""
    if not any(cell is not None and "," in cell and _is_number(cell) for cell in cells):
        return False
    present = [cell for cell in cells if cell is not None]
    return 2 * sum(_is_number(cell) for cell in present) >= len(present)


def _is_number(cell: str) -> bool:
    return bool(_COMMA.fullmatch(cell) or _WHOLE.fullmatch(cell) or _THOUSANDS.fullmatch(cell))


def _decides(cell: str | None) -> bool:
    return cell is not None and bool(_COMMA.fullmatch(cell)) and not _THOUSANDS.fullmatch(cell)


def _with_point(cell: str | None) -> str | None:
    return cell.replace(",", ".") if cell is not None and _COMMA.fullmatch(cell) else cell
