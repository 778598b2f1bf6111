"""`where=` picks parameters by patterns of their names, and says what there is when nothing matches."""

from __future__ import annotations

import pytest
import torch

from basinet.core.where import select

PARAMS = {
    n: torch.zeros(1) for n in ("conv1.weight", "layer1.conv.weight", "layer1.bn.bias", "head.weight", "head.bias")
}


def test_patterns_pick_in_the_order_of_the_parameters():
    assert select(PARAMS, None) == tuple(PARAMS)
    assert select(PARAMS, "head.*") == ("head.weight", "head.bias")
    assert select(PARAMS, ("head.bias", "conv1.weight")) == ("conv1.weight", "head.bias")
    assert select(PARAMS, "*conv*.weight") == ("conv1.weight", "layer1.conv.weight")


def test_an_exclamation_mark_leaves_out():
    assert select(PARAMS, ("*.weight", "!layer?.*")) == ("conv1.weight", "head.weight")
    assert select(PARAMS, "!*.bias") == ("conv1.weight", "layer1.conv.weight", "head.weight")


def test_a_pattern_that_matches_nothing_names_the_nearest():
    with pytest.raises(ValueError, match=r"no parameter matches 'head\.weigth'.*head\.weight"):
        select(PARAMS, "head.weigth")
    with pytest.raises(ValueError, match=r"no parameter matches 'tail\.\*'.*There are conv1\.weight, layer1"):
        select(PARAMS, ("head.*", "!tail.*"))
    with pytest.raises(ValueError, match="leaves no parameter"):
        select(PARAMS, ("head.*", "!head.*"))


def test_of_many_names_only_the_nearest_are_listed():
    many = {f"block{i}.conv.weight": 0 for i in range(200)} | {"classifier.weight": 0, "classifier.bias": 0}
    with pytest.raises(ValueError, match=r"Did you mean 'classifier\.weight' or 'classifier\.bias'") as error:
        select(many, "clasifier.weight")
    assert "(202 in all)" in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("where", [(), 3, lambda name: True, ("head.*", 3)])
def test_what_is_not_a_pattern_is_refused(where):
    with pytest.raises(ValueError, match=r"expected where as a pattern of names .* There are conv1\.weight"):
        select(PARAMS, where)
