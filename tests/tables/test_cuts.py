"""Which rows train, tune and test: by time, by group, as a column says, and with copies kept together."""

from __future__ import annotations

import numpy as np
import pytest

from basinet.tables import Rules, Table, fit_table, load_table
from basinet.tables.cuts import cut, equal_rows

PARTS = (0.6, 0.2, 0.2)


def quiet(line):
    pass


def table(**columns):
    return Table("t.csv", {name: np.array([*map(str, values)], object) for name, values in columns.items()})


def rows_of(sheet, rules, fractions=PARTS, classes=None, say=quiet):
    inputs = {name: values for name, values in sheet.columns.items() if name != "y"}
    return cut(sheet, rules, fractions, classes, inputs, 0, say)


def whole(rows, n):
    """All rows are in one part each."""
    return sorted(np.concatenate(rows).tolist()) == list(range(n))


def test_by_time_the_earliest_train_and_the_latest_test():
    days = np.random.default_rng(0).permutation(200) // 2  # each day twice
    sheet = table(day=np.datetime64("2024-01-01") + days, y=range(200))
    for rules in (Rules(split="time"), Rules(split="time:day")):
        rows = rows_of(sheet, rules)
        assert whole(rows, 200) and [len(part) for part in rows] == [120, 40, 40]
        assert days[rows[0]].max() < days[rows[1]].min() and days[rows[1]].max() < days[rows[2]].min()
    by_number = rows_of(table(year=days, y=range(200)), Rules(split="time:year"))
    assert days[by_number[0]].max() < days[by_number[1]].min()


def test_by_time_with_few_times_every_part_has_some():
    sheet = table(day=np.datetime64("2024-01-01") + np.array([0] * 17 + [1] + [2] * 2), y=range(20))
    assert [len(part) for part in rows_of(sheet, Rules(split="time"))] == [17, 1, 2]


@pytest.mark.parametrize(
    ("columns", "split", "message"),
    [
        ({"a": range(9)}, "time", "expected one column of dates to split by time, got none"),
        ({"a": ["2024-01-01"] * 9, "b": ["2024-01-02"] * 9}, "time", "got several: 'a', 'b'; name one"),
        ({"a": ["2024-01-01"] * 9}, "time", "at least 3 different times in 'a', got 1"),
        ({"a": list("abcdefghi")}, "time:a", "expected dates such as 2024-05-31 or numbers to split by time, got 'a'"),
        ({"a": [1] * 9}, "group:a", "expected at least 3 different values of 'a', got 1"),
        ({"a": ["train"] * 8 + ["hold"]}, "column:a", "expected train, val or test in every row, got 'hold' in row 9"),
        ({"a": ["train"] * 9}, "column:a", "expected rows of test, got none"),
    ],
)
def test_a_split_that_cannot_be_is_refused(columns, split, message):
    with pytest.raises(ValueError, match=message):
        rows_of(table(**columns, y=range(9)), Rules(split=split))


@pytest.mark.parametrize("split", ["by time", "group", "column:", "random:a", "groups:a"])
def test_a_split_that_nobody_knows_is_refused(split):
    with pytest.raises(ValueError, match="expected split as random, time, time:COL, group:COL or column:COL"):
        Rules(split=split)


@pytest.mark.parametrize("count", [3, 4, 50])
def test_by_group_no_group_is_on_two_sides(count):
    people = np.random.default_rng(1).integers(count, size=300)
    rows = rows_of(table(person=people, y=range(300)), Rules(split="group:person"))
    sides = [set(people[part].tolist()) for part in rows]
    assert whole(rows, 300) and not (sides[0] & sides[1] or sides[0] & sides[2] or sides[1] & sides[2])
    assert all(len(part) for part in rows)
    if count == 50:
        assert [abs(len(part) / 300 - share) < 0.05 for part, share in zip(rows, PARTS)] == [True] * 3


def test_the_column_that_groups_is_not_an_input():
    sheet = table(person=[f"p{i % 9}" for i in range(60)], x=np.arange(60) % 7, y=np.arange(60) / 3)
    said = []
    encoder, _ = fit_table(sheet, "y", Rules(split="group:person"), say=said.append)
    assert encoder.features == ("x",) and encoder.unused == ("person",)
    assert "column 'person' is left out: rows are grouped by it" in said[0]
    encoder, _ = fit_table(sheet, "y", Rules(split="group:person", keep=("person",), unseen="other"), say=quiet)
    assert "person = p0" in encoder.features


def test_as_a_column_says():
    words = ["train"] * 6 + ["Validation"] * 2 + ["TEST"] * 2
    sheet = table(part=words, y=range(10))
    rows = rows_of(sheet, Rules(split="column:part"))
    assert [sorted(part.tolist()) for part in rows] == [[0, 1, 2, 3, 4, 5], [6, 7], [8, 9]]
    said = []
    rows = rows_of(sheet, Rules(split="column:part"), (0.9, 0.1), say=said.append)  # as `basinet fit` asks
    assert [len(part) for part in rows] == [6, 2] and "2 rows that 'part' calls test are left out" in said[0]
    said = []
    rows = rows_of(table(part=["train"] * 8 + ["test"] * 2, y=range(10)), Rules(split="column:part"), say=said.append)
    assert [len(part) for part in rows] == [6, 2, 2] and "names no rows of val: 2 of its 8 rows" in said[0]


def test_copies_stay_on_one_side_if_asked_and_are_warned_of_if_not():
    r = np.random.default_rng(2)
    x = np.repeat(r.normal(size=40), 5)  # each row five times, labels at random
    y = np.repeat(r.integers(2, size=40), 5)
    sheet = table(x=x, y=y)
    said = []
    _, parts = fit_table(sheet, "y", say=said.append)
    assert not set(parts[0].inputs[:, 0].tolist()).isdisjoint(parts[2].inputs[:, 0].tolist())
    assert "160 of 200 rows are copies of others" in said[-1] and "--group-duplicates" in said[-1]
    said = []
    _, parts = fit_table(sheet, "y", Rules(group_duplicates=True), say=said.append)
    assert set(parts[0].inputs[:, 0].tolist()).isdisjoint(parts[2].inputs[:, 0].tolist()) and not said
    for part in parts:
        assert 0.3 < part.targets.double().mean() < 0.7  # classes in proportion
    with pytest.raises(ValueError, match="got the split 'time'"):
        Rules(split="time", group_duplicates=True)


def test_equal_rows_are_found_in_columns_of_every_kind():
    columns = {
        "text": np.array(["a", "a", "b", None, None], object),
        "number": np.array([0.0, -0.0, 1.0, np.nan, np.nan]),
        "day": np.array(["2024-01-01", "2024-01-01", "NaT", "NaT", "NaT"], "datetime64[us]"),
        "flag": np.array([True, True, False, False, False]),
    }
    assert equal_rows(columns).tolist() == [0, 0, 1, 2, 2]


def test_the_same_seed_gives_the_same_rows():
    sheet = table(person=np.arange(90) % 30, y=range(90))
    first, again = (rows_of(sheet, Rules(split="group:person")) for _ in range(2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again))
    assert not np.array_equal(first[0], np.sort(first[0]))  # shuffled, so that the first k are any k


def test_dates_are_warned_of_unless_a_split_is_asked_for(tmp_path):
    days = np.datetime64("2024-01-01") + np.arange(60)
    lines = [f"{day},{i * 7 % 11},{i / 3}" for i, day in enumerate(days)]
    file = tmp_path / "t.csv"
    file.write_text("\n".join(["day,x,y", *lines]))
    for rules, warned in ((Rules(), True), (Rules(drop=("day",)), True), (Rules(split="random"), False)):
        said = []
        load_table(file, "y", rules, say=said.append)
        assert any("'day' has dates" in line for line in said) == warned
    splits, encoder = load_table(file, "y", Rules(split="time", drop=("day",)), say=quiet)
    assert "split by time" in splits.description and encoder.features == ("x",)
    latest = splits.test.targets * splits.target_sd + splits.target_mean
    assert sorted(latest[:, 0].round(decimals=3).tolist()) == pytest.approx([i / 3 for i in range(48, 60)], abs=1e-2)
