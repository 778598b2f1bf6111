"""Fits an encoder to a table: decides what each column is, on which rows statistics rest, and what is left out.

Which values and classes exist is read from all rows; means, standard deviations, medians and most frequent values
come from the training rows alone.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch

from .columns import REMEDY, Category, Column, Date, Number
from .data import Data
from .datasets import PARTS, Splits
from .encoder import Encoder
from .table import Table, read_table
from .targets import Classes, Labels, Real, Target, refuse_missing_targets
from .values import Values, listed, missing, not_numbers, refuse, shown, texts, typed

Say = Callable[[str], None]
_LOG: Say = logging.getLogger("basinet").warning

FEW = 20  # a target of whole numbers has classes, if they are no more than this
MANY = 1000  # values of a category, each of which is an input
ROWS = 20  # rows from which on whole numbers that count them are taken for an identifier, in any order
MOSTLY = 0.9  # share of numbers above which a column of text is a column of numbers with errors


@dataclass(frozen=True, kw_only=True)
class Rules:
    """What to do with the columns of a table."""

    kind: Literal["classes", "labels", "real"] | None = (
        None  # of the target; None: several columns are labels; text, booleans and few whole numbers are classes
    )
    missing: Literal["refuse", "impute"] = "refuse"  # impute: median or most frequent value, and an input that says so
    unseen: Literal["refuse", "other"] = "refuse"  # values that training had not; other: they share one input
    keep: tuple[str, ...] = ()  # columns used though they are constant or look like identifiers
    drop: tuple[str, ...] = ()  # columns not used
    categories: tuple[str, ...] = ()  # columns of numbers or dates whose values are names

    def __post_init__(self) -> None:
        closed = {
            "kind": (None, "classes", "labels", "real"),
            "missing": ("refuse", "impute"),
            "unseen": ("refuse", "other"),
        }
        for field, known in closed.items():
            if (got := getattr(self, field)) not in known:
                raise ValueError(f"expected {field} among {', '.join(map(str, known))}, got {got!r}")
        if both := set(self.drop) & {*self.keep, *self.categories}:
            raise ValueError(f"expected columns to keep and to drop, got {listed(sorted(both))} as both")


PLAIN = Rules()


def load_table(
    file: Path | str,
    target: str,
    rules: Rules = PLAIN,
    *,
    seed: int = 0,
    say: Say = _LOG,
) -> tuple[Splits, Encoder]:
    """A csv, parquet or npz file cut into 60 % train, 20 % val and 20 % test, and the encoder fitted to train.

    `target` is a column; or several columns of labels, "rain,wind", or an array (N, labels) of them in an npz file.
    `say` is called with a line for each column that is left out. Splits are by the seed, stratified for classes.
    """
    table = read_table(file, named(target))
    encoder, (train, val, test) = fit_table(table, target, rules, PARTS, seed=seed, say=say)
    names, goal = encoder.class_names, encoder.target
    used = f"{len(encoder.columns)} column{'s' * (len(encoder.columns) > 1)} ({len(encoder.features)} inputs)"
    splits = Splits(
        Path(file).stem,
        train,
        val,
        test,
        classes=len(goal.values) if isinstance(goal, Classes) else None,
        description=f"{table.n:,} rows of {table.name}, {target} ({goal.told}) from {used}.",
        class_names=names,
        feature_names=encoder.features,
        target_mean=goal.mean if isinstance(goal, Real) else 0.0,
        target_sd=goal.sd if isinstance(goal, Real) else 1.0,
    )
    return splits, encoder


def fit_table(
    table: Table,
    target: str,
    rules: Rules = PLAIN,
    fractions: Sequence[float] = PARTS,
    *,
    seed: int = 0,
    say: Say = _LOG,
) -> tuple[Encoder, tuple[Data, ...]]:
    """An encoder whose statistics are those of the first part, and the table's rows encoded, a Data for each part."""
    labels = _labels(table, target, rules.kind)
    sources = labels.columns if labels else (target,)
    raw = table.column(sources[0])
    for name in (*rules.keep, *rules.drop, *rules.categories):
        table.column(name)
    if wrong := [name for name in sources if name in rules.drop]:
        raise ValueError(f"expected columns to drop, got the target {wrong[0]!r} among them")
    if table.n < 5:
        raise ValueError(f"{table.name}: expected at least 5 rows to learn from and to test on, got {table.n}")
    if labels:
        targets = labels.read(table)
        if bool((targets == targets[:1]).all()):
            raise ValueError(f"{table.name}: expected labels that differ between rows, got the same in all {table.n}")
        parts = Data(torch.arange(table.n), targets).split(*fractions, seed=seed)
        rows = [part.inputs.numpy() for part in parts]
        columns, unused = _columns(table, sources, rules, rows[0], say)
        return _encoded(Encoder(target=labels, columns=columns, unused=unused), table, rows)
    label = f"{table.name}: target {target!r}"
    refuse_missing_targets(raw, label)
    values = _target_values(raw, rules.kind, label)
    classes = _is_classes(values, rules.kind)
    names = _class_names(raw, label) if classes else ()
    whole = Classes(name=target, values=names).encode(raw, label) if classes else torch.zeros(table.n)
    parts = Data(torch.arange(table.n), whole).split(*fractions, seed=seed, stratify=classes)
    rows = [part.inputs.numpy() for part in parts]
    columns, unused = _columns(table, sources, rules, rows[0], say)
    goal: Target = Classes(name=target, values=names) if classes else Real.fit(target, values[rows[0]], label)
    return _encoded(Encoder(target=goal, columns=columns, unused=unused), table, rows)


def named(target: str) -> list[str]:
    """The columns that a target may name: itself, or several."""
    return [target, *(name.strip() for name in target.split(","))]


def _labels(table: Table, target: str, kind: str | None) -> Labels | None:
    """The target as labels, where it names several columns or an array of several, or is said to be one label."""
    if target in table.columns and kind != "labels":
        return None
    split = [name.strip() for name in target.split(",")]
    array = [name for name in table.columns if re.fullmatch(re.escape(target) + r"\.\d+", name)]
    columns = [target] if target in table.columns else array if len(array) > 1 else split
    if columns == [target] and target not in table.columns:
        return None  # an error says so
    if kind not in (None, "labels"):
        raise ValueError(
            f"{table.name}: expected one column for a target of kind {kind!r}, got {listed(columns)}; several columns "
            "are labels, 0 or 1 each"
        )
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise ValueError(f"{table.name}: expected different columns of labels, got {twice[0]!r} twice")
    return Labels(name=target, columns=tuple(columns))


def _encoded(encoder: Encoder, table: Table, rows: Sequence[np.ndarray]) -> tuple[Encoder, tuple[Data, ...]]:
    data = Data(encoder.inputs(table), encoder.targets(table))  # errors count rows as the file does
    return encoder, tuple(data.take(index) for index in rows)


def _target_values(values: Values, kind: str | None, label: str) -> Values:
    """The target's values, typed unless they are names; refused where they are neither names nor numbers."""
    if kind == "classes":
        return values
    found = typed(values)
    if found.dtype.kind == "O":
        wrong = not_numbers(found)
        if kind == "real" or not wrong.all():
            numbers = int((~wrong).sum())
            mixed = f"{numbers:,} of {len(found):,} values are numbers; "
            what = "expected numbers" if kind == "real" else "expected names alone or numbers alone"
            refuse(wrong, found, label, f"{what} ({mixed}kind='classes', --kind classes, takes all as names)")
    if found.dtype.kind == "M":
        raise ValueError(f"{label}: expected classes or numbers, got dates such as {values[0]}")
    if kind == "real":
        found = found.astype(np.float64)
    wrong = np.isinf(found) if found.dtype.kind == "f" else np.zeros(len(found), bool)
    refuse(wrong, values, label, "expected finite numbers")
    if found.dtype.kind in "if" and found.min() == found.max():
        raise ValueError(f"{label}: expected values that differ, got {found[0]} in every row: nothing to learn")
    return found


def _is_classes(values: Values, kind: str | None) -> bool:
    if kind is not None:
        return kind == "classes"
    if values.dtype.kind == "i":
        count = len(np.unique(values))
        return count <= FEW and 2 * count <= len(values)
    return values.dtype.kind in "Ob"


def _class_names(values: Values, label: str) -> tuple[str, ...]:
    """The classes in the order of numbers, or of the alphabet."""
    names = sorted({v for v in texts(values) if v is not None})
    if len(names) < 2:
        raise ValueError(f"{label}: expected at least two classes, got {shown(names[0])} alone: nothing to tell apart")
    if 2 * len(names) > len(values):
        raise ValueError(
            f"{label}: expected at least two rows a class, got {len(names):,} classes in {len(values):,} rows; "
            "is it an identifier? kind='real' (--kind real) takes numbers as numbers"
        )
    if not not_numbers(np.array(names, object)).any():
        names.sort(key=float)
    return tuple(names)


def _columns(
    table: Table, targets: Sequence[str], rules: Rules, train: np.ndarray, say: Say
) -> tuple[tuple[Column, ...], tuple[str, ...]]:
    """The columns fitted to the training rows, and the names of those that are left out."""
    chosen: dict[str, Values] = {}
    reasons: dict[str, str] = {}
    for name, values in table.columns.items():
        if name in targets or name in rules.drop:
            continue
        found = values if name in rules.categories else _typed(values, name, table.name)
        reason = "" if name in (*rules.keep, *rules.categories) else _reason(found)
        if reason:
            reasons[name] = f"column {name!r} is left out: {reason} (keep=({name!r},), or --keep {name}, uses it)"
            say(reasons[name])
        else:
            chosen[name] = found
    if not chosen:
        why = "; ".join(reasons.values()) or "there is only the target"
        raise ValueError(f"{table.name}: expected columns to predict {listed(targets)} from, got none: {why}")
    gaps = {name: int(missing(values).sum()) for name, values in chosen.items()}
    if rules.missing == "refuse" and any(gaps.values()):
        told = ", ".join(f"{name!r} ({count:,})" for name, count in gaps.items() if count)
        raise ValueError(f"{table.name}: expected a value in every cell, got missing ones in {told}; {REMEDY}")
    columns = tuple(
        _column(name, values, f"{table.name}: column {name!r}", rules, train) for name, values in chosen.items()
    )
    return columns, (*reasons, *rules.drop)


def _typed(values: Values, name: str, file: str) -> Values:
    """A column's values typed; refused where text stands among numbers."""
    found = typed(values)
    wrong = not_numbers(found)
    if wrong.sum() < (1 - MOSTLY) * (~missing(found)).sum():
        told = f"expected numbers, as most are (categories=({name!r},), or --category {name}, takes all as names)"
        refuse(wrong, found, f"{file}: column {name!r}", told)
    return found


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
    found = Category.fit(name, values, train, label, fill, rules.unseen == "other")
    if len(found.values) > MANY:
        raise ValueError(
            f"{label}: expected at most {MANY:,} different values, each of which is an input of the network, got "
            f"{len(found.values):,}; drop it (drop=({name!r},), or --drop {name})"
        )
    return found
