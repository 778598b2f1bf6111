"""Tables as files: the same table from csv, npz and parquet, and what is refused."""

import csv
import sys
from datetime import date, datetime

import numpy as np
import pytest

from basinet.tables import Table, read_table, write_table
from basinet.tables.values import dates, missing, not_numbers, numbers, texts, typed


def column(*cells):
    array = np.empty(len(cells), object)
    array[:] = cells
    return array


# What text means


@pytest.mark.parametrize(
    ("cells", "kind", "expected"),
    [
        (("1", "-2", "+3"), "i", [1, -2, 3]),
        (("1", "2.5", "1e3"), "f", [1.0, 2.5, 1000.0]),
        (("1", None), "f", [1.0, np.nan]),
        (("12345678901234567890", "1"), "f", [1.2345678901234567e19, 1.0]),
        (("true", "FALSE"), "b", [True, False]),
        (("true", None), "f", [1.0, np.nan]),
        (("2024-02-29", "2024/3/1"), "M", [datetime(2024, 2, 29), datetime(2024, 3, 1)]),
        (("2024-02-29T12:30:00+02:00", "2024-01-01 00:00"), "M", [datetime(2024, 2, 29, 10, 30), datetime(2024, 1, 1)]),
        (("2023-02-29", "2024-03-01"), "O", ["2023-02-29", "2024-03-01"]),  # there is no such day
        (("1_000", "2"), "O", ["1_000", "2"]),
        (("1", "x"), "O", ["1", "x"]),
        ((None, None), "O", [None, None]),
    ],
)
def test_text_becomes_what_all_of_it_means(cells, kind, expected):
    values = typed(column(*cells))
    assert values.dtype.kind == kind
    np.testing.assert_array_equal(values, np.array(expected, values.dtype))


def test_what_is_typed_stays():
    x = np.array([1.0, np.nan])
    assert typed(x) is x
    assert missing(x).tolist() == [False, True]
    assert missing(np.array(["2020-01-01", "NaT"], "M8[us]")).tolist() == [False, True]
    assert missing(np.array([1, 2])).tolist() == [False, False]
    assert not_numbers(column("1", None, "x")).tolist() == [False, False, True]


def test_numbers_and_dates_say_which_value_is_wrong():
    with pytest.raises(ValueError, match=r"^here: expected numbers, got 'x' in row 2, and 1 more$"):
        numbers(column("1", "x", "y"), "here")
    with pytest.raises(ValueError, match="expected finite numbers, got '1e999' in row 1"):
        numbers(column("1e999"), "here")
    with pytest.raises(ValueError, match="expected numbers, got dates"):
        numbers(np.array(["2020-01-01"], "M8[us]"), "here")
    with pytest.raises(ValueError, match="expected dates such as 2024-05-31, got 'soon' in row 2"):
        dates(column("2020-01-01", "soon"), "here")
    with pytest.raises(ValueError, match=r"expected dates .* got numbers"):
        dates(np.array([1.0]), "here")
    with pytest.raises(ValueError, match="of the years 1 to 9999"):
        dates(np.array(["12000-01-01"], "M8[us]"), "here")
    assert numbers(column("true", "FALSE"), "here").tolist() == [1.0, 0.0]


def test_a_value_reads_the_same_from_every_kind_of_file():
    assert texts(column("1", "1.0", "True", "x", "007", None)) == ["1", "1", "true", "x", "007", None]
    assert texts(np.array([1, 2])) == ["1", "2"]
    assert texts(np.array([1.0, np.nan, 2.5])) == ["1", None, "2.5"]
    assert texts(np.array([True, False])) == ["true", "false"]


# Files


def test_csv(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text('\ufeffa, b ,"c, d"\n1, x ,"say ""hi"""\n\n2,NA,\n', encoding="utf-8")
    table = read_table(path)
    assert (table.name, table.n) == ("t.csv", 2)
    assert {name: values.tolist() for name, values in table.columns.items()} == {
        "a": ["1", "2"],
        "b": ["x", None],
        "c, d": ['say "hi"', None],
    }
    assert table.take(slice(1, 2)).column("a").tolist() == ["2"]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_csv_separators_and_names_that_are_not_there(tmp_path, separator):
    path = tmp_path / "t.csv"
    path.write_text(f"{separator}a\n0{separator}1.5\n")
    assert {k: v.tolist() for k, v in read_table(path).columns.items()} == {"unnamed_1": ["0"], "a": ["1.5"]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "expected a first line with the names"),
        (b"\n\n", "expected a first line with the names"),
        (b"a,b\n", "expected at least one row under the names 'a', 'b'"),
        (b"a,b\n1\n", "line 2 has 1 cells under 2 names"),
        (b"a,b\n1,2\n1,2,3\n", "line 3 has 3 cells under 2 names"),
        (b"a,a\n1,2\n", "got 'a' more than once"),
        (b'a,b\n"1,2\n', "cannot be read as csv: unexpected end of data"),
        (b'a,b\n"1"x,2\n', "cannot be read as csv"),
        (b"a,b\n\xff,2\n", "not utf-8"),
        (b"a,b\n" + b"x" * 200_000 + b",2\n", "field larger than field limit"),
    ],
)
def test_broken_csv_is_refused_by_name_and_reason(tmp_path, content, message):
    path = tmp_path / "t.csv"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        read_table(path)
    assert "t.csv" in str(error.value) and "\n" not in str(error.value)


def test_files_that_are_not_there_or_of_no_known_kind(tmp_path):
    with pytest.raises(ValueError, match="there is no such file"):
        read_table(tmp_path / "t.csv")
    with pytest.raises(ValueError, match=r"ends in .csv, .npz, .parquet, got '.xlsx'"):
        read_table(tmp_path / "t.xlsx")
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(ValueError, match="expected a file, got a folder"):
        read_table(tmp_path / "d.csv")
    with pytest.raises(ValueError, match=r"there is no column 'prise'. Did you mean 'price'\? Known: price, size"):
        Table("t", {"price": np.arange(2), "size": np.arange(2)}).column("prise")


def test_npz_arrays_are_columns_and_the_target_says_how_many_rows_there_are(tmp_path):
    path = tmp_path / "t.npz"
    np.savez(path, split=np.arange(3), X=np.arange(8).reshape(4, 2), one=np.ones((4, 1), np.float16), y=np.arange(4.0))
    table = read_table(path, ["y"])
    assert {k: (v.dtype.kind, v.tolist()) for k, v in table.columns.items()} == {
        "X.0": ("i", [0, 2, 4, 6]),
        "X.1": ("i", [1, 3, 5, 7]),
        "one": ("f", [1.0] * 4),
        "y": ("f", [0.0, 1.0, 2.0, 3.0]),
    }
    assert read_table(path, ["X.1"]).n == 4
    assert read_table(path).columns.keys() == {"split"}


def test_npz_kinds(tmp_path):
    path = tmp_path / "t.npz"
    big = np.array([2**63, 1], np.uint64)
    day = np.array(["2020-01-01", "NaT"], "M8[D]")
    np.savez(path, a=big, b=np.array(["x", ""]), c=np.array([b"y", b"NA"]), d=day, e=np.array([True, False]))
    columns = read_table(path).columns
    assert [columns[k].dtype.str[1:] for k in "abcde"] == ["f8", "O", "O", "M8[us]", "b1"]
    assert (columns["b"].tolist(), columns["c"].tolist()) == (["x", None], ["y", None])


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x": np.zeros((2, 3, 4))}, r"\(N,\) or \(N, D\) .* got 'x' of shape \(2, 3, 4\)"),
        ({"x": np.zeros(2, complex)}, "array 'x': expected numbers, text, booleans or dates, got complex128"),
        ({"x": np.array([b"\xff"])}, "expected text in utf-8"),
        ({"x": np.array([None, 1], object)}, "cannot be read as npz"),
        ({"x": np.float64(1.0)}, "leading axis of rows, got none"),
        ({"x": np.zeros((0, 2))}, "at least one row"),
        ({"x": np.zeros((2, 0))}, "at least one column"),
        ({"x": np.zeros((2, 2)), "x.0": np.zeros(2)}, "got 'x.0' more than once"),
    ],
)
def test_npz_that_is_not_a_table_is_refused(tmp_path, arrays, message):
    path = tmp_path / "t.npz"
    np.savez(path, **arrays)
    with pytest.raises(ValueError, match=message):
        read_table(path)


def test_an_npy_file_in_disguise(tmp_path):
    with open(tmp_path / "t.npz", "wb") as file:
        np.save(file, np.arange(3))
    with pytest.raises(ValueError, match="one array without a name"):
        read_table(tmp_path / "t.npz")


def test_parquet(tmp_path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    from decimal import Decimal

    path = tmp_path / "t.parquet"
    columns = {
        "i": arrow.array([1, 2, None]),
        "f": arrow.array([1.5, None, 2.5]),
        "b": arrow.array([True, False, True]),
        "m": arrow.array([True, None, True]),
        "s": arrow.array(["x", None, " y "]),
        "c": arrow.array(["u", "v", "u"]).dictionary_encode(),
        "d": arrow.array([date(2020, 1, 2), None, date(2020, 1, 3)]),
        "t": arrow.array([1_000_000_007, None, 0], arrow.timestamp("ns", tz="Europe/Zurich")),
        "z": arrow.array([Decimal("1.25"), None, Decimal("2.00")]),
        "n": arrow.nulls(3),
    }
    parquet.write_table(arrow.table(columns), path)
    loaded = read_table(path).columns
    np.testing.assert_array_equal(loaded["i"], [1, 2, np.nan])
    np.testing.assert_array_equal(loaded["z"], [1.25, np.nan, 2.0])
    np.testing.assert_array_equal(loaded["m"], [1.0, np.nan, 1.0])
    assert loaded["b"].dtype == bool
    assert (loaded["s"].tolist(), loaded["c"].tolist()) == (["x", None, "y"], ["u", "v", "u"])
    np.testing.assert_array_equal(loaded["d"], np.array(["2020-01-02", "NaT", "2020-01-03"], "M8[us]"))
    np.testing.assert_array_equal(loaded["t"], np.array(["1970-01-01T00:00:01", "NaT", "1970-01-01"], "M8[us]"))
    assert loaded["n"].tolist() == [None] * 3
    parquet.write_table(arrow.table({"l": [[1], [2]]}), path)
    with pytest.raises(ValueError, match="column 'l': expected numbers, text, booleans or dates, got list"):
        read_table(path)
    path.write_bytes(b"PAR1 and no more")
    with pytest.raises(ValueError, match="cannot be read as parquet"):
        read_table(path)


def test_parquet_without_pyarrow_says_what_to_install(tmp_path, monkeypatch):
    (tmp_path / "t.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ImportError, match=r'pip install "basinet\[files\]"'):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_what_is_written_is_read_back(tmp_path, ending):
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    columns = {"class": ["a, b", 'c"'], "p": np.array([1 / 3, 1e-300])}
    write_table(columns, tmp_path / f"t{ending}")
    back = read_table(tmp_path / f"t{ending}").columns
    assert back["class"].tolist() == columns["class"]
    np.testing.assert_allclose(numbers(back["p"], "p"), columns["p"], rtol=1e-8)
    with pytest.raises(ValueError, match=r"ends in .csv or .parquet, got '.txt'"):
        write_table(columns, tmp_path / "t.txt")


def test_csv_is_written_for_any_reader(tmp_path):
    write_table({"a": np.array([0.1]), "b,c": ["x"]}, tmp_path / "t", ".csv")
    with open(tmp_path / "t", newline="") as file:
        assert list(csv.reader(file)) == [["a", "b,c"], ["0.1", "x"]]


def test_text_that_a_spreadsheet_would_run_is_written_as_text(tmp_path):
    columns = {"class": ["=1+1", "@SUM(A1)", "-1", "+2", "-x", "plain"], "p_=1": np.arange(6) / 8}
    write_table(columns, tmp_path / "p.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["class", "'=1+1", "'@SUM(A1)", "-1", "+2", "'-x", "plain"]


def test_a_csv_is_written_in_pieces(tmp_path, monkeypatch):
    from basinet.tables import table as module

    monkeypatch.setattr(module, "_CELLS", 6)
    columns = {"a": np.arange(10), "b": [f"w{i}" for i in range(10)]}
    write_table(columns, tmp_path / "p.csv")
    lines = (tmp_path / "p.csv").read_text().splitlines()
    assert lines[1:] == [f"{i},w{i}" for i in range(10)]


def test_equal_names_among_very_many_columns_are_found(tmp_path):
    names = [f"c{i}" for i in range(20_000)]
    (tmp_path / "t.csv").write_text(",".join([*names, "c7"]) + "\n" + ",".join(["1"] * 20_001))
    with pytest.raises(ValueError, match="got 'c7' more than once"):
        read_table(tmp_path / "t.csv")
