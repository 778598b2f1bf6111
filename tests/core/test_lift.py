"""Lifting a function of one member over many."""

import subprocess
import sys
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from basinet.core.lift import compiled, is_out_of_memory, lift, lift_or_loop
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
    kernels = [compiled(Kernel(i).step, whole=True) for i in range(10)]  # torch stops at eight of one code
    assert [f(torch.ones(2)).tolist() for f in kernels] == [[i + 1.0, i + 1.0] for i in range(10)]


class Calls:
    """A function of one member, and how often it was called vectorised and alone."""

    def __init__(self, function: Any) -> None:
        self.function, self.vectorised, self.alone = function, 0, 0

    def __call__(self, *args: Any) -> Any:
        inside = torch._C._functorch.maybe_current_level() is not None
        self.vectorised += inside
        self.alone += not inside
        return self.function(*args)


def branching(x: Tensor) -> Result:
    return Result(x.sum() if x.sum() > 0 else -x.sum(), None, "text", 7)


def test_what_can_be_vectorised_is_one_call():
    calls, x = Calls(lambda x, shared: (x @ shared, "text")), torch.arange(6.0).reshape(3, 2)
    products, note = lift_or_loop(calls, (0, None))(x, torch.ones(2))
    assert products.tolist() == [1.0, 5.0, 9.0] and note == "text" and (calls.vectorised, calls.alone) == (1, 0)


def test_what_cannot_be_vectorised_is_called_for_one_member_after_another_and_not_tried_again():
    x, calls = torch.tensor([[1.0, 2.0], [-1.0, -2.0], [3.0, -4.0]]), Calls(branching)
    all_members = lift_or_loop(calls)
    for _ in range(2):
        results = all_members(x)
        assert isinstance(results, Result) and results.loss.tolist() == [3.0, 3.0, 1.0]
        assert results.keep is None and results.note == "text" and results.count == 7
    assert (calls.vectorised, calls.alone) == (1, 6)


def test_what_members_share_is_given_to_each_of_them():
    shared = {"w": torch.tensor([2.0, 3.0])}
    outputs = lift_or_loop(lambda x, s: (branching(x).loss, s["w"] * x), (0, None))(torch.ones(3, 2), shared)
    assert outputs[0].tolist() == [2.0] * 3 and outputs[1].tolist() == [[2.0, 3.0]] * 3


@pytest.mark.parametrize("error", [TypeError("two arguments, got three"), ValueError("no"), KeyError("weight")])
def test_an_error_of_the_function_itself_is_raised(error):
    def wrong(x: Tensor) -> Tensor:
        raise error

    with pytest.raises(type(error)) as caught:
        lift_or_loop(wrong)(torch.ones(3, 2))
    assert caught.value is error


def test_a_call_with_too_few_arguments_is_a_type_error():
    with pytest.raises(TypeError, match="missing 1 required positional argument"):
        lift_or_loop(lambda x, y: x + y)(torch.ones(3, 2))


@pytest.mark.parametrize(
    "error",
    [torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes")],
)
def test_memory_that_runs_out_is_raised_and_not_taken_for_what_cannot_be_vectorised(error):
    full = True

    def one(x: Tensor) -> Tensor:
        if full:
            raise error
        return 2 * x

    calls = Calls(one)
    all_members = lift_or_loop(calls)
    with pytest.raises(RuntimeError) as caught:
        all_members(torch.ones(3, 2))
    assert is_out_of_memory(caught.value) and (calls.vectorised, calls.alone) == (1, 0)
    full = False
    assert torch.equal(all_members(torch.ones(3, 2)), 2 * torch.ones(3, 2))
    assert (calls.vectorised, calls.alone) == (2, 0)  # with memory it is vectorised as before


def test_randomness_that_nobody_keyed_is_an_error_there_too():
    with pytest.raises(RuntimeError, match="randomness"):
        lift_or_loop(lambda x: x + torch.randn(2))(torch.zeros(3, 2))


def test_warnings_of_torch_while_it_stacks_and_compiles_are_not_shown():
    """An operator without a batching rule, and the modules of the compiler, which torch imports at first use."""
    program = """
import torch
from basinet.core.lift import compiled, lift
rnn = torch.nn.LSTM(3, 2)
params = {n: p.detach().expand(2, *p.shape) for n, p in rnn.named_parameters()}
grad = torch.func.grad(lambda p: torch.func.functional_call(rnn, p, torch.ones(4, 1, 3))[0].sum())
lift(grad)(params)
compiled(lambda x: x + 1)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)
