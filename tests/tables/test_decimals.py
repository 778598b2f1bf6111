"""Numbers with commas: read where a file leaves no doubt, refused where it does, never silently names."""

from __future__ import annotations

import numpy as np
import pytest

from basinet.tables import Rules, fit_table, read_table
from basinet.tables.values import numbers


def file_of(tmp_path, lines):
    path = tmp_path / "t.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_decimal_commas_are_read_and_noted(tmp_path):
    lines = ["size;price;city", *(f"{i % 9},{i % 10}5;1,{i + 100};Bern" for i in range(30))]
    table = read_table(file_of(tmp_path, lines))
    np.testing.assert_allclose(
        numbers(table.columns["size"], "size"), [i % 9 + (i % 10) / 10 + 0.05 for i in range(30)]
    )
    assert numbers(table.columns["price"], "price")[0] == 1.1  # 1,100 alone would be in doubt
    assert table.columns["city"][0] == "Bern" and "(1,5 is 1.5) in 'size', 'price'" in table.notes[0]
    said = []
    encoder, _ = fit_table(table, "price", say=said.append)
    assert encoder.features == ("size",) and said[0] == table.notes[0]


def test_commas_in_doubt_are_refused_unless_they_are_names(tmp_path):
    lines = ["size;price", *(f"{i + 1},{100 + i};{i / 7}" for i in range(30))]
    table = read_table(file_of(tmp_path, lines))
    with pytest.raises(ValueError, match=r"column 'size': .* got '1,100' in row 1: is its comma a decimal one"):
        fit_table(table, "price", say=lambda line: None)
    twice = read_table(file_of(tmp_path, ["size;price", *(f"{i % 3 + 1},100;{i / 7}" for i in range(30))]))
    encoder, _ = fit_table(twice, "price", Rules(categories=("size",)), say=lambda line: None)
    assert encoder.features == ("size = 1,100", "size = 2,100", "size = 3,100")
    with pytest.raises(ValueError, match=r"target 'size': .* is its comma a decimal one"):
        fit_table(table, "size", say=lambda line: None)


def test_quoted_thousands_are_refused(tmp_path):
    lines = ["a,y", *(f'"{i + 1},234,567",{i / 7}' for i in range(30))]
    with pytest.raises(ValueError, match="between thousands"):
        fit_table(read_table(file_of(tmp_path, lines)), "y", say=lambda line: None)


def test_text_among_decimal_commas_is_found(tmp_path):
    lines = ["a;y", *(f"{i},5;{i / 7}" for i in range(29)), "n.v.;3"]
    with pytest.raises(ValueError, match=r"got 'n\.v\.' in row 30"):
        fit_table(read_table(file_of(tmp_path, lines)), "y", say=lambda line: None)


def test_lists_of_words_stay_text(tmp_path):
    lines = ["tags;y", *(f"{'a,b' if i % 2 else 'b,c'};{i / 7}" for i in range(30))]
    table = read_table(file_of(tmp_path, lines))
    assert table.columns["tags"][0] == "b,c" and table.notes == ()
