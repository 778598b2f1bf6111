"""X of an estimator as a table, with the checks that scikit-learn wants of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from sklearn.utils.validation import validate_data

from ..core.wording import imputing
from ..tables import Rules, Table
from ..tables.frames import Framed, is_frame, table_of
from ..tables.values import listed, missing

FEWEST = 5  # rows to learn from


class DataWarning(UserWarning):
    """Something about X or y to know before believing the predictions."""


def read(estimator: Any, X: Any, reset: bool) -> Framed:
    """X as a table; in fitting (`reset`) the estimator learns the number and the names of the columns."""
    least = FEWEST if reset else 1
    if is_frame(X):
        X = X.to_pandas() if hasattr(X, "to_pandas") else X
        if X.shape[1] == 0:
            raise ValueError(f"expected columns to predict from, got 0 feature(s) (shape={X.shape})")
        if len(X) < least:
            raise ValueError(f"expected at least {least} rows, got {len(X)} sample(s)")
        validate_data(estimator, X, reset=reset, skip_check_array=True)
        return table_of(X, "X")
    array = validate_data(
        estimator, X, reset=reset, dtype=None, ensure_all_finite=False, ensure_min_samples=least, copy=False
    )
    return table_of(array, "X", getattr(estimator, "feature_names_in_", None))


def refuse_missing(table: Table, way: str) -> None:
    """Refuses cells without a value, where the estimator was not told to fill them."""
    if way == "impute":
        return
    gaps = {name: int(missing(values).sum()) for name, values in table.columns.items()}
    if empty := {name: count for name, count in gaps.items() if count}:
        got = f"{sum(empty.values()):,} missing ones (NaN or None) in {listed(empty, 5)}"
        raise ValueError(f"{table.name}: expected a value in every cell, got {got}; {imputing()}")


def rules_of(table: Table, categories: Iterable[str], estimator: Any) -> Rules:
    """What becomes of the columns: all are inputs, as X has only those that a person wants, but for columns of one
    value, from which nothing is learned, and of text that differs in every row."""
    names = list(table.columns)
    asked = [names[c] if isinstance(c, (int, np.integer)) else str(c) for c in estimator.categories]
    if strange := [c for c in asked if c not in names]:
        raise ValueError(f"expected categories among the columns of X, {listed(names)}, got {listed(strange)}")
    named = (*asked, *(c for c in categories if c not in asked))
    constant = [name for name, values in table.columns.items() if name not in asked and _is_constant(values)]
    drop = constant if len(constant) < len(names) else []
    text = {name for name, values in table.columns.items() if values.dtype.kind == "O" and name not in named}
    keep = [name for name in names if name not in drop and (name not in text or name in constant)]
    return Rules(
        kind=estimator._kind,
        missing=estimator.missing,
        unseen=estimator.unseen,
        keep=tuple(name for name in keep if name not in named),
        drop=tuple(drop),
        categories=tuple(name for name in named if name not in drop),
        split="random",
    )


def unused_name(wanted: str, names: Iterable[str]) -> str:
    """A name that no column has."""
    taken = set(names)
    while wanted in taken:
        wanted += "_"
    return wanted


def _is_constant(values: np.ndarray) -> bool:
    """Whether all values are equal, or none is there."""
    gone = missing(values)
    if gone.any():
        return bool(gone.all())
    return bool((values == values[0]).all())
