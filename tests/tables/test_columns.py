"""Columns as inputs: against their formulas, and what they refuse."""

import math

import numpy as np
import pytest

from basinet.pool import decode, encode
from basinet.tables.columns import Category, Date, Number, moments

NAN = np.nan


def text(*cells):
    array = np.empty(len(cells), object)
    array[:] = cells
    return array


def test_numbers_are_standardised_by_what_they_were_fitted_to():
    fitted = Number.fit("x", np.array([1.0, 3.0, 5.0]), "x", fill=False)
    assert (fitted.mean, fitted.sd, fitted.fill, fitted.flagged) == (3.0, pytest.approx(math.sqrt(8 / 3)), None, False)
    np.testing.assert_allclose(fitted.encode(text("3", "7"), "x"), [[0.0], [4 / math.sqrt(8 / 3)]])
    with pytest.raises(ValueError, match=r"^x: 1 missing, the first in row 2; .*--missing impute"):
        fitted.encode(np.array([1.0, NAN]), "x")
    with pytest.raises(ValueError, match="x: expected numbers, got 'big' in row 1"):
        fitted.encode(text("big"), "x")


def test_missing_numbers_become_the_median_and_say_so():
    fitted = Number.fit("x", np.array([1.0, NAN, 2.0, 9.0]), "x", fill=True)
    assert (fitted.fill, fitted.mean) == (2.0, 4.0)
    assert fitted.features == ("x", "x missing")
    np.testing.assert_allclose(fitted.encode(np.array([NAN, 4.0]), "x"), [[(2 - 4) / fitted.sd, 1], [0, 0]])
    whole = Number.fit("x", np.array([1.0, 2.0]), "x", fill=True)  # nothing missing in training: filled, not flagged
    np.testing.assert_allclose(whole.encode(np.array([NAN]), "x"), [[0.0]])


@pytest.mark.parametrize("value", [0.0, 0.1, 1e300, -1e-300])
def test_a_constant_is_only_centred(value):
    assert moments(np.full(7, value), "x") == (pytest.approx(value), 1.0)


@pytest.mark.parametrize("scale", [1e-200, 1.0, 1e200])
def test_moments_of_very_large_and_small_numbers(scale):
    x = np.array([1.0, 2.0, 6.0])
    mean, sd = moments(scale * x, "x")
    assert (mean / scale, sd / scale) == (pytest.approx(3.0), pytest.approx(x.std()))


def test_a_number_far_from_training_is_refused():
    fitted = Number.fit("x", np.array([0.0, 1.0]), "x", fill=False)
    with pytest.raises(ValueError, match=r"near those .* sd 0.5; leave such rows out, .*\), got 1e\+40 in row 1"):
        fitted.encode(np.array([1e40]), "x")


def test_categories_have_an_input_each():
    values = text("b", "a", "b", "c")
    fitted = Category.fit("x", values, np.array([0, 1, 2]), "x", fill=False, other=False)
    assert fitted.values == ("a", "b", "c")  # c is in the file, though not among the training rows
    assert fitted.features == ("x = a", "x = b", "x = c")
    assert fitted.encode(text("c", "a"), "x").tolist() == [[0, 0, 1], [1, 0, 0]]
    with pytest.raises(
        ValueError, match=r"^col: .*known: 'a', 'b', 'c'; .*--unseen other\), got 'd' in row 2, and 1 more"
    ):
        fitted.encode(text("a", "d", "e"), "col")
    with pytest.raises(ValueError, match="1 missing, the first in row 1"):
        fitted.encode(text(None), "col")


def test_other_values_share_an_input_that_was_trained():
    values = text("a", "a", "b", "c", "c")
    fitted = Category.fit("x", values, np.array([0, 1, 2]), "x", fill=False, other=True)
    assert fitted.features == ("x = a", "x = other")  # b is there once, c never
    assert fitted.encode(text("a", "b", "z"), "x").tolist() == [[1, 0], [0, 1], [0, 1]]


def test_missing_categories_become_the_most_frequent_and_say_so():
    values = text("b", None, "a", "b")
    fitted = Category.fit("x", values, np.arange(4), "x", fill=True, other=False)
    assert fitted.fill == "b"
    assert fitted.encode(text(None, "a"), "x").tolist() == [[0, 1, 1], [1, 0, 0]]
    tied = Category.fit("x", text("b", "a"), np.arange(2), "x", fill=True, other=False)
    assert tied.fill == "a"  # the first of the alphabet


def test_numbers_as_categories_are_the_same_from_text_and_from_numbers():
    fitted = Category.fit("x", text("1", "2"), np.arange(2), "x", fill=False, other=False)
    assert fitted.encode(np.array([2.0, 1.0]), "x").tolist() == [[0, 1], [1, 0]]
    assert fitted.encode(text("2.0", "1"), "x").tolist() == [[0, 1], [1, 0]]


def test_dates_are_years_and_places_on_two_circles():
    days = np.array(["2021-01-01", "2021-07-02T12", "2024-12-31"], "M8[us]")  # noon of July 2 is half of 365 days
    fitted = Date.fit("d", days[[0, 2]], "d", fill=False)
    assert not fitted.times
    assert fitted.features == (
        "d: years",
        "d: sine of year",
        "d: cosine of year",
        "d: sine of week",
        "d: cosine of week",
    )
    x = fitted.encode(days, "d")
    years = [2021.0, 2021.5, 2024 + 365 / 366]
    mean, sd = np.mean(years[::2]), np.std(years[::2])
    np.testing.assert_allclose(x[:, 0], (np.array(years) - mean) / sd, rtol=1e-9)
    np.testing.assert_allclose(x[:2, 1:3], [[0, 1], [0, -1]], atol=1e-12)
    friday = 2 * math.pi * 4 / 7  # 2021 began on a Friday, and so was July 2
    np.testing.assert_allclose(x[:2, 3:], [[math.sin(friday), math.cos(friday)]] * 2, atol=1e-12)


def test_times_of_day_are_a_third_circle_where_training_had_them():
    fitted = Date.fit("d", np.array(["2021-01-01T06", "2021-01-02"], "M8[us]"), "d", fill=True)
    assert fitted.features[5:] == ("d: sine of day", "d: cosine of day")
    x = fitted.encode(text("2022-05-05T06:00", "2022-05-05 18:00", "1969-12-31T12:00", None), "d")
    np.testing.assert_allclose(x[:, 5:], [[1, 0], [-1, 0], [0, -1], [0, 1]], atol=1e-12)


def test_missing_dates_become_the_median():
    days = text("2020-01-01", None, "2020-01-03", "2030-01-01")
    fitted = Date.fit("d", days, "d", fill=True)
    x = fitted.encode(text(None, "2020-01-03"), "d")
    np.testing.assert_array_equal(x[0, :-1], x[1, :-1])
    assert x[:, -1].tolist() == [1, 0]
    with pytest.raises(ValueError, match="1 missing"):
        Date.fit("d", days[2:], "d", fill=False).encode(days, "d")


@pytest.mark.parametrize(
    "fit",
    [
        lambda: Number.fit("x", np.array([NAN]), "here", fill=True),
        lambda: Category.fit("x", text(None, "a"), np.array([0]), "here", fill=True, other=False),
        lambda: Date.fit("x", np.array(["NaT"], "M8[us]"), "here", fill=True),
    ],
)
def test_a_column_without_values_in_training_is_refused(fit):
    with pytest.raises(ValueError, match="here: expected values in the training rows, got none"):
        fit()


def test_columns_are_saved_to_the_last_bit():
    days = np.array(["2021-01-01T06", "2021-01-02"], "M8[us]")
    columns = [
        Number.fit("x", np.array([0.1, 0.2, NAN]), "x", fill=True),
        Category.fit("c", text("a", None), np.arange(2), "c", fill=True, other=True),
        Date.fit("d", days, "d", fill=True),
    ]
    tensors = {}
    assert decode(encode(columns, tensors), tensors) == columns
    assert not tensors  # JSON alone


def test_cells_come_back_as_they_were_in_the_file():
    numbers = text("91.5", "-0.25", "0", "1992", None)
    number = Number.fit("x", numbers, "x", fill=True)
    assert number.decode(number.encode(numbers, "x").astype(np.float32)) == ["91.5", "-0.25", "0", "1992", ""]
    names = text("b", "a", "b", "c", None)
    category = Category.fit("c", names, np.arange(5), "c", fill=True, other=True)
    assert category.decode(category.encode(names, "c")) == ["b", "other", "b", "other", ""]
    rng = np.random.default_rng(0)
    days = np.datetime64("1998-12-31") + np.array([0, 1, 366, 426, *rng.integers(0, 9000, 40)])
    date = Date.fit("d", days, "d", fill=False)
    assert date.decode(date.encode(days, "d").astype(np.float32)) == [str(day) for day in days]
    minutes = np.datetime64("2023-12-31T23:59") + np.array([0, 1, 500, 777])
    date = Date.fit("d", minutes, "d", fill=False)
    assert date.decode(date.encode(minutes, "d")) == [str(minute).replace("T", " ") for minute in minutes]
