"""One column of a file as values: of which kind they are, and how each kind is read as numbers, dates or text.

A column is a 1-D numpy array: objects (strings, None where missing), bool, int64, float64 (NaN where missing) or
datetime64[us] (NaT where missing). Files of text have strings everywhere; `typed` finds what they mean. Rows are
counted from 1, without the header.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np

Values = np.ndarray

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "?"})  # in small letters: cells that stand for no value
_WHOLE = re.compile(r"[+-]?\d{1,18}")
_DATE = re.compile(r"\d{4}[-/]\d\d?[-/]\d\d?([T ]\d\d:\d\d.*)?")
_BOOLEANS = {"true": True, "false": False}


def missing(values: Values) -> np.ndarray:
    """(N,) bool: where there is no value."""
    if values.dtype.kind == "O":
        return np.fromiter((v is None for v in values), bool, len(values))
    if values.dtype.kind == "f":
        return np.isnan(values)
    return np.isnat(values) if values.dtype.kind == "M" else np.zeros(len(values), bool)


def typed(values: Values) -> Values:
    """Text as what all of it means: booleans, whole numbers, numbers or dates; text where it means none of them."""
    if values.dtype.kind != "O":
        return values
    present = [v for v in values if v is not None]
    if not present:
        return values
    if all(v.lower() in _BOOLEANS for v in present):
        booleans = np.array([np.nan if v is None else float(_BOOLEANS[v.lower()]) for v in values])
        return booleans.astype(bool) if len(present) == len(values) else booleans
    if all(_number(v) is not None for v in present):
        if len(present) == len(values) and all(_WHOLE.fullmatch(v) for v in present):
            return np.array([int(v) for v in values], np.int64)
        return _parsed(values, _number, np.nan, np.float64)
    if all(_date(v) is not None for v in present):
        return _parsed(values, _date, "NaT", "datetime64[us]")
    return values


def not_numbers(values: Values) -> np.ndarray:
    """(N,) bool: text that is there and is not a number."""
    if values.dtype.kind != "O":
        return np.zeros(len(values), bool)
    return np.fromiter((v is not None and _number(v) is None for v in values), bool, len(values))


def is_number(text: str) -> bool:
    """Whether text is a number."""
    return _number(text) is not None


def numbers(values: Values, label: str) -> np.ndarray:
    """(N,) float64, NaN where missing; finite elsewhere. `label` says in errors whose values they are."""
    if values.dtype.kind == "M":
        raise ValueError(f"{label}: expected numbers, got dates")
    if values.dtype.kind == "O" and all(v is None or v.lower() in _BOOLEANS for v in values):
        values = typed(values)
    refuse(not_numbers(values), values, label, "expected numbers")
    parsed = values.astype(np.float64) if values.dtype.kind != "O" else _parsed(values, _number, np.nan, np.float64)
    refuse(np.isinf(parsed), values, label, "expected finite numbers")
    return parsed


def dates(values: Values, label: str) -> np.ndarray:
    """(N,) datetime64[us], NaT where missing; times with an offset are those of UTC."""
    if values.dtype.kind == "O":
        wrong = np.fromiter((v is not None and _date(v) is None for v in values), bool, len(values))
        refuse(wrong, values, label, "expected dates such as 2024-05-31")
        values = _parsed(values, _date, "NaT", "datetime64[us]")
    if values.dtype.kind != "M":
        raise ValueError(f"{label}: expected dates such as 2024-05-31, got numbers ({values[0]} in row 1)")
    first, last = np.datetime64("0001-01-01", "us"), np.datetime64("9999-12-31", "us")
    refuse((values < first) | (values > last), values, label, "expected dates of the years 1 to 9999")
    return values


def texts(values: Values) -> list[str | None]:
    """Strings, None where missing. The same value reads the same from every kind of file: 1.0 is 1, True is true."""
    if values.dtype.kind == "O":
        return [None if v is None else _canonical(v) for v in values]
    gone = missing(values)
    if values.dtype.kind == "b":
        return ["true" if v else "false" for v in values]
    return [None if no else _canonical(str(v)) for v, no in zip(values, gone)]


def refuse(wrong: np.ndarray, values: Values, label: str, expected: str) -> None:
    """Raises where a value is wrong, with the first of them, its row, and how many there are."""
    if not wrong.any():
        return
    row, count = int(wrong.argmax()), int(wrong.sum())
    more = "" if count == 1 else f", and {count - 1:,} more"
    raise ValueError(f"{label}: {expected}, got {shown(values[row])} in row {row + 1}{more}")


def shown(value: Any) -> str:
    """A value in an error: quoted where it is text, cut where it is long."""
    text = repr(value) if isinstance(value, str) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def listed(names: Any, most: int = 20) -> str:
    """Names in an error, the first of them where they are many."""
    quoted = [shown(name) for name in names]
    return ", ".join(quoted[:most]) + (f" and {len(quoted) - most:,} more" if len(quoted) > most else "")


def _parsed(values: Values, read: Callable[[str], Any], none: Any, dtype: Any) -> np.ndarray:
    return np.array([none if v is None else read(v) for v in values], dtype)


def _number(text: str) -> float | None:
    if "_" in text:  # Python reads 1_000
        return None
    try:
        return float(text)
    except ValueError:
        return None


def _date(text: str) -> datetime | None:
    if not _DATE.fullmatch(text):
        return None
    day, separator, time = text.replace("/", "-").replace("T", " ").partition(" ")
    try:
        year, month, of_month = map(int, day.split("-"))
        date = datetime.fromisoformat(f"{year:04}-{month:02}-{of_month:02}{separator}{time}")
        return date if date.tzinfo is None else date.astimezone(UTC).replace(tzinfo=None)
    except (ValueError, OverflowError):
        return None


def _canonical(text: str) -> str:
    if text.lower() in _BOOLEANS:
        return text.lower()
    number = _number(text) if "." in text or "e" in text or "E" in text else None
    return str(int(number)) if number is not None and abs(number) < 1e15 and number.is_integer() else text
