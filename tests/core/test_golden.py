"""Golden section: the maximum, to the accuracy that is stated; ends that are moved, and those that are not."""

from __future__ import annotations

import math

import pytest

from basinet.core.golden import RATIO, golden_section


def hill(top: float):
    return lambda x: -((math.log(x) - math.log(top)) ** 2)


@pytest.mark.parametrize("top", [2e-3, 0.03, 0.5])
def test_it_finds_a_maximum_to_the_stated_accuracy(top):
    for iterations in (1, 5, 10, 30):
        search = golden_section(hill(top), 1e-3, 1.0, iterations)
        assert abs(math.log10(search.best / top)) <= RATIO**iterations
        assert len(search.values) <= 7 + 1 + iterations  # the grid, and one evaluation each
        assert search.edge is None and not search.widened


@pytest.mark.parametrize("top", [3e-5, 1e-3, 40.0, 3.0])
def test_an_end_is_moved_until_the_maximum_is_inside(top):
    search = golden_section(hill(top), 1e-3, 1.0, 20)
    assert math.isclose(search.best, top, rel_tol=1e-3)
    assert search.edge is None and search.widened


def test_the_highest_of_two_maxima_is_found():
    def two(x: float) -> float:
        return math.exp(hill(2e-3)(x)) + 1.5 * math.exp(hill(0.3)(x))

    assert math.isclose(golden_section(two, 1e-3, 1.0, 20).best, 0.3, rel_tol=0.02)


def test_an_end_that_is_never_enough_is_reported():
    search = golden_section(math.log, 1.0, 10.0, 12, widen=2)
    assert search.edge == "high" and search.widened and math.isclose(search.best, 1000)
    search = golden_section(lambda x: -x, 1.0, 10.0, 12, widen=2)
    assert search.edge == "low" and search.widened and math.isclose(search.best, 0.01)


def test_the_lower_end_stays_where_zero_is_better():
    search = golden_section(lambda x: -x, 1.0, 10.0, 12, at_zero=0.0)
    assert search.edge == "low" and not search.widened
    assert golden_section(lambda x: -x, 1.0, 10.0, 12, at_zero=-2.0).widened


def test_wrong_ranges_are_refused():
    for low, high in ((0.0, 1.0), (2.0, 1.0), (1.0, math.inf)):
        with pytest.raises(ValueError, match="two positive numbers, the smaller first"):
            golden_section(math.log, low, high, 10)
    with pytest.raises(ValueError, match="at least 1 iteration"):
        golden_section(math.log, 1.0, 2.0, 0)
