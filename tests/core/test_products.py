"""Stacked linear layers are those that torch's own rules give, with gradients in plain order."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from basinet.core import products
from basinet.core.products import StackedProducts

M, OUT, IN = 3, 5, 4


def layer(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    with StackedProducts():
        return F.linear(x, weight, bias)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(sum(shape))).requires_grad_()


@pytest.mark.parametrize("shape", [(7,), (2, 3), (2, 1, 3)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_outputs_and_gradients_equal_those_of_torch(shape: tuple[int, ...], with_bias: bool) -> None:
    x, weight = drawn(M, *shape, IN), drawn(M, OUT, IN)
    bias = drawn(M, OUT) if with_bias else None
    leaves = [x, weight] if bias is None else [x, weight, bias]
    dims = (0, 0, None if bias is None else 0)
    ours, torchs = vmap(layer, dims)(x, weight, bias), vmap(F.linear, dims)(x, weight, bias)
    torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-12)
    of_ours = torch.autograd.grad(ours.sin().sum(), leaves)
    of_torchs = torch.autograd.grad(torchs.sin().sum(), leaves)
    torch.testing.assert_close(of_ours, of_torchs, rtol=1e-12, atol=1e-12)
    assert all(slope.is_contiguous() for slope in of_ours)


def test_axes_that_are_not_in_front_and_biases_that_all_share() -> None:
    x, weight, bias = drawn(7, M, IN), drawn(OUT, IN, M), drawn(OUT)
    ours, torchs = vmap(layer, (1, 2, None))(x, weight, bias), vmap(F.linear, (1, 2, None))(x, weight, bias)
    torch.testing.assert_close(ours, torchs, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(
        torch.autograd.grad(ours.sin().sum(), (x, weight, bias)),
        torch.autograd.grad(torchs.sin().sum(), (x, weight, bias)),
        rtol=1e-12,
        atol=1e-12,
    )


def test_second_derivatives() -> None:
    x, weight, bias = drawn(M, 6, IN), drawn(M, OUT, IN), drawn(M, OUT)

    def curvature(function: object) -> tuple[Tensor, ...]:
        (slope,) = torch.autograd.grad(vmap(function)(x, weight, bias).pow(3).sum(), weight, create_graph=True)  # type: ignore[arg-type]
        return torch.autograd.grad(slope.square().sum(), (x, weight))

    torch.testing.assert_close(curvature(layer), curvature(F.linear), rtol=1e-12, atol=1e-12)


def test_what_is_transformed_otherwise_is_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*args: object) -> None:
        raise AssertionError("a layer was taken that torch's own rules are for")

    x, weight, bias = drawn(M, 7, IN), drawn(M, OUT, IN), drawn(M, OUT)
    two = weight.expand(2, M, OUT, IN)
    monkeypatch.setattr(products._Linear, "apply", never)
    vmap(layer, (None, 0, 0))(x[0], weight, bias)  # inputs that members share are one large product
    vmap(lambda w: vmap(layer)(x, w, bias))(two)
    vmap(lambda x, w, b: grad(lambda w: layer(x, w, b).sum())(w))(x, weight, bias)
    vmap(layer)(x[:, 0], weight, bias)  # no batch
    layer(x[0], weight[0], bias[0])
    with pytest.raises(AssertionError, match="torch's own rules"):
        vmap(layer)(x, weight, bias)  # what is ours to take would be noticed


def test_in_half_precision_gradients_are_as_precise_as_the_weights() -> None:
    x, weight, bias = (
        t.detach().float().requires_grad_() for t in (drawn(M, 64, IN), drawn(M, OUT, IN), drawn(M, OUT))
    )
    with torch.autocast("cpu", torch.bfloat16):
        ours = vmap(layer)(x, weight, bias)
    assert ours.dtype == torch.bfloat16
    slopes = torch.autograd.grad(ours.float().sum(), (x, weight, bias))
    assert [s.dtype for s in slopes] == [torch.float32] * 3
    torch.testing.assert_close(slopes[1][:, 0], x.sum(1), rtol=0.02, atol=0.1)
