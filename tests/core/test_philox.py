"""Philox in numpy, for one key: the words that tensors give, over the ends of its stretches and past 32 bits."""

from __future__ import annotations

import pytest
import torch

from basinet import Noise
from basinet.core.lift import lift
from basinet.core.philox import _STRETCH, MASK, blocks, philox


@pytest.mark.parametrize(("begin", "end"), [(0, 1), (3, 7), (_STRETCH - 2, 2 * _STRETCH + 3), (2**32 - 2, 2**32 + 2)])
def test_words_in_numpy_are_those_of_tensors(begin, end):
    key = (0xA4093822, 0x299F31D0)
    counter = torch.arange(begin, end)
    zero = torch.zeros_like(counter)
    expected = torch.stack(philox((counter & MASK, counter >> 32, zero, zero), key), -1)
    assert torch.equal(torch.from_numpy(blocks(begin, end, key)).long(), expected)


def test_asked_for_no_numbers_it_gives_none():
    assert blocks(5, 5, (1, 2)).shape == (0, 4)
    assert Noise.seed(0).normal(torch.empty(0)).shape == (0,)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_numbers_of_a_single_key_and_of_a_stack_are_the_same_bits(dtype):
    like = torch.empty(4001, dtype=dtype)
    keys = Noise.seed(3).spread(2).key
    for draw in (Noise.normal, Noise.uniform):
        stacked = lift(lambda key, draw=draw: draw(Noise(key), like, 7))(keys)
        assert torch.equal(stacked[1], draw(Noise(keys[1]), like, 7))
