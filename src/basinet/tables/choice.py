"""Which columns of a table are inputs and as what, and what kind of target a column is."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np

from ..core.wording import aside, imputing, option, sharing
from .columns import Category, Column, Date, Number
from .decimals import in_doubt
from .rules import Rules
from .table import Table
from .targets import Labels
from .values import Values, listed, missing, not_numbers, refuse, shown, texts, typed

Say = Callable[[str], None]

FEW = 20  # a target of whole numbers has classes, if they are no more than this
MANY = 1000  # values of a category, each of which is an input
ROWS = 20  # rows from which on whole numbers that count them are taken for an identifier, in any order
MOSTLY = 0.9  # share of numbers above which a column of text is a column of numbers with errors
LINES = 10  # columns that are left out, each of which gets a line; the others share one


def chosen_columns(
    table: Table, targets: Sequence[str], rules: Rules, say: Say
) -> tuple[dict[str, Values], tuple[str, ...]]:
    """The values of the columns that are inputs, typed, and the names of those that are left out."""
    chosen: dict[str, Values] = {}
    reasons: dict[str, str] = {}
    apart = {*targets, *rules.drop}
    for name, values in table.columns.items():
        if name in apart:
            continue
        read = values if name in rules.categories else _typed(values, name, table.name)
        reason = "" if name in (*rules.keep, *rules.categories) else _split_reason(name, rules) or _reason(read)
        if not reason:
            chosen[name] = read
            continue
        known = shown(name)
        way = option(f"keep=({known},)", f"--keep {known[1:-1]}", "")
        keep = "" if rules.cut == ("column", name) or not way else f" ({way} uses it)"
        reasons[name] = f"column {known} is left out: {reason}{keep}"
    for line in list(reasons.values())[:LINES]:
        say(line)
    if len(reasons) > LINES:
        say(f"{len(reasons) - LINES:,} more columns are left out: {listed(list(reasons)[LINES:], 5)}")
    if not chosen:
        why = "; ".join(list(reasons.values())[:LINES]) or "there is only the target"
        raise ValueError(f"{table.name}: expected columns to predict {listed(targets)} from, got none: {why}")
    gaps = {name: int(missing(values).sum()) for name, values in chosen.items()}
    if rules.missing == "refuse" and any(gaps.values()):
        empty = [(name, count) for name, count in gaps.items() if count]
        named = ", ".join(f"{shown(name)} ({count:,})" for name, count in empty[:LINES])
        more = f" and {len(empty) - LINES:,} more columns" if len(empty) > LINES else ""
        raise ValueError(
            f"{table.name}: expected a value in every cell, got missing ones in {named}{more}; {imputing()}"
        )
    return chosen, (*reasons, *rules.drop)


def fitted_columns(chosen: dict[str, Values], rules: Rules, train: np.ndarray, file: str) -> tuple[Column, ...]:
    """The columns fitted to the training rows."""
    label = f"{file}: column"
    return tuple(_column(name, values, f"{label} {shown(name)}", rules, train) for name, values in chosen.items())


def label_columns(table: Table, target: str, kind: str | None) -> Labels | None:
    """The target as labels, where it names several columns or an array of several, or is said to be one label."""
    if target in table.columns and kind != "labels":
        return None
    split = [name.strip() for name in target.split(",")]
    of_array = re.compile(re.escape(target) + r"\.\d+")
    array = [name for name in table.columns if of_array.fullmatch(name)]
    columns = [target] if target in table.columns else array if len(array) > 1 else split
    if columns == [target] and target not in table.columns:
        return None  # an error says so
    if kind not in (None, "labels"):
        raise ValueError(
            f"{table.name}: expected one column for a target of kind {kind!r}, got {listed(columns)}; several columns "
            "are labels, 0 or 1 each"
        )
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise ValueError(f"{table.name}: expected different columns of labels, got {shown(twice[0])} twice")
    return Labels(name=target, columns=tuple(columns))


def target_values(values: Values, kind: str | None, label: str) -> Values:
    """The target's values, typed unless they are names; refused where they are neither names nor numbers."""
    if kind == "classes":
        return values
    read = typed(values)
    if read.dtype.kind == "O":
        _refuse_doubt(read, label, f"{_taking('classes')} takes them as names")
        wrong = not_numbers(read)
        if kind == "real" or not wrong.all():
            numbers = int((~wrong).sum())
            mixed = f"{numbers:,} of {len(read):,} values are numbers; "
            what = "expected numbers" if kind == "real" else "expected only names or only numbers"
            refuse(wrong, read, label, f"{what} ({mixed}{_taking('classes')} takes all as names)")
    if read.dtype.kind == "M":
        raise ValueError(f"{label}: expected classes or numbers, got dates such as {values[0]}")
    if kind == "real":
        read = read.astype(np.float64)
    wrong = np.isinf(read) if read.dtype.kind == "f" else np.zeros(len(read), bool)
    refuse(wrong, values, label, "expected finite numbers")
    if read.dtype.kind in "if" and read.min() == read.max():
        raise ValueError(f"{label}: expected values that differ, got {read[0]} in every row: nothing to learn")
    return read


def is_classes(values: Values, kind: str | None, label: str, say: Say) -> bool:
    """Whether a target is classes; reports what it was taken for if a few different numbers leave that open."""
    if kind is not None:
        return kind == "classes"
    if values.dtype.kind not in "if":
        return values.dtype.kind in "Ob"
    different = np.unique(values)
    few = len(different) <= FEW and 2 * len(different) <= len(values)
    classes = few and values.dtype.kind == "i"
    if few and (len(different) > 2 or not classes):
        named = f"{len(different)} different {'whole ' * classes}numbers ({listed(different.tolist(), 5)})"
        as_what, other = ("classes", "real") if classes else ("amounts", "classes")
        order = ", which have no order and no distances" if classes else ""
        ask = "if they are counts or amounts" if classes else "if they are classes"
        say(f"{label}: has {named}, taken for {as_what}{order}; {ask}, use {_taking(other)}")
    return classes


def class_names(values: Values, label: str) -> tuple[str, ...]:
    """The classes in the order of numbers, or of the alphabet."""
    names = sorted({v for v in texts(values) if v is not None})
    if len(names) < 2:
        raise ValueError(f"{label}: expected at least two classes, got only {shown(names[0])}: nothing to tell apart")
    if 2 * len(names) > len(values):
        raise ValueError(
            f"{label}: expected at least two rows per class, got {len(names):,} classes in {len(values):,} rows; "
            f"is it an identifier? {_taking('real')} takes numbers as numbers"
        )
    if not not_numbers(np.array(names, object)).any():
        names.sort(key=float)
    return tuple(names)


def _taking(kind: str) -> str:
    """What says of which kind a target is."""
    return option(f"kind={kind!r}", f"--kind {kind}", "BasinetClassifier" if kind == "classes" else "BasinetRegressor")


def _typed(values: Values, name: str, file: str) -> Values:
    """A column's values typed; refused where text stands among numbers."""
    read = typed(values)
    label, remedy = (
        f"{file}: column {shown(name)}",
        option(f"categories=({shown(name)},)", f"--category {shown(name)[1:-1]}"),
    )
    if read.dtype.kind == "O":
        _refuse_doubt(read, label, f"{remedy} takes them as names")
    wrong = not_numbers(read)
    if wrong.sum() < (1 - MOSTLY) * (~missing(read)).sum():
        refuse(wrong, read, label, f"expected numbers, as most are ({remedy} takes all as names)")
    return read


def _refuse_doubt(values: Values, label: str, remedy: str) -> None:
    """Numbers with a comma that nothing in the file explains are not silently names."""
    row = in_doubt(values.tolist())
    if row is not None:
        raise ValueError(
            f"{label}: expected numbers such as 1234.5, got {shown(values[row])} in row {row + 1}: is its comma a "
            f"decimal one, or between thousands? Write them with a point, or without ({remedy})"
        )


def _split_reason(name: str, rules: Rules) -> str:
    """Why a column that the split goes by is not an input."""
    way, column = rules.cut
    if name != column or way == "time":
        return ""
    return "rows are grouped by it" if way == "group" else "it says which rows train and test"


def _reason(values: Values) -> str:
    """Why a column tells nothing; empty where it may tell something."""
    gone = missing(values)
    if gone.all():
        return "it has no values"
    if gone.any():
        return ""
    different = len(set(values.tolist()))
    if different == 1:
        return f"every row has {shown(values[0])}"
    if values.dtype.kind == "O" and different == len(values):
        return "every row has a value of its own, as in a column of names or identifiers"
    if values.dtype.kind == "i" and bool((np.diff(values) > 0).all()):
        return "its whole numbers increase from row to row, as those of an identifier do"
    if values.dtype.kind == "i" and different == len(values) >= ROWS and np.ptp(values) == different - 1:
        return "its whole numbers count the rows in some order, as those of an identifier do"
    return ""


def _column(name: str, values: Values, label: str, rules: Rules, train: np.ndarray) -> Column:
    fill = rules.missing == "impute"
    if name not in rules.categories:
        if values.dtype.kind == "M":
            return Date.fit(name, values[train], label, fill)
        if values.dtype.kind != "O":
            return Number.fit(name, values[train], label, fill)
    column = Category.fit(name, values, train, label, fill, rules.unseen == "other")
    if len(column.values) > MANY:
        dropping = option(f"drop=({shown(name)},)", f"--drop {shown(name)[1:-1]}", "")
        enough = len(Category.fit(name, values, train, label, fill, other=True).values) <= MANY
        rare = f"let rare values share an input ({sharing()}), or " if enough else ""
        raise ValueError(
            f"{label}: expected at most {MANY:,} different values, each of which is an input of the network, got "
            f"{len(column.values):,}; {rare}drop it{aside(dropping)}"
        )
    return column
