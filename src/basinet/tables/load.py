"""Fits an encoder to a table: decides what each column is, on which rows statistics rest, and what is left out.

Which values and classes exist is read from all rows; means, standard deviations, medians and most frequent values
come only from the training rows.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from ..data.checks import as_tensor
from ..data.data import Data
from ..data.datasets import PARTS, Splits
from .choice import Say, chosen_columns, class_names, fitted_columns, is_classes, label_columns, target_values
from .cuts import cut, date_columns
from .doubts import doubts_of_rows, doubts_of_values
from .encoder import Encoder
from .rules import PLAIN, Rules
from .table import Table, read_table
from .targets import Classes, Real, refuse_missing_targets
from .values import shown

_LOG: Say = logging.getLogger("basinet").warning


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
    `say` is called with a line for each column that is left out, and for what is doubtful about the rows. Splits are by
    the seed, stratified for classes, unless `rules.split` says otherwise.
    """
    table = read_table(file, named(target))
    encoder, (train, val, test) = fit_table(table, target, rules, PARTS, seed=seed, say=say)
    names, goal = encoder.class_names, encoder.target
    used = f"{len(encoder.columns):,} column{'s' * (len(encoder.columns) > 1)} ({len(encoder.features):,} inputs)"
    by = {"random": "", "time": ", split by time", "group": ", split by group", "column": ", split by column"}
    by_column = by[rules.cut.way] + (f" {shown(rules.cut.column)}" if rules.cut.column else "")
    splits = Splits(
        Path(file).stem,
        train,
        val,
        test,
        classes=len(goal.values) if isinstance(goal, Classes) else None,
        description=f"{table.n:,} rows of {table.name}, {target} ({goal.in_words}) from {used}{by_column}.",
        class_names=names,
        feature_names=encoder.features,
        target_mean=goal.mean if isinstance(goal, Real) else 0.0,
        target_sd=goal.sd if isinstance(goal, Real) else 1.0,
        exchangeable=rules.exchangeable,
    )
    return splits, encoder


def fit_table(
    table: Table,
    target: str,
    rules: Rules = PLAIN,
    fractions: Sequence[float] = PARTS,
    *,
    weights: np.ndarray | None = None,
    seed: int = 0,
    say: Say = _LOG,
) -> tuple[Encoder, tuple[Data, ...]]:
    """An encoder whose statistics are those of the first part, and the table's rows encoded, a Data for each part;
    with weights (N,) of the rows, where they are given.

    >>> table = Table("flats", {"area": np.arange(20.0), "rent": 3 * np.arange(20.0)})
    >>> encoder, (train, val) = fit_table(table, "rent", fractions=(0.5, 0.5))
    >>> train.n, val.n, encoder.target.name
    (10, 10, 'rent')
    """
    for note in table.notes:
        say(note)
    labels = label_columns(table, target, rules.kind)
    sources = labels.columns if labels else (target,)
    _check_names(table, sources, rules)
    label = f"{table.name}: target {shown(target)}"
    whole = labels or _classes(table, target, rules, label, say)
    chosen, unused = chosen_columns(table, sources, rules, say)
    encoded = None if whole is None else whole.read(table)
    if labels and encoded is not None and bool((encoded == encoded[:1]).all()):
        raise ValueError(f"{table.name}: expected labels that differ between rows, got the same in all {table.n}")
    rows = cut(table, rules, fractions, None if labels else encoded, chosen, seed, say)
    columns = fitted_columns(chosen, rules, rows[0], table.name)
    goal = whole or Real.fit(target, table.columns[target][rows[0]], label)
    encoder = Encoder(target=goal, columns=columns, unused=unused)
    whole_data = encoder.data(table)  # errors count rows as the file does
    if weights is not None:
        whole_data = Data(whole_data.inputs, whole_data.targets, as_tensor(weights, "weights"))
    parts = tuple(whole_data.take(index) for index in rows)
    dated = [] if rules.split else date_columns(table, chosen, rules.drop)
    for line in doubts_of_rows(chosen, {name: table.columns[name] for name in sources}, rows, dated):
        say(line)
    for line in doubts_of_values(encoder, parts[0]):
        say(line)
    return encoder, parts


def named(target: str) -> list[str]:
    """The columns that a target may name: itself, or several."""
    return [target, *(name.strip() for name in target.split(","))]


def _check_names(table: Table, sources: Sequence[str], rules: Rules) -> None:
    """Refuses columns that are not there, and uses of the target that make no sense."""
    by = [rules.cut.column] if rules.cut.column else []
    for name in (*sources, *rules.keep, *rules.drop, *rules.categories, *by):
        table.column(name)
    if wrong := [name for name in sources if name in rules.drop]:
        raise ValueError(f"expected columns to drop, got the target {shown(wrong[0])} among them")
    if wrong := [name for name in sources if name in by]:
        raise ValueError(f"expected a column to split by that is not predicted, got the target {shown(wrong[0])}")
    if table.n < 5:
        raise ValueError(f"{table.name}: expected at least 5 rows to learn from and to test on, got {table.n}")


def _classes(table: Table, target: str, rules: Rules, label: str, say: Say) -> Classes | None:
    """The target as classes, where it is such."""
    raw = table.column(target)
    refuse_missing_targets(raw, label)
    values = target_values(raw, rules.kind, label)
    if not is_classes(values, rules.kind, label, say):
        return None
    return Classes(name=target, values=class_names(raw, label))
