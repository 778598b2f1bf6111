"""`Model.swapped`: layers replaced in the private copy, with the names, starts and ties they had."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from basinet.core.lift import lift
from basinet.core.model import Model
from basinet.core.noise import Noise
from basinet.core.tree import Point, leaves, stack, take

KEY = Noise.seed(3)
DRAWS = 20000
Z = 4.5  # of every Monte-Carlo tolerance: 7e-6 two-sided, for one number


class Local(nn.Module):
    """A linear layer whose weights are N(weight, sd^2), drawn in its outputs: independent for each example."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.register_buffer(
            "sd", 0.1 + 0.05 * torch.arange(layer.weight.numel()).reshape(layer.weight.shape).to(layer.weight)
        )

    def forward(self, x: Tensor) -> Tensor:
        mean = F.linear(x, self.weight, self.bias)
        return mean + F.linear(x.square(), self.sd.square()).sqrt() * torch.randn_like(mean)


def local(name: str, layer: nn.Module) -> nn.Module:
    return Local(layer) if isinstance(layer, nn.Linear) else layer


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2)).double()


def rows(count: int = 4) -> Tensor:
    return KEY.split("rows").normal(torch.empty(count, 3, dtype=torch.float64))


def equal(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def test_parameters_keep_names_and_starts_and_what_is_added_is_named_after_the_layer():
    plain = Model(mlp)
    model = plain.swapped(None, local)
    assert model.params == plain.params and list(model.params) == list(plain.params)
    assert model.buffers == {"0.sd": (5, 3), "2.sd": (2, 5)}
    assert equal(model.init(KEY).params, plain.init(KEY).params)
    assert not equal(model.init(KEY).params, model.init(KEY.split("other")).params)
    assert "Local" in model.description and "Local" not in plain.description
    assert plain.swapped("2", local).buffers == {"2.sd": (2, 5)}
    assert plain.swapped(("*", "!0"), local).buffers == {"2.sd": (2, 5)}


def test_nothing_of_the_users_module_or_of_the_model_changes():
    module = mlp()
    before = copy.deepcopy(module.state_dict())
    plain = Model(module)
    spec, point = plain.spec(), plain.read(module)
    still = plain(point.params, point.buffers, rows())[0]
    model = plain.swapped("0", local)
    start = model.init(KEY)
    model(start.params, start.buffers, rows(), KEY, "train")
    assert [type(m) for m in module] == [nn.Linear, nn.Tanh, nn.Linear] and equal(module.state_dict(), before)
    assert plain.spec() == spec and torch.equal(plain(point.params, point.buffers, rows())[0], still)


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_members_with_random_layers_are_the_same_lifted_and_one_by_one(mode):
    model, x = Model(mlp).swapped(None, local), rows()
    points = [model.init(KEY.split(k)) for k in range(3)]
    keys = KEY.split("noise").spread(3).key

    def one(point: Point, key: Tensor) -> Tensor:
        return model(point.params, point.buffers, x, Noise(key), mode)[0]

    lifted = lift(one)(stack(points), keys)
    for k in range(3):
        torch.testing.assert_close(lifted[k], one(points[k], keys[k]), rtol=1e-12, atol=1e-12)
        assert not torch.allclose(lifted[k], one(points[k], keys[(k + 1) % 3]))
    slopes = lift(torch.func.grad(lambda point, key: one(point, key).square().sum()))(stack(points), keys)
    for k in range(3):
        slope = torch.func.grad(lambda point, key: one(point, key).square().sum())(points[k], keys[k])
        for a, b in zip(leaves(take(slopes, k)), leaves(slope), strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("way", ["stack", "loop"])
def test_outputs_have_the_mean_and_variance_of_weights_that_are_drawn(way):
    model, x = Model(lambda: nn.Linear(3, 2).double()).swapped(None, local), rows(5)
    point, keys = model.init(KEY), KEY.split("draws").spread(DRAWS).key

    def draw(key: Tensor) -> Tensor:
        return model(point.params, point.buffers, x, Noise(key))[0]

    count = DRAWS if way == "stack" else DRAWS // 10
    draws = lift(draw)(keys) if way == "stack" else torch.stack([draw(key) for key in keys[:count]])
    w, b, sd = point.params["weight"], point.params["bias"], point.buffers["sd"]
    mean, variance = x @ w.T + b, x.square() @ sd.square().T
    z_of_mean = (draws.mean(0) - mean) / (variance / count).sqrt()
    z_of_variance = (draws.var(0) / variance - 1) / (2 / (count - 1)) ** 0.5
    assert float(z_of_mean.abs().max()) < Z and float(z_of_variance.abs().max()) < Z
    between = torch.corrcoef(draws[:, :, 0].T)  # examples have numbers of their own
    assert float((between - torch.eye(5, dtype=torch.float64)).abs().max()) < Z / count**0.5


def test_a_layer_at_several_places_is_replaced_at_all_and_once():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            shared = nn.Linear(3, 3)
            self.blocks = nn.Sequential(shared, nn.Tanh(), shared)
            self.again = shared

        def forward(self, x: Tensor) -> Tensor:
            return self.again(self.blocks(x))

    calls = []

    class Twice(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    def make(name: str, layer: nn.Module) -> nn.Module:
        calls.append(name)
        twice = Twice(3, 3)
        twice.weight, twice.bias = layer.weight, layer.bias
        return twice

    plain = Model(Net)
    model = plain.swapped("blocks.0", make)
    assert calls == ["blocks.0"] and model.params == plain.params
    point, x = model.init(KEY), torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    w, b = point.params["blocks.0.weight"], point.params["blocks.0.bias"]

    def twice(x: Tensor) -> Tensor:
        return 2 * F.linear(x, w, b)

    torch.testing.assert_close(model(point.params, {}, x)[0], twice(twice(twice(x).tanh())))


def test_ties_hold_where_the_replacement_holds_the_parameter():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.decode = nn.Linear(3, 5, bias=False)
            self.decode.weight = self.embed.weight

        def forward(self, ids: Tensor) -> Tensor:
            return self.decode(self.embed(ids))

    assert Model(Tied).swapped("decode", local).params == {"embed.weight": (5, 3)}


def test_the_whole_module_may_be_the_layer_and_a_layer_may_become_several():
    model = Model(lambda: nn.Linear(3, 2)).swapped(None, lambda name, layer: nn.Sequential(nn.Dropout(0.5), layer))
    assert set(model.params) == {"1.weight", "1.bias"}
    point, x = model.init(KEY), torch.ones(50, 3)
    outputs = model(point.params, {}, x, KEY, "dropout")[0]
    assert outputs.unique(dim=0).shape[0] == 8  # each of three inputs kept or dropped
    torch.testing.assert_close(
        model(point.params, {}, x)[0], F.linear(x, point.params["1.weight"], point.params["1.bias"])
    )
    again = model.swapped("1", local)
    assert set(again.params) == {"1.weight", "1.bias"} and set(again.buffers) == {"1.sd"}


def test_layers_of_a_transformer_are_replaced_though_its_fast_path_would_not_call_them():
    class Zero(nn.Linear):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(*x.shape[:-1], self.out_features)

    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True), 1)
    names = []

    def make(name: str, layer: nn.Module) -> nn.Module:
        names.append((name, type(layer)))
        if name != "layers.0.linear2":
            return layer
        zero = Zero(16, 8)
        zero.weight, zero.bias = layer.weight, layer.bias
        return zero

    with_zero = Model(encoder).swapped(None, make)
    assert ("layers.0.self_attn", nn.MultiheadAttention) in names
    assert "layers.0.self_attn.out_proj" not in dict(names)  # attention reads its weights and never calls it
    point, x = with_zero.init(KEY), torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    zeroed = {n: torch.zeros_like(v) if "linear2" in n else v for n, v in point.params.items()}
    with torch.no_grad():
        outputs = with_zero(point.params, {}, x)[0]
        torch.testing.assert_close(outputs, Model(encoder)(zeroed, {}, x)[0], atol=1e-5, rtol=1e-5)
        assert not torch.allclose(outputs, Model(encoder)(point.params, {}, x)[0], atol=1e-2)


def test_what_cannot_be_swapped_is_refused():
    model = Model(mlp)
    with pytest.raises(ValueError, match=r"no layer matches 'head'\..*There are 0, 1, 2"):
        model.swapped("head", local)
    with pytest.raises(TypeError, match=r"expected an nn.Module in place of layer '0', got NoneType"):
        model.swapped("0", lambda name, layer: None)

    class Wrapper(Model):
        pass

    with pytest.raises(TypeError, match=r"got Wrapper, which wraps one: swap layers of the model inside"):
        Wrapper(mlp).swapped("0", local)
