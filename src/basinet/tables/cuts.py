"""Which rows of a table train, tune and test.

random   shuffled by the seed; stratified where there are classes
time     the earliest train, the latest test; rows of one time stay on one side
group    rows that share a value (a patient, a shop, all inputs) stay on one side
column   a column says train, val or test
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from ..core.noise import Noise
from ..data.data import Data
from .rules import Rules
from .table import Table
from .values import Values, listed, missing, refuse, shown, texts, typed

Rows = list[np.ndarray]  # positions of rows, an array for each part
Say = Callable[[str], None]

_WORDS = {
    **dict.fromkeys(("train", "training"), 0),
    **dict.fromkeys(("val", "valid", "validation", "dev"), 1),
    **dict.fromkeys(("test", "testing"), 2),
}


def cut(
    table: Table,
    rules: Rules,
    fractions: Sequence[float],
    classes: torch.Tensor | None,
    inputs: Mapping[str, Values],
    seed: int,
    say: Say,
) -> Rows:
    """The rows of each part. `classes` (N,) are dealt out in proportion where that can be; `inputs` are the columns
    that are used, which say what a duplicate is."""
    way, name = rules.cut
    if len(fractions) == 1 and way != "column":
        return _at_random(table.n, fractions, classes, seed)
    if way == "time":
        return _shuffled(_by_time(*_times(table, name), fractions, table.name), seed)
    if way == "column":
        return _shuffled(_by_column(table, name or "", fractions, seed, say), seed)
    if way == "group" or rules.group_duplicates:
        groups = equal_rows(inputs) if way == "random" else _groups(table, name or "")
        what = "different rows" if way == "random" else f"different values of {shown(name)}"
        return _shuffled(_by_group(groups, fractions, classes, seed, f"{table.name}: expected {{}} {what}"), seed)
    return _at_random(table.n, fractions, classes, seed)


def equal_rows(columns: Mapping[str, Values]) -> np.ndarray:
    """(N,) the number of the group that a row belongs to: rows that are equal in all columns share one. Groups are
    numbered as they come."""
    n = len(next(iter(columns.values())))
    digest = np.zeros(n, np.uint64)
    with np.errstate(over="ignore"):
        for values in columns.values():
            digest = _mixed(digest ^ _bits(values))
    _, first, group = np.unique(digest, return_index=True, return_inverse=True)
    return np.argsort(np.argsort(first))[group]


def date_columns(table: Table, chosen: Mapping[str, Values], others: Sequence[str]) -> list[str]:
    """The columns of dates: among those that are used, and among `others`."""
    known = [name for name, values in chosen.items() if values.dtype.kind == "M"]
    return known + [name for name in others if typed(table.columns[name]).dtype.kind == "M"]


def _at_random(n: int, fractions: Sequence[float], classes: torch.Tensor | None, seed: int) -> Rows:
    targets = torch.zeros(n) if classes is None else classes
    parts = Data(torch.arange(n), targets).split(*fractions, seed=seed, stratify=classes is not None)
    return [part.inputs.numpy() for part in parts]


def _times(table: Table, name: str | None) -> tuple[str, Values]:
    """The column that tells the time, and its values."""
    if name is None:
        dated = [known for known, values in table.columns.items() if typed(values).dtype.kind == "M"]
        if len(dated) != 1:
            got = f"several: {listed(dated)}" if dated else "none"
            raise ValueError(
                f"{table.name}: expected one column of dates to split by time, got {got}; name one as time:COL, or a "
                "column of numbers that give the order"
            )
        [name] = dated
    values = typed(table.column(name))
    label = f"{table.name}: column {shown(name)}"
    refuse(missing(values), values, label, "expected a time in every row, to split by time")
    if values.dtype.kind == "O":
        raise ValueError(
            f"{label}: expected dates such as 2024-05-31 or numbers to split by time, got {shown(values[0])}"
        )
    return name, values


def _by_time(name: str, values: Values, fractions: Sequence[float], file: str) -> Rows:
    order = np.argsort(values, kind="stable")
    steps = np.flatnonzero(values[order][1:] != values[order][:-1]) + 1  # where another time begins
    if len(steps) < len(fractions) - 1:
        raise ValueError(
            f"{file}: to split by time, expected at least {len(fractions)} different times in {shown(name)}, got "
            f"{len(steps) + 1}"
        )
    ends: list[int] = []
    for part, share in enumerate(np.cumsum(fractions)[:-1]):
        later = len(fractions) - 2 - part  # cuts that still need a step of their own
        free = steps[len(ends) and int(np.searchsorted(steps, ends[-1], "right")) : len(steps) - later]
        ends.append(int(free[np.abs(free - share * len(values)).argmin()]))
    return np.split(order, ends)


def _by_column(table: Table, name: str, fractions: Sequence[float], seed: int, say: Say) -> Rows:
    """Parts as a column says. Where it names no validation rows, they are drawn from those of training; where no test
    part is wanted, rows of test are left out."""
    known = texts(table.column(name))
    part = np.array([_WORDS.get((value or "").lower(), -1) for value in known])
    label = f"{table.name}: column {shown(name)}"
    refuse(part < 0, np.array([v or "" for v in known], object), label, "expected train, val or test in every row")
    train, val, test = (np.flatnonzero(part == k) for k in range(3))
    wanted = {"train": train} if len(fractions) < 3 else {"train": train, "test": test}
    for word, rows in wanted.items():
        if len(rows) == 0:
            raise ValueError(f"{label}: expected rows of {word}, got none")
    if len(fractions) < 3 and len(test):
        say(f"{len(test):,} rows that {shown(name)} calls test are left out: `basinet evaluate` takes them as a file")
    if len(fractions) == 1:
        return [train]
    if len(val) == 0:
        if len(train) < 2:
            raise ValueError(f"{label}: expected two rows of train or more, or rows of val, got {len(train)}")
        order = train[Noise.seed(seed).split("validation").permutation(len(train)).numpy()]
        count = min(len(train) - 1, max(1, round(len(train) * fractions[1] / (fractions[0] + fractions[1]))))
        say(f"{shown(name)} names no rows of val: {count:,} of its {len(train):,} rows of train are taken, at random")
        train, val = order[count:], order[:count]
    return [train, val] if len(fractions) == 2 else [train, val, test]


def _groups(table: Table, name: str) -> np.ndarray:
    values = table.column(name)
    label = f"{table.name}: column {shown(name)}"
    refuse(missing(values), values, label, "expected a value in every row, to split by group")
    numbers: dict[str | None, int] = {}
    return np.array([numbers.setdefault(value, len(numbers)) for value in texts(values)])


def _by_group(
    groups: np.ndarray, fractions: Sequence[float], classes: torch.Tensor | None, seed: int, expected: str
) -> Rows:
    """Whole groups, the largest first, each to the part that misses most of what it has; equal ones by the seed."""
    sizes = np.bincount(groups)
    if len(sizes) < len(fractions):
        raise ValueError(f"{expected.format(f'at least {len(fractions)}')}, got {len(sizes)}")
    shuffled = Noise.seed(seed).split("groups").permutation(len(sizes)).numpy()
    order = shuffled[np.argsort(-sizes[shuffled], kind="stable")]
    kinds = np.zeros(len(groups), np.int64) if classes is None else classes.numpy()
    lacks = np.outer(fractions, np.bincount(kinds))  # (parts, classes): rows that a part should still get
    members = np.split(np.argsort(groups, kind="stable"), np.cumsum(sizes)[:-1])
    parts: list[list[np.ndarray]] = [[] for _ in fractions]
    for place, group in enumerate(order):
        rows = members[group]
        empty = [p for p, part in enumerate(parts) if not part]
        open_parts = empty if len(order) - place == len(empty) else range(len(parts))
        best = max(open_parts, key=lambda p: (lacks[p, kinds[rows]].sum(), -p))
        np.subtract.at(lacks[best], kinds[rows], 1)
        parts[best].append(rows)
    return [np.concatenate(part) for part in parts]


def _shuffled(parts: Rows, seed: int) -> Rows:
    key = Noise.seed(seed).split("order")
    return [rows[key.split(i).permutation(len(rows)).numpy()] for i, rows in enumerate(parts)]


def _bits(values: Values) -> np.ndarray:
    """(N,) 64 bits that are equal where values are."""
    if values.dtype.kind == "O":
        return np.fromiter((hash(v) & 0xFFFF_FFFF_FFFF_FFFF for v in texts(values)), np.uint64, len(values))
    if values.dtype.kind == "f":
        values = np.where(np.isnan(values), np.nan, values + 0.0)  # one NaN, and no minus zero
    return values.astype(np.int64).view(np.uint64) if values.dtype.kind != "f" else values.view(np.uint64)


def _mixed(x: np.ndarray) -> np.ndarray:
    """The bits of each number stirred, as splitmix64 does (Steele et al. 2014)."""
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))
