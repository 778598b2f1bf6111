"""Equal mass at K points, drawn in strata."""

from collections import Counter

import pytest
import torch
from scipy import stats

from basinet.core.lift import lift
from basinet.core.noise import Noise
from basinet.families import Empirical

KEY = Noise.seed(0)


def numbered(count: int) -> Empirical:
    numbers = torch.arange(count)
    return Empirical({"a": numbers.double().unsqueeze(1).expand(count, 2)}, {"n": numbers}, count)


@pytest.mark.parametrize("count", [1, 2, 7])
def test_each_k_draws_visit_every_point_once_and_any_prefix_is_balanced(count):
    drawn = [int(numbered(count).draw(KEY, s).buffers["n"]) for s in range(4 * count)]
    for block in range(4):
        assert sorted(drawn[block * count : (block + 1) * count]) == list(range(count))
    for end in range(1, 4 * count):
        visits = Counter(drawn[:end])
        assert max(visits.values()) - min(visits.get(k, 0) for k in range(count)) <= 1


def test_the_order_changes_from_block_to_block_and_with_the_key():
    points = numbered(20)
    first, second = ([int(points.draw(KEY, s).buffers["n"]) for s in range(b, b + 20)] for b in (0, 20))
    other = [int(points.draw(KEY.split("other"), s).buffers["n"]) for s in range(20)]
    assert first != second and first != other and first != list(range(20))


def test_params_and_buffers_of_a_draw_belong_together():
    points = numbered(7)
    for s in range(14):
        point = points.draw(KEY, s)
        assert point.params["a"].tolist() == [float(point.buffers["n"])] * 2
    point = points.sample(KEY)
    assert point.params["a"].tolist() == [float(point.buffers["n"])] * 2


def test_single_draws_are_uniform_over_points():
    points, n = numbered(7), 7000
    drawn = lift(lambda key: points.sample(Noise(key)).buffers["n"])(KEY.spread(n).key)
    assert stats.chisquare(drawn.bincount(minlength=7).double().numpy()).pvalue > 1e-4
    first = lift(lambda key: points.draw(Noise(key), 0).buffers["n"])(KEY.split("first").spread(n).key)
    assert stats.chisquare(first.bincount(minlength=7).double().numpy()).pvalue > 1e-4


def test_the_mean_averages_real_numbers_and_keeps_counters():
    mean = numbered(4).mean()
    assert mean.params["a"].tolist() == [1.5, 1.5]
    assert int(mean.buffers["n"]) == 0
