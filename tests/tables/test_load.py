"""From a file to splits: statistics of only the training rows, decisions, and what is refused."""

import csv
import logging
from datetime import date, timedelta

import numpy as np
import pytest
import torch

from basinet.data import Data
from basinet.pool import decode, encode
from basinet.tables import Encoder, Rules, Table, fit_table, load_table, read_table
from basinet.tables.targets import Classes, Real

N = 60
HEADS = ("id", "size", "city", "sold", "flat", "same", "price")


def rows(n=N):
    """Cells of a table with every kind of column."""
    random = np.random.default_rng(0)
    for i in range(n):
        size = random.uniform(30, 200)
        sold = date(2020, 1, 1) + timedelta(days=int(random.integers(1000)))
        city = ("Bern", "Basel", "Chur")[random.integers(3)]
        yield [f"H{i}", f"{size:.1f}", city, str(sold), "true" if i % 2 else "false", "x", f"{3000 * size:.0f}"]


def write(path, heads, cells):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(heads)
        writer.writerows(cells)
    return path


@pytest.fixture
def houses(tmp_path):
    return write(tmp_path / "houses.csv", HEADS, rows())


def table(**columns):
    arrays = {}
    for name, cells in columns.items():
        arrays[name] = np.empty(len(cells), object)
        arrays[name][:] = cells
    return Table("t.csv", arrays)


def quiet(line):
    pass


# What it makes


def test_a_file_becomes_splits_and_an_encoder(houses):
    said = []
    splits, encoder = load_table(houses, "price", say=said.append)
    assert (splits.name, splits.classes, splits.train.n, splits.val.n, splits.test.n) == ("houses", None, 36, 12, 12)
    assert splits.description == "60 rows of houses.csv, price (a number) from 4 columns (10 inputs)."
    assert splits.feature_names == encoder.features
    assert encoder.features[:4] == ("size", "city = Basel", "city = Bern", "city = Chur")
    assert encoder.unused == ("id", "same")
    assert [line.split(":")[0] for line in said] == [
        "column 'id' is left out",
        "column 'same' is left out",
        "'sold' has dates, and rows are split at random",
    ]
    assert splits.train.inputs.shape == (36, 10) and splits.train.inputs.dtype == torch.float32
    assert splits.train.targets.shape == (36, 1)
    assert (splits.target_mean, splits.target_sd) == (encoder.target.mean, encoder.target.sd)


def test_statistics_are_those_of_the_training_rows(houses):
    splits, encoder = load_table(houses, "price", seed=3, say=quiet)
    size = np.array([float(row[1]) for row in rows()])
    price = np.array([float(row[6]) for row in rows()])
    parts = Data(torch.arange(N), torch.zeros(N)).split(0.6, 0.2, 0.2, seed=3)
    train = parts[0].inputs.numpy()
    assert encoder.columns[0].mean == pytest.approx(size[train].mean(), rel=1e-12)
    assert encoder.columns[0].sd == pytest.approx(size[train].std(), rel=1e-12)
    assert (encoder.target.mean, encoder.target.sd) == pytest.approx((price[train].mean(), price[train].std()))
    for part, data in zip(parts, (splits.train, splits.val, splits.test)):
        index = part.inputs.numpy()
        z = (size[index] - size[train].mean()) / size[train].std()
        np.testing.assert_allclose(data.inputs[:, 0], z, rtol=1e-5, atol=1e-6)
        back = encoder.target.back(data.targets)
        np.testing.assert_allclose(back, price[index], rtol=1e-5)
    assert splits.train.targets.mean().abs() < 1e-6 < splits.test.targets.mean().abs()


def test_notes_go_to_the_log_by_default(houses, caplog):
    with caplog.at_level(logging.WARNING, "basinet"):
        load_table(houses, "price", Rules(split="random"))
    assert ["'id'" in r.message or "'same'" in r.message for r in caplog.records] == [True, True]


def test_csv_npz_and_parquet_make_the_same_data(houses, tmp_path):
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    cells = list(zip(*rows()))
    typed = {
        "size": np.array(cells[1], float),
        "city": np.array(cells[2]),
        "sold": np.array(cells[3], "M8[D]"),
        "flat": np.array(cells[4]) == "true",
        "price": np.array(cells[6], float),
    }
    np.savez(tmp_path / "houses.npz", **typed)
    parquet.write_table(arrow.table(typed), tmp_path / "houses.parquet")
    expected, encoder = load_table(houses, "price", say=quiet)
    for name in ("houses.npz", "houses.parquet"):
        splits, _ = load_table(tmp_path / name, "price")
        assert splits.train.fingerprint() == expected.train.fingerprint()
        again = encoder.data(read_table(tmp_path / name, ["price"]))
        assert again.fingerprint() == encoder.data(read_table(houses)).fingerprint()


def test_the_encoder_is_saved_as_json_and_gives_the_same_bits(houses):
    _, encoder = load_table(houses, "price", Rules(missing="impute", unseen="other"), say=quiet)
    tensors = {}
    again = decode(encode(encoder, tensors), tensors)
    assert isinstance(again, Encoder) and again == encoder and not tensors
    assert torch.equal(again.inputs(read_table(houses)), encoder.inputs(read_table(houses)))


def test_missing_cells_are_refused_by_name_and_count_or_imputed(tmp_path):
    cells = list(rows())
    cells[3][1] = cells[5][1] = "NA"
    cells[7][2] = ""
    path = write(tmp_path / "t.csv", HEADS, cells)
    with pytest.raises(ValueError, match=r"missing ones in 'size' \(2\), 'city' \(1\); .*--missing impute"):
        load_table(path, "price", say=quiet)
    splits, encoder = load_table(path, "price", Rules(missing="impute"), say=quiet)
    assert splits.train.inputs.isfinite().all()
    assert encoder.columns[0].fill is not None
    cells[0][6] = "?"
    path = write(tmp_path / "t.csv", HEADS, cells)
    with pytest.raises(
        ValueError, match="target 'price': expected a target in every row, got 1 missing, the first in row 1"
    ):
        load_table(path, "price", Rules(missing="impute"), say=quiet)


def test_columns_are_kept_dropped_or_made_categories_as_asked():
    sheet = table(n=[str(i) for i in range(20)], k=[str(i % 3) for i in range(20)], y=[str(i * i) for i in range(20)])
    encoder, _ = fit_table(sheet, "y", Rules(keep=("n",), categories=("k",)), say=quiet)
    assert encoder.features == ("n", "k = 0", "k = 1", "k = 2")
    encoder, _ = fit_table(sheet, "y", Rules(drop=("n",)), say=quiet)
    assert (encoder.features, encoder.unused) == (("k",), ("n",))
    with pytest.raises(ValueError, match=r"from, got none: column 'n' is left out: its whole numbers increase"):
        fit_table(sheet, "y", Rules(drop=("k",)), say=quiet)
    with pytest.raises(ValueError, match="there is no column 'm'"):
        fit_table(sheet, "y", Rules(keep=("m",)), say=quiet)
    with pytest.raises(ValueError, match="got the target 'y' among them"):
        fit_table(sheet, "y", Rules(drop=("y",)), say=quiet)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        (["x"] * 10, "every row has 'x'"),
        ([None] * 10, "it has no values"),
        ([f"u{i}" for i in range(10)], "every row has a value of its own"),
        ([str(i) for i in range(5, 15)], "its whole numbers increase"),
        ([str(i / 2) for i in range(10)], ""),
        ([f"2020-01-{i + 1:02}" for i in range(10)], ""),
        ([str(-i) for i in range(10)], ""),
    ],
)
def test_columns_without_information_are_left_out_with_a_note(cells, reason):
    said = []
    sheet = table(a=cells, b=[str(i % 4) for i in range(10)], y=[str(i / 3) for i in range(10)])
    encoder, _ = fit_table(sheet, "y", Rules(split="random"), say=said.append)
    assert [reason in line for line in said] == ([True] if reason else [])
    assert encoder.unused == (("a",) if reason else ())


# Classes or numbers


@pytest.mark.parametrize(
    ("cells", "kind", "expected"),
    [
        (["no", "yes"] * 10, None, ("no", "yes")),
        (["TRUE", "false"] * 10, None, ("false", "true")),
        ([str(i % 12) for i in range(24)], None, tuple(map(str, range(12)))),  # in the order of numbers
        ([str(i % 12) for i in range(24)], "real", None),
        ([str(i) for i in range(24)], None, None),  # too many for classes
        (["1.5", "2.5"] * 10, None, None),
        (["1.5", "2.5"] * 10, "classes", ("1.5", "2.5")),
        (["01", "02"] * 10, None, ("01", "02")),
        (["1", "x"] * 10, "classes", ("1", "x")),
        (["true", "false"] * 10, "real", None),
    ],
)
def test_the_target_decides_what_it_is_by_default(cells, kind, expected):
    sheet = table(a=[str(i % 7) for i in range(len(cells))], y=cells)
    encoder, parts = fit_table(sheet, "y", Rules(kind=kind))
    assert encoder.class_names == expected
    assert isinstance(encoder.target, Real if expected is None else Classes)
    assert sum(part.n for part in parts) == len(cells)


@pytest.mark.parametrize(
    ("cells", "kind", "message"),
    [
        (
            ["1", "2", "x"] * 5,
            None,
            r"only names or only numbers \(10 of 15 values are numbers; .*got 'x' in row 3, and 4",
        ),
        (["a", "b"] * 5, "real", "expected numbers .*got 'a' in row 1"),
        (["a"] * 10, None, "expected at least two classes, got only 'a'"),
        (["3"] * 10, None, "expected values that differ, got 3 in every row"),
        (["1", "inf"] * 5, None, "expected finite numbers, got 'inf' in row 2"),
        ([f"u{i}" for i in range(10)], None, "two rows per class, got 10 classes in 10 rows; is it an identifier"),
        ([f"2020-01-{i + 1:02}" for i in range(10)], None, "expected classes or numbers, got dates"),
    ],
)
def test_targets_that_cannot_be_learned_are_refused(cells, kind, message):
    sheet = table(a=[str(i % 3) for i in range(len(cells))], y=cells)
    with pytest.raises(ValueError, match=f"t.csv: target 'y': .*{message}"):
        fit_table(sheet, "y", Rules(kind=kind))


def test_a_missing_target_column_says_which_there_are(houses):
    with pytest.raises(
        ValueError, match=r"there is no column 'prise'. Did you mean 'price'.*Known: city, flat, id, price"
    ):
        load_table(houses, "prise")


def test_a_typing_error_in_a_column_of_numbers_is_found():
    sheet = table(a=[str(i % 7) for i in range(29)] + ["7o"], y=[str(i / 2) for i in range(30)])
    with pytest.raises(ValueError, match=r"column 'a': expected numbers, as most are \(.*\), got '7o' in row 30"):
        fit_table(sheet, "y")
    assert len(fit_table(sheet, "y", Rules(categories=("a",)))[0].features) == 8


def test_ten_rows_and_fewer():
    def of_rows(n):
        return table(a=[str(i / 3) for i in range(n)], y=[str(i * i / 2) for i in range(n)])

    assert [part.n for part in fit_table(of_rows(10), "y")[1]] == [6, 2, 2]
    assert [part.n for part in fit_table(of_rows(5), "y")[1]] == [3, 1, 1]
    with pytest.raises(ValueError, match=r"expected at least 5 rows .* got 4"):
        fit_table(of_rows(4), "y")


def test_ten_thousand_classes_and_too_many_categories():
    names = [f"c{i % 10_000}" for i in range(30_000)]
    encoder, parts = fit_table(table(a=[str(i % 7) for i in range(30_000)], y=names), "y")
    assert encoder.target.outputs == 10_000
    assert [part.n for part in parts] == [18_000, 6_000, 6_000]
    assert parts[0].targets.max() < 10_000
    with pytest.raises(
        ValueError, match=r"column 'a': expected at most 1,000 different values.*got 10,000; .*--drop a"
    ):
        fit_table(table(a=names, y=[str(i % 7) for i in range(30_000)]), "y")


def test_rules_refuse_what_they_do_not_know():
    with pytest.raises(ValueError, match="expected missing among refuse, impute, got 'drop'"):
        Rules(missing="drop")
    with pytest.raises(ValueError, match="got 'a' as both"):
        Rules(keep=("a",), drop=("a",))


# A file that changes between fit and predict


def test_order_does_not_matter_and_new_columns_are_ignored(houses):
    _, encoder = load_table(houses, "price", say=quiet)
    sheet = read_table(houses)
    turned = Table("new.csv", {"extra": sheet.columns["id"], **dict(reversed(sheet.columns.items()))})
    assert torch.equal(encoder.inputs(turned), encoder.inputs(sheet))
    assert encoder.strangers(turned) == ("extra",)


def test_what_is_not_as_in_training_is_named(houses):
    _, encoder = load_table(houses, "price", say=quiet)
    columns = read_table(houses).columns
    fewer = {name: columns[name] for name in ("id", "size", "sold")}
    with pytest.raises(ValueError, match=r"new.csv: .* got none named 'city', 'flat'; there are 'id', 'size', 'sold'"):
        encoder.inputs(Table("new.csv", fewer))
    with pytest.raises(ValueError, match=r"new.csv: column 'size': expected numbers, got 'Bern' in row"):
        encoder.inputs(Table("new.csv", columns | {"size": columns["city"]}))
    with pytest.raises(ValueError, match="there is no column 'price'"):
        encoder.targets(Table("new.csv", fewer))
    other = columns["city"].copy()
    other[4] = "Genf"
    with pytest.raises(ValueError, match=r"column 'city': .*known: 'Basel', 'Bern', 'Chur'.*got 'Genf' in row 5"):
        encoder.inputs(Table("new.csv", columns | {"city": other}))
    _, lenient = load_table(houses, "price", Rules(unseen="other"), say=quiet)
    assert lenient.inputs(Table("new.csv", columns | {"city": other})).shape == (N, 11)


def test_a_typing_error_does_not_make_distinct_numbers_an_identifier():
    sheet = table(a=[str(i / 7) for i in range(29)] + ["4,1"], y=[str(i / 2) for i in range(30)])
    with pytest.raises(ValueError, match=r"expected numbers, as most are .*got '4,1' in row 30"):
        fit_table(sheet, "y", say=quiet)
