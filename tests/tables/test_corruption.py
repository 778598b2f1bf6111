"""Corruptions of rows: each does to the cells what it says, by as much as its severity says, and to nothing else."""

import numpy as np
import pytest
import torch

from basinet.tables import Rules, Table, fit_table
from basinet.tables.corruption import ROW_NAMES, SEVERITIES, RowCorruption


@pytest.fixture(scope="module")
def shops():
    """Two numbers, one of which has gaps, names and a date: an encoder and its inputs."""
    rng = np.random.default_rng(0)
    n = 3000
    sales = rng.normal(50, 9, n)
    sales[::10] = np.nan
    columns = {
        "area": rng.uniform(10, 90, n),
        "sales": sales,
        "town": rng.choice(np.array(["Ash", "Bow", "Cam"], object), n, p=[0.2, 0.5, 0.3]),
        "day": np.datetime64("2024-01-01", "us") + rng.integers(0, 500, n) * np.timedelta64(86_400_000_000, "us"),
        "y": rng.normal(size=n),
    }
    rules = Rules(missing="impute", split="random")
    encoder, (train, test) = fit_table(Table("shops", columns), "y", rules, (0.5, 0.5), say=lambda line: None)
    return encoder, train.inputs, test.inputs


def places(encoder):
    ends = np.cumsum([len(column.features) for column in encoder.columns])
    return {c.name: slice(int(e - len(c.features)), int(e)) for c, e in zip(encoder.columns, ends)}


def test_numbers_are_off_by_a_normal_error_and_names_and_dates_stay(shops):
    encoder, train, test = shops
    at = places(encoder)
    for severity, size in enumerate(SEVERITIES["noise"], 1):
        gap = RowCorruption.of(train, encoder.columns).corrupt(test, "noise", severity) - test
        off = gap[:, at["area"]] / train[:, at["area"]].std()
        assert off.std().item() == pytest.approx(size, rel=0.08)  # 1,500 rows: sd of an sd 1.8 %, z = 4
        assert abs(off.mean().item()) < 4 * size / 1500**0.5
        assert not gap[:, at["town"]].any() and not gap[:, at["day"]].any() and not gap[:, at["sales"].stop - 1].any()


def test_a_shift_moves_all_rows_of_a_column_alike(shops):
    encoder, train, test = shops
    gap = RowCorruption.of(train, encoder.columns).corrupt(test, "shift", 3) - test
    moved = gap[:, places(encoder)["area"]]
    assert torch.allclose(moved, moved[:1].expand_as(moved), atol=1e-5)
    assert abs(moved[0].item()) == pytest.approx(
        SEVERITIES["shift"][2] * train[:, 0].std(correction=0).item(), rel=1e-4
    )


def test_one_number_of_each_row_leaves_the_range_of_training(shops):
    encoder, train, test = shops
    low, high = train.amin(0), train.amax(0)
    numbers = [0, 1]
    for severity in (1, 5):
        corrupted = RowCorruption.of(train, encoder.columns).corrupt(test, "range", severity)
        outside = (corrupted < low) | (corrupted > high)
        inside_before = ~((test < low) | (test > high))
        assert bool(outside[:, numbers].any(1).all())
        changed = corrupted != test
        assert bool((changed.sum(1) <= 1).all()) and not changed[:, 2:].any()
        beyond = torch.where(corrupted > high, corrupted - high, low - corrupted)[outside & changed & inside_before]
        spans = (high - low)[numbers]
        size = SEVERITIES["range"][severity - 1]
        assert beyond.min() >= size * spans.min() * 0.999 and beyond.max() <= size * spans.max() * 1.001


def test_missing_cells_are_filled_and_flagged_as_those_of_files(shops):
    encoder, train, test = shops
    at = places(encoder)
    corrupted = RowCorruption.of(train, encoder.columns).corrupt(test, "missing", 5)
    missing = (corrupted != test)[:, at["area"]].any(1)
    assert missing.float().mean().item() == pytest.approx(0.5, abs=4 * 0.5 / 1500**0.5)
    assert torch.allclose(corrupted[missing, 0], train[:, 0].median(), atol=1e-6)
    town = corrupted[(corrupted != test)[:, at["town"]].any(1)][:, at["town"]]
    assert torch.equal(town, torch.tensor([[0.0, 1.0, 0.0]]).expand_as(town))  # Bow, the most frequent
    flag = at["sales"].stop - 1
    was_there = test[:, flag] == 0
    filled = corrupted[:, flag] == 1
    assert (filled & was_there).any() and torch.allclose(
        corrupted[filled & was_there, at["sales"].start], train[:, at["sales"].start].median(), atol=1e-6
    )


def test_swapped_cells_are_those_of_other_rows(shops):
    encoder, train, test = shops
    corrupted = RowCorruption.of(train, encoder.columns).corrupt(test, "swap", 5)
    for name, own in places(encoder).items():
        known = {tuple(row) for row in test[:, own].tolist()}
        assert {tuple(row) for row in corrupted[:, own].tolist()} <= known, name
    share = (corrupted[:, 0] != test[:, 0]).float().mean().item()
    assert share == pytest.approx(0.5, abs=4 * 0.5 / 1500**0.5)


@pytest.mark.parametrize("name", ROW_NAMES)
def test_corruptions_are_the_same_again_and_leave_what_they_are_given(shops, name):
    encoder, train, test = shops
    of, before = RowCorruption.of(train, encoder.columns), test.clone()
    first, again = of.corrupt(test, name, 4), of.corrupt(test, name, 4)
    assert torch.equal(first, again) and torch.equal(test, before) and first.dtype == test.dtype
    assert not torch.equal(first, of.corrupt(test, name, 4, seed=1))


def test_without_columns_inputs_with_more_than_two_values_are_numbers():
    x = torch.cat([torch.randn(200, 2), (torch.rand(200, 1) < 0.3).float()], 1)
    corrupted = RowCorruption.of(x).corrupt(x, "noise", 5)
    assert (corrupted != x)[:, :2].all() and not (corrupted != x)[:, 2].any()
    flags = (torch.rand(50, 2) < 0.5).float()
    assert torch.equal(RowCorruption.of(flags).corrupt(flags, "range", 3), flags)  # nothing has a range


def test_what_cannot_be_is_refused(shops):
    encoder, train, test = shops
    of = RowCorruption.of(train, encoder.columns)
    with pytest.raises(ValueError, match=r"corruption of rows, got 'nois'\. Did you mean"):
        of.corrupt(test, "nois", 1)
    with pytest.raises(ValueError, match="severity of 1, 2, 3, 4 or 5, got 6"):
        of.corrupt(test, "noise", 6)
    with pytest.raises(ValueError, match="rows of 11 inputs"):
        of.corrupt(test[:, :3], "noise", 1)
    with pytest.raises(ValueError, match="as rows"):
        RowCorruption.of(torch.zeros(3, 2, 2))
