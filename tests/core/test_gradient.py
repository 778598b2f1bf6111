"""The gradient is the same by itself, under vmap and beside torch.func, and leaves no graph behind."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from basinet.core import gradient as module
from basinet.core.gradient import gradient
from basinet.core.lift import lift
from basinet.core.tree import Params

G = torch.Generator().manual_seed(0)
PARAMS = {n: torch.randn(3, 2, dtype=torch.float64, generator=G) for n in ("a", "b", "unused")}


def loss(params: Params) -> tuple[Tensor, Params]:
    value = (params["a"] * params["b"].exp()).sum()
    return value, {"seen": 2 * params["a"], "count": torch.ones((), dtype=torch.long)}


def close(found: object, expected: object) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-14, atol=0.0)  # a few roundings


def test_it_is_the_closed_form():
    grads, value, rest = gradient(loss, PARAMS)
    a, b = PARAMS["a"], PARAMS["b"]
    close(grads, {"a": b.exp(), "b": a * b.exp(), "unused": torch.zeros_like(a)})
    close(value, (a * b.exp()).sum())
    close(rest, {"seen": 2 * a, "count": torch.tensor(1)})


def test_by_itself_and_lifted_are_the_same():
    stacked = {n: torch.stack([x, x + 1]) for n, x in PARAMS.items()}
    both = lift(lambda params: gradient(loss, params))(stacked)
    for j in range(2):
        alone = gradient(loss, {n: x[j] for n, x in stacked.items()})
        close((both[0]["b"][j], both[1][j], both[2]["seen"][j]), (alone[0]["b"], alone[1], alone[2]["seen"]))


@pytest.mark.parametrize("around", [torch.no_grad, torch.enable_grad])
def test_nothing_that_is_returned_has_a_graph_and_params_are_left_alone(around):
    with around():
        grads, value, rest = gradient(loss, PARAMS)
    assert not any(x.requires_grad for x in (*grads.values(), value, *rest.values(), *PARAMS.values()))


def test_by_itself_plain_autograd_takes_it_and_under_a_transform_torch_func(monkeypatch):
    taken = []
    plain = module.grad_and_value
    monkeypatch.setattr(module, "grad_and_value", lambda *a, **k: taken.append(1) or plain(*a, **k))
    gradient(loss, PARAMS)
    assert not taken
    second = torch.func.grad(lambda b: gradient(loss, PARAMS | {"b": b})[0]["b"].sum())(PARAMS["b"])
    assert taken
    close(second, PARAMS["a"] * PARAMS["b"].exp())  # derivatives of derivatives still are
