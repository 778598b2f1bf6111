"""Taps: what layers are given and give, of every kind of layer, and which parameters cannot be read off them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from basinet.core.model import Model
from basinet.core.noise import Noise
from basinet.layers import Taps, patches

KEY = Noise.seed(2)
B = 4


def normal(name: str, *shape: int) -> Tensor:
    return KEY.split(name).normal(torch.empty(shape, dtype=torch.float64))


def norm(layer: nn.Module) -> nn.Module:
    """With statistics, scale and shift that are not those it begins with."""
    for n, x in [*layer.named_parameters(), *layer.named_buffers()]:
        if x.is_floating_point():
            x.data = 0.5 + KEY.split(n).uniform(x)
    return layer


LAYERS = {
    "linear": (nn.Linear(3, 2), (3,)),
    "linear on steps": (nn.Linear(3, 2), (5, 3)),
    "one output": (nn.Linear(3, 1), (5, 3)),
    "no bias": (nn.Linear(3, 2, bias=False), (3,)),
    "one axis": (nn.Conv1d(2, 3, 2, stride=2), (2, 6)),
    "two axes": (nn.Conv2d(4, 4, (2, 3), groups=2, dilation=(1, 2), padding=1), (4, 5, 6)),
    "two axes, padding in words": (nn.Conv2d(2, 3, (1, 3), padding="same"), (2, 4, 5)),
    "three axes": (nn.Conv3d(1, 2, 2, padding="valid"), (1, 3, 3, 3)),
    "batch norm": (norm(nn.BatchNorm2d(3)), (3, 2, 2)),
    "batch norm of rows": (norm(nn.BatchNorm1d(3)), (3,)),
    "layer norm": (norm(nn.LayerNorm(3)), (5, 3)),
    "layer norm of two axes": (norm(nn.LayerNorm((5, 3))), (5, 3)),
    "layer norm without a shift": (norm(nn.LayerNorm(3, bias=False)), (3,)),
    "group norm": (norm(nn.GroupNorm(2, 4)), (4, 3)),
}


PLACES = {
    "linear on steps": (5,),
    "one output": (5,),
    "layer norm": (5,),
    "layer norm of two axes": (),
}  # of others, the axes after the second


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_of_single_examples_follow_from_what_was_read(name):
    layer, shape = LAYERS[name]
    model, x = Model(layer.double().eval()), normal(name, B, *shape)
    point = model.read(layer)
    params = {n: p.requires_grad_() for n, p in point.params.items()}
    with Taps(params, B) as taps:
        outputs = model(params, point.buffers, x)[0]
    torch.testing.assert_close(outputs, layer(x), rtol=1e-12, atol=1e-12)
    (tap,) = taps.calls
    assert tap.names == tuple(params) and tap.handed is outputs and not taps.others and not taps.lost(outputs)
    v = normal("v", *outputs.shape)
    g, a = tap.places(torch.autograd.grad(outputs, tap.output, v, retain_graph=True)[0]), tap.read()
    assert g.shape[:2] == a.shape[:2] and tap.shape == PLACES.get(name, outputs.shape[2:])
    for b in range(B):
        grads = dict(zip(params, torch.autograd.grad(outputs[b], list(params.values()), v[b], retain_graph=True)))
        formula = "tgo,tgi->goi" if tap.kind == "matrix" else "tgi,tgi->gi"
        weight = torch.einsum(formula, g[b], a[b]).reshape(params["weight"].shape)
        torch.testing.assert_close(weight, grads["weight"], rtol=1e-11, atol=1e-12)
        if "bias" in grads:
            bias = g[b].sum(0).reshape(params["bias"].shape)
            torch.testing.assert_close(bias, grads["bias"], rtol=1e-11, atol=1e-12)


class Odd(nn.Module):
    """A weight that is transposed by hand, one that reads what is written into later, and one that sees some rows."""

    def __init__(self) -> None:
        super().__init__()
        self.plain, self.turned, self.early, self.some = (nn.Linear(3, 3) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.plain(x))
        out = h @ self.turned.weight.T + self.turned.bias + self.early(h)
        h.add_(1.0)
        return torch.cat([out[:2], self.some(out[2:]) + h[2:]])


def test_what_does_not_follow_from_calls_is_said():
    model, x = Model(lambda: Odd().double()), normal("odd", B, 3)
    point = model.init(KEY)
    with torch.no_grad(), Taps(point.params, B) as taps:
        outputs = model(point.params, point.buffers, x)[0]
    named = {n.partition(".")[0] for n in taps.others}
    assert named == {"turned", "some"} and taps.selects
    assert {n.partition(".")[0] for n in taps.lost(outputs)} == {"turned", "some", "early"}


def test_statistics_of_a_batch_are_not_read():
    layer = nn.BatchNorm1d(3, track_running_stats=False).double()
    model = Model(layer)
    point = model.read(layer)
    with Taps(point.params, B) as taps:
        model(point.params, point.buffers, normal("batch", B, 3))
    assert not taps.calls and taps.others == {"weight", "bias"}


@pytest.mark.parametrize("padding", [0, 1, (1, 0), "same", "valid"])
def test_patches_are_what_a_convolution_multiplies(padding):
    x, weight = normal("images", 2, 3, 5, 6), normal("kernel", 4, 3, 3, 2)
    expected = F.conv2d(x, weight, padding=padding, dilation=(1, 2))
    output = weight.flatten(1) @ patches(x, (3, 2), 1, (1, 2), padding)
    torch.testing.assert_close(output.reshape(expected.shape), expected, rtol=1e-12, atol=1e-12)


def test_tensors_that_count_no_writing_are_read():
    model, x = Model(lambda: nn.Linear(3, 2).double()), normal("x", B, 3)
    point = model.init(KEY)
    with torch.inference_mode(), Taps(point.params, B) as taps:
        outputs = model(point.params, point.buffers, x.clone())[0]
    assert len(taps.calls) == 1 and not taps.lost(outputs)
