"""The largest number that is accepted: between the last yes and the no behind it, with the range widened both ways."""

from __future__ import annotations

import math

import pytest

from basinet.core.largest import largest


@pytest.mark.parametrize("end", [3.3e-3, 0.02, 0.71])
@pytest.mark.parametrize("iterations", [1, 5, 12])
def test_the_end_of_what_is_accepted_is_found_from_below(end, iterations):
    search = largest(lambda x: -x, 1e-3, 1.0, iterations, -end)
    assert 0 <= math.log10(end / search.best) <= 0.5 ** (iterations + 1) + 1e-12
    assert search.edge is None and not search.widened and search.values[search.best] >= -end


def test_a_range_that_is_accepted_or_refused_as_a_whole_is_widened():
    up = largest(lambda x: -x, 1e-4, 1e-2, 12, -0.5)
    assert math.isclose(up.best, 0.5, rel_tol=1e-3) and up.widened and up.edge is None
    down = largest(lambda x: -x, 1e-2, 1.0, 12, -5e-4)
    assert math.isclose(down.best, 5e-4, rel_tol=1e-3) and down.widened and down.edge is None


def test_where_all_or_none_is_accepted_the_edge_is_named():
    every = largest(lambda x: 1.0, 0.1, 1.0, 3, 0.0)
    assert every.edge == "high" and math.isclose(every.best, 1000.0)
    none = largest(lambda x: -1.0, 0.1, 1.0, 3, 0.0)
    assert none.edge == "low" and math.isclose(none.best, 1e-4) and none.values[none.best] < 0.0


def test_a_function_that_rises_before_it_falls_counts_beyond_its_top():
    search = largest(lambda x: x * (1 - x), 1e-3, 10.0, 12, 0.0)
    assert math.isclose(search.best, 1.0, rel_tol=1e-3)


def test_ranges_and_iterations_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"the smaller first, got 1\.0 and 0\.1"):
        largest(lambda x: x, 1.0, 0.1, 3, 0.0)
    with pytest.raises(ValueError, match="at least 1 iteration, got 0"):
        largest(lambda x: x, 0.1, 1.0, 0, 0.0)
