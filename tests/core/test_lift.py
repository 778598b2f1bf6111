"""Lifting a function of one member over many."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from basinet.core.lift import compiled, lift
from basinet.core.noise import Noise


class Result(NamedTuple):
    loss: Tensor
    keep: Tensor | None
    note: str
    count: int


def test_a_lifted_function_equals_the_loop_and_keeps_its_structure():
    x, shared = torch.arange(6.0).reshape(3, 2), torch.tensor([10.0, 20.0])

    def one(x, shared):
        return Result(x @ shared, None, "text", 7), {"twice": 2 * x}

    result, extra = lift(one, in_dims=(0, None))(x, shared)
    assert isinstance(result, Result)
    assert result.keep is None and result.note == "text" and result.count == 7
    assert result.loss.tolist() == [20.0, 80.0, 140.0]
    assert torch.equal(extra["twice"], 2 * x)


def test_what_does_not_depend_on_the_member_is_repeated():
    assert lift(lambda x: torch.tensor(3.0))(torch.zeros(4)).tolist() == [3.0] * 4


def test_lifts_nest():
    x, y = torch.arange(3.0), torch.arange(2.0)
    table = lift(lambda a: lift(lambda b: a * 10 + b)(y))(x)
    assert table.tolist() == [[0, 1], [10, 11], [20, 21]]


def test_randomness_that_nobody_keyed_is_an_error():
    with pytest.raises(RuntimeError, match="randomness"):
        lift(lambda x: x + torch.randn(2))(torch.zeros(3, 2))


def test_keys_are_lifted_like_anything_else():
    keys = Noise.seed(0).spread(3)
    drawn = lift(lambda noise: noise.normal(torch.empty(2)))(keys)
    assert torch.equal(drawn[1], Noise(keys.key[1]).normal(torch.empty(2)))


class Kernel:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def step(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor + 1


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own
def test_one_function_is_compiled_for_any_number_of_kernels():
    made = [compiled(Kernel(i).step, whole=True) for i in range(10)]  # torch stops at eight of one code
    assert [f(torch.ones(2)).tolist() for f in made] == [[i + 1.0, i + 1.0] for i in range(10)]
