"""The factors of the pull along a run."""

import math

import pytest
import torch

from basinet.repulsion.anneal import ANNEALS, anneal_weight, check_anneal


def factors(word: str, steps: int) -> list[float]:
    return [float(anneal_weight(word, torch.tensor(t), steps)) for t in range(steps)]


def test_they_follow_their_formulas():
    assert anneal_weight("none", torch.tensor(3), 10) == 1.0
    assert factors("linear", 8) == [0.25, 0.5, 0.75, 1, 1, 1, 1, 1]
    assert factors("tanh", 4) == pytest.approx([math.tanh((1.3 * x) ** 5) for x in (0.25, 0.5, 0.75, 1)])
    assert factors("cyclic", 20) == [0.5, 1, 1, 1] * 5


@pytest.mark.parametrize("word", ANNEALS)
@pytest.mark.parametrize("steps", [1, 3, 100])
def test_they_are_positive_at_most_one_and_end_close_to_one(word, steps):
    values = factors(word, steps)
    assert all(0 < x <= 1 for x in values) and values[-1] > 0.99


def test_an_unknown_word_is_refused():
    with pytest.raises(ValueError, match=r"unknown annealing 'linaer'. Did you mean 'linear'"):
        check_anneal("linaer")
