"""Warnings about a table before any score: leaks, outliers, targets that may be classes, rows without inputs."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from basinet.data import Data
from basinet.tables import Rules, Table, fit_table
from basinet.tables.doubts import leaks


def table(**columns):
    return Table("t.csv", {name: np.array([*map(str, values)], object) for name, values in columns.items()})


def said_of(sheet, rules=None):
    said = []
    fit_table(sheet, "y", rules or Rules(split="random"), say=said.append)
    return said


def parts_of(inputs, targets):
    data = Data(torch.from_numpy(inputs).float(), torch.from_numpy(targets).float()[:, None])
    return data.split(0.6, 0.2, 0.2, seed=0)


def test_a_target_that_is_the_sum_of_two_columns_is_warned_of():
    r = np.random.default_rng(0)
    x = r.normal(size=(200, 5))
    y = x[:, 1] + x[:, 3] + 0.005 * r.normal(size=200)  # R^2 .99999
    train, val, _ = parts_of(x, y)
    [line] = leaks(train, val, [f"c{i}" for i in range(5)], "real")
    assert (
        "R^2 0.9999" in line and "mostly from 'c" in line and "'c1'" in line and "'c3'" in line and "'c0'" not in line
    )
    noisy = x[:, 1] + x[:, 3] + 0.2 * r.normal(size=200)  # R^2 .98
    train, val, _ = parts_of(x, noisy)
    assert leaks(train, val, [f"c{i}" for i in range(5)], "real") == []


def test_more_inputs_than_rows_are_not_a_leak():
    r = np.random.default_rng(1)
    train, val, _ = parts_of(r.normal(size=(60, 300)), r.normal(size=60))  # exact on the 36 it is fitted to
    assert leaks(train, val, [f"c{i}" for i in range(300)], "real") == []


def test_inputs_that_are_equal_or_without_spread_are_not_a_leak():
    r = np.random.default_rng(5)
    y = r.normal(size=60)
    x = np.stack([np.zeros(60), np.full(60, 1e30), *[r.normal(size=60)] * 3], 1)
    for inputs in (x, x[:, :1], np.zeros((60, 100))):
        train, val, _ = parts_of(inputs, y)
        assert leaks(train, val, [f"c{i}" for i in range(100)], "real") == []
    flat = [Data(part.inputs, part.targets[:, 0]) for part in (train, val)]  # targets (N,)
    assert leaks(flat[0], flat[1], [f"c{i}" for i in range(100)], "real") == []


def test_a_leak_among_very_many_columns_takes_little_memory():
    r = np.random.default_rng(2)
    x = r.normal(size=(60, 20_000))
    train, val, _ = parts_of(x, 2 * x[:, 7] + 1)
    [line] = leaks(train, val, [f"c{i}" for i in range(20_000)], "real")
    assert "'c7' alone determines the target" in line


def test_a_column_that_separates_the_classes_is_warned_of():
    r = np.random.default_rng(3)
    x = r.normal(size=(90, 3))
    y = np.arange(90) % 3
    x[:, 2] = y + 0.3 * r.uniform(size=90)
    train, val, _ = Data(torch.from_numpy(x), torch.from_numpy(y)).split(0.6, 0.2, 0.2, seed=0)
    [line] = leaks(train, val, ["a", "b", "c"], "classes")
    assert "'c' alone" in line


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            [0, 1, 2],
            "has 3 different whole numbers (0, 1, 2), taken for classes, {}counts or amounts, use kind='real'",
        ),
        ([0.5, 1.0, 1.5], "has 3 different numbers (0.5, 1.0, 1.5), taken for amounts; {}classes, use kind='classes'"),
        (list(range(14)), "has 14 different whole numbers (0, 1, 2, 3, 4 and 9 more), taken for classes, {}counts"),
        ([0, 1], None),
        (["a", "b", "c"], None),
    ],
)
def test_a_target_with_few_distinct_numbers_asks_what_they_are(target, message):
    sheet = table(x=np.arange(30) % 7, y=[target[i % len(target)] for i in range(30)])
    lines = [line for line in said_of(sheet) if "target 'y'" in line]
    assert len(lines) == (message is not None)
    for words in (message or "").split("{}") if lines else ():
        assert words in lines[0]
    kind = "classes" if isinstance(target[0], str) else "real"
    assert not any("target 'y'" in line for line in said_of(sheet, Rules(kind=kind)))


def test_a_constant_target_is_refused():
    for value, message in ((3.5, "got 3.5 in every row: nothing to learn"), ("a", "expected at least two classes")):
        with pytest.raises(ValueError, match=message):
            said_of(table(x=np.arange(30) % 7, y=[value] * 30))


def test_heavy_tails_are_warned_of():
    r = np.random.default_rng(4)
    y, x = r.normal(size=400), r.normal(size=400)
    assert said_of(table(x=x, y=y)) == []
    x[::40] = 1e6 * np.sign(x[::40]) * np.arange(10) ** 6
    y[np.arange(5)] = 1e5
    lines = said_of(table(x=x, y=np.where(np.arange(400) < 2, 1e6, y)))
    [line] = [line for line in lines if "'y' more than 10 standard deviations from the mean" in line]
    assert "they decide what is learned. Take likelihood=" in line  # some are negative: they have no logarithm
    lines = said_of(table(x=r.normal(size=400), y=np.where(np.arange(400) < 2, 1e6, np.abs(y))))
    assert any("Predict the logarithm, or use likelihood=" in line for line in lines)


def test_a_row_without_inputs_is_warned_of():
    cells = np.array([str(i % 7) for i in range(30)], object)
    cells[4] = None
    sheet = Table("t.csv", {"x": cells, "y": np.array([str(i / 3) for i in range(30)], object)})
    assert any("1 row (the first is 5) has no input" in line for line in said_of(sheet, Rules(missing="impute")))


def test_ten_thousand_categories_are_refused_with_what_to_do():
    codes, y = [f"k{i // 2}" for i in range(20_000)], np.arange(20_000) / 7
    with pytest.raises(ValueError, match=r"at most 1,000 .* got 10,000; drop it \(.*--drop code") as error:
        said_of(table(code=codes, y=y))  # even if those that come once shared an input there would be too many
    assert len(str(error.value)) < 400
    rare = [f"k{i}" if i < 9_000 else f"k{i % 1_000}" for i in range(20_000)]
    with pytest.raises(ValueError, match=r"got 9,000; let rare values share an input \(.*, or drop it"):
        said_of(table(code=rare, y=y))


def test_very_many_columns_that_are_left_out_are_reported_in_few_lines():
    same = {f"c{i}": ["x"] * 10 for i in range(500)}
    lines = said_of(table(**same, a=np.arange(10) % 4, y=np.arange(10) / 3))
    assert len(lines) == 11 and "490 more columns are left out" in lines[-1]
