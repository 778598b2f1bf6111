"""A grid goes on past its upper end where a function still falls, and no further."""

from __future__ import annotations

import math

import pytest

from basinet.core.grid import END, chosen_of, tried_on

GRID = [0.01, 0.1, 1.0, 10.0, 100.0]


@pytest.mark.parametrize("lowest", [1.0, 3e4, 4e8])
def test_the_minimum_is_found_within_the_grid_and_beyond_its_end(lowest):
    tried = tried_on(lambda ms: {m: (math.log(m) - math.log(lowest)) ** 2 for m in ms}, GRID)
    assert abs(math.log10(chosen_of(tried) / lowest)) <= 0.5 and list(tried) == sorted(tried)
    assert len(tried) == 5 or lowest != 1.0


def test_it_ends_where_nothing_is_gained_and_at_the_end_of_all():
    flat = tried_on(lambda ms: {m: 1 / m if m < 50 else 0.0 for m in ms}, GRID)
    assert max(flat) == pytest.approx(1e4)  # one look beyond the end, which gained nothing
    falling = tried_on(lambda ms: {m: -math.log(m) for m in ms}, GRID)
    assert max(falling) == pytest.approx(END)


def test_factors_without_a_value_are_left_out():
    assert tried_on(lambda ms: {}, GRID) == {}
    assert min(tried_on(lambda ms: {m: m for m in ms if m >= 0.1}, GRID)) == 0.1


def test_the_largest_of_those_as_good_as_the_best_is_chosen():
    assert chosen_of({0.1: 2.0, 1.0: 1.0, 10.0: 1.0 + 1e-6, 100.0: 1.1}) == 10.0
