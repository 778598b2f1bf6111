"""Modules as pure functions: the same numbers as the module itself, and nothing of the user's ever changed."""

import copy
import re
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from basinet.core.lift import lift
from basinet.core.model import Model, describe_difference
from basinet.core.noise import Noise
from basinet.core.tree import leaves, stack, take

KEY = Noise.seed(0)


class Cnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout2d(0.3)
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.norm(self.conv(x)))).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width, momentum):
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.one, self.two = (nn.BatchNorm2d(width, momentum=momentum) for _ in range(2))

    def forward(self, x):
        y = self.two(self.second(torch.relu(self.one(self.first(x)))))
        return torch.relu(x + F.dropout(y, 0.2, self.training))


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3)
        self.blocks = nn.Sequential(Block(4, 0.1), Block(4, 0.3))
        self.last = nn.Linear(4, 3)

    def forward(self, x):
        return self.last(self.blocks(self.stem(x)).mean((2, 3)))


class Transformer(nn.Module):
    def __init__(self, nested=True):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.2, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2, enable_nested_tensor=nested)
        self.last = nn.Linear(8, 3)

    def forward(self, ids, padding):
        hidden = self.encode(self.embed(ids), src_key_padding_mask=padding)
        return self.last(hidden.masked_fill(padding.unsqueeze(-1), 0.0).mean(1))


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, batch_first=True)
        self.last = nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.lstm(x)[0][:, -1])


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 3))


def images() -> torch.Tensor:
    return KEY.split("images").normal(torch.empty(6, 1, 8, 8, dtype=torch.float64))


def tokens() -> dict[str, torch.Tensor]:
    padding = torch.arange(5) >= torch.tensor([5, 3, 4, 2, 5, 1])[:, None]
    return {"ids": KEY.split("ids").integers(30, 11).reshape(6, 5), "padding": padding}


def rows(*shape: int) -> torch.Tensor:
    return KEY.split("rows").normal(torch.empty(shape, dtype=torch.float64))


CASES = {
    "mlp": (mlp, lambda: rows(6, 4)),
    "cnn": (Cnn, images),
    "resnet": (ResNet, images),
    "transformer": (Transformer, tokens),
    "lstm": (Lstm, lambda: rows(6, 5, 4)),
}
LIFTED = [name for name in CASES if name != "lstm"]  # torch has no batching rule for nn.LSTM


def factory(name):
    return lambda: CASES[name][0]().double()


def plain(name) -> nn.Module:
    """A module of the user's, in float64, its norm statistics and biases not at their starts."""
    torch.manual_seed(1)
    module = (Transformer(nested=False) if name == "transformer" else CASES[name][0]()).double()
    for n, x in [*module.named_parameters(), *module.named_buffers()]:
        if x.is_floating_point():
            x.data += KEY.split(n).uniform(x)
    return module


def call(module, inputs):
    return module(**inputs) if isinstance(inputs, dict) else module(inputs)


def equal(a, b) -> bool:
    return all(torch.equal(x, y) for x, y in zip(leaves(a), leaves(b), strict=True))


def close(a, b):
    for x, y in zip(leaves(a), leaves(b), strict=True):
        torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", CASES)
def test_outputs_are_those_of_the_module_in_eval_mode(name):
    module, inputs = plain(name), CASES[name][1]()
    model = Model(factory(name))
    point = model.read(module)
    outputs, buffers = model(point.params, point.buffers, inputs)
    close(outputs, call(module.eval(), inputs))
    assert equal(buffers, point.buffers)


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_the_module(name):
    module, inputs = plain(name), CASES[name][1]()
    point = Model(factory(name)).read(module)
    model = Model(factory(name))

    def loss(params):
        return model(params, point.buffers, inputs)[0].square().sum()

    if name == "lstm":  # torch.func cannot go through it, autograd can
        params = {n: x.requires_grad_() for n, x in point.params.items()}
        grads = dict(zip(params, torch.autograd.grad(loss(params), list(params.values()))))
    else:
        grads = torch.func.grad(loss)(point.params)
    call(module.eval(), inputs).square().sum().backward()
    close(grads, {n: p.grad for n, p in module.named_parameters()})


@pytest.mark.parametrize("name", ["cnn", "resnet"])
def test_norm_statistics_move_exactly_as_in_the_module(name):
    module, inputs = plain(name), CASES[name][1]()
    for part in module.modules():  # the module itself would draw its masks from the global generator
        if isinstance(part, nn.Dropout2d):
            part.p = 0.0
    model = Model(factory(name))
    point = model.read(module)
    before = copy.deepcopy(point)
    _, once = model(point.params, point.buffers, inputs, KEY, "train")
    _, twice = model(point.params, once, 2 * inputs, KEY, "train")
    assert equal(point, before)
    norm = "norm" if name == "cnn" else "blocks.0"  # before any dropout, so the module's own numbers
    call(module.train(), inputs)
    for n, x in module.named_buffers():
        if n.startswith(norm):
            assert torch.equal(once[n], x), n
    call(module, 2 * inputs)
    for n, x in module.named_buffers():
        if n.startswith(norm):
            assert torch.equal(twice[n], x), n
        if n.endswith("num_batches_tracked"):
            assert int(twice[n]) == 2
    assert all(not torch.equal(once[n], x) for n, x in before.buffers.items())


def test_cumulative_norm_statistics_move_as_in_the_module():
    module = nn.BatchNorm1d(4, momentum=None).double()  # not under vmap: torch reads its counter as a number
    model, x = Model(module), rows(6, 4)
    point = model.init(KEY)
    buffers = point.buffers
    for i in range(3):
        _, buffers = model(point.params, buffers, x + i, KEY, "train")
        module(x + i)
    assert equal(buffers, dict(module.named_buffers()))
    torch.testing.assert_close(buffers["running_mean"], x.mean(0) + 1)


@pytest.mark.parametrize("mode", ["eval", "dropout"])
def test_norm_statistics_stay_outside_train_mode(mode):
    model = Model(Cnn)
    point = model.init(KEY)
    _, buffers = model(point.params, point.buffers, images().float(), KEY, mode)
    assert equal(buffers, point.buffers)


@pytest.mark.parametrize("name", CASES)
def test_nothing_of_the_users_module_or_of_the_global_generator_changes(name):
    module, inputs = plain(name), CASES[name][1]()
    next(m for m in module.modules() if not list(m.children())).eval()  # a layer the user keeps in eval mode
    before = copy.deepcopy(module.state_dict())
    flags = [m.training for m in module.modules()]
    state = torch.get_rng_state()
    model = Model(module)
    point = model.init(KEY)
    model.read(module)
    for mode in ("train", "eval", "dropout"):
        model(point.params, point.buffers, inputs, KEY.split("masks"), mode)
    assert equal(module.state_dict(), before)
    assert [m.training for m in module.modules()] == flags
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None and p.requires_grad for p in module.parameters())


@pytest.mark.parametrize("mode", ["eval", "train", "dropout"])
@pytest.mark.parametrize("name", LIFTED)
def test_members_lifted_equal_members_one_by_one(name, mode):
    model, inputs = Model(factory(name)), CASES[name][1]()
    points = [model.init(KEY.split(k)) for k in range(3)]
    keys = KEY.split("masks").spread(3).key

    def one(point, key):
        return model(point.params, point.buffers, inputs, Noise(key), mode)

    lifted = lift(one)(stack(points), keys)
    for k in range(3):
        close(take(lifted, k), one(points[k], keys[k]))


def test_members_lifted_without_noise_equal_members_one_by_one():
    model, inputs = Model(factory("transformer")), tokens()
    points = [model.init(KEY.split(k)) for k in range(3)]
    with torch.no_grad():
        lifted = lift(lambda p: model(p.params, p.buffers, inputs)[0])(stack(points))
        for k in range(3):
            close(lifted[k], model(points[k].params, points[k].buffers, inputs)[0])


@pytest.mark.parametrize("name", LIFTED)
def test_dropout_depends_only_on_the_key(name):
    model, inputs = Model(factory(name)), CASES[name][1]()
    point = model.init(KEY)

    def run(key, mode):
        return model(point.params, point.buffers, inputs, key, mode)[0]

    still = run(KEY, "eval")
    for mode in ("train", "dropout"):
        assert torch.equal(run(KEY, mode), run(KEY, mode))
        assert not torch.allclose(run(KEY, mode), run(KEY.split("other"), mode))
    assert not torch.allclose(run(KEY, "dropout"), still)
    close(run(None, "eval"), still)


def test_attention_drops_inside_a_transformer():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    layer.self_attn.dropout = 0.5  # the float inside the attention, and no other
    model = Model(lambda: layer)
    point = model.init(KEY)
    x = rows(2, 5, 8).float()
    with torch.no_grad():
        still = model(point.params, point.buffers, x, KEY)[0]
        for mode in ("train", "dropout"):
            assert not torch.allclose(model(point.params, point.buffers, x, KEY, mode)[0], still, atol=1e-3)


def test_dropout_mode_keeps_norm_layers_in_eval_mode():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm = nn.BatchNorm1d(4)
            self.drop = nn.Dropout(0.4)

        def forward(self, x):
            return self.drop(self.norm(x))

    model, x = Model(Net), rows(50, 4).float()
    point = model.init(KEY)
    buffers = point.buffers | {"norm.running_mean": torch.full((4,), 3.0), "norm.running_var": torch.full((4,), 4.0)}
    still, _ = model(point.params, buffers, x)
    torch.testing.assert_close(still, (x - 3) / (4 + 1e-5) ** 0.5)
    ratio = model(point.params, buffers, x, KEY, "dropout")[0] / still
    assert bool(((ratio == 0) | ((ratio - 1 / 0.6).abs() < 1e-5)).all())
    assert 0 < int((ratio == 0).sum()) < 200


def test_a_dropout_layer_used_twice_has_two_masks():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.ones(()))
            self.drop = nn.Dropout(0.5)

        def forward(self, x):
            return torch.stack((self.drop(x), self.drop(x)), 1) * self.scale

    model = Model(Twice)
    point = model.init(KEY)
    out = model(point.params, point.buffers, torch.ones(400), KEY, "train")[0]
    agree = float((out[:, 0] == out[:, 1]).double().mean())
    assert abs(agree - 0.5) * 2 * 400**0.5 < 4.5  # z-score of independent masks


def test_parameters_without_gradient_travel_with_the_buffers_and_stay():
    module = mlp()
    module[0].weight.requires_grad_(False)
    module[3].bias.requires_grad_(False)
    for model in (Model(lambda: copy.deepcopy(module)), Model(module)):
        assert set(model.params) == {"0.bias", "3.weight"}
        assert model.frozen == {"0.weight": (8, 4), "3.bias": (3,)}
        point = model.init(KEY)
        assert set(point.params) == set(model.params) and set(point.buffers) == set(model.frozen)
        assert torch.equal(point.buffers["0.weight"], module[0].weight)
        assert torch.equal(point.buffers["3.bias"], module[3].bias)
        _, after = model(point.params, point.buffers, torch.ones(2, 4), KEY, "train")
        assert equal(after, point.buffers)
        moved = model(point.params, point.buffers | {"3.bias": module[3].bias + 1}, torch.ones(2, 4))[0]
        torch.testing.assert_close(moved - 1, model(point.params, point.buffers, torch.ones(2, 4))[0])


def test_reinitialising_leaves_frozen_layers_and_their_statistics():
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3), nn.BatchNorm1d(3))
    module[1].running_mean += 5
    module[3].running_mean += 5
    module[:2].requires_grad_(False)
    point = Model(module).init(KEY)
    assert torch.equal(point.buffers["1.running_mean"], module[1].running_mean)
    assert bool((point.buffers["3.running_mean"] == 0).all())
    assert torch.equal(point.buffers["0.weight"], module[0].weight)
    assert not torch.equal(point.params["2.weight"], module[2].weight)


def test_tied_weights_are_one_parameter():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(5, 3)
            self.decode = nn.Linear(3, 5, bias=False)
            self.decode.weight = self.embed.weight

        def forward(self, ids):
            return self.decode(self.embed(ids))

    model, ids = Model(Tied), torch.tensor([0, 3, 3])
    assert model.params == {"embed.weight": (5, 3)}
    point = model.init(KEY)
    w = point.params["embed.weight"]
    torch.testing.assert_close(model(point.params, {}, ids)[0], w[ids] @ w.T)
    gradient = torch.func.grad(lambda p: model(p, {}, ids)[0].sum())(point.params)["embed.weight"]
    expected = torch.func.grad(lambda w: (w[ids] @ w.T).sum())(w)
    torch.testing.assert_close(gradient, expected)


class Counting(nn.Module):
    """Replaces one buffer and writes into another, in eval mode too; one of them is not saved by state_dict."""

    def __init__(self):
        super().__init__()
        self.last = nn.Linear(2, 1)
        self.register_buffer("replaced", torch.zeros(2))
        self.register_buffer("written", torch.zeros(()), persistent=False)

    def forward(self, x):
        self.replaced = self.replaced + x.sum(0)
        self.written += 1
        return self.last(x) + self.written


def test_buffers_are_returned_whether_written_into_or_replaced():
    model, x = Model(Counting), torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    point = model.init(KEY)
    assert set(point.buffers) == {"replaced", "written"}
    start = {"replaced": torch.tensor([10.0, 0.0]), "written": torch.tensor(5.0)}
    for _ in range(2):  # the second call starts from what it is given, not from where the first ended
        outputs, after = model(point.params, start, x, None, "train")
        assert after["replaced"].tolist() == [14.0, 6.0] and float(after["written"]) == 6
        torch.testing.assert_close(outputs, F.linear(x, point.params["last.weight"], point.params["last.bias"]) + 6)
        assert start["replaced"].tolist() == [10.0, 0.0] and float(start["written"]) == 5


def test_a_module_that_writes_into_buffers_in_eval_mode_changes_nothing():
    model = Model(Counting)
    point = model.init(KEY)
    before = copy.deepcopy(point.buffers)
    _, after = model(point.params, point.buffers, torch.ones(1, 2))
    assert equal(point.buffers, before) and equal(after, before)


def test_a_module_and_its_factory_start_alike():
    from_factory, from_module = Model(mlp), Model(mlp())
    for seed in range(3):
        assert equal(from_factory.init(Noise.seed(seed)), from_module.init(Noise.seed(seed)))


@pytest.mark.parametrize("source", [mlp, mlp(), Transformer(), Cnn()])
def test_starts_follow_the_key(source):
    model = Model(source)
    assert equal(model.init(KEY), model.init(KEY))
    one, two = model.init(KEY), model.init(KEY.split("other"))
    assert all(not torch.equal(one.params[n], two.params[n]) for n in model.params if one.params[n].std() > 0)


def test_a_factory_may_hand_out_a_module_that_is_in_use():
    shared = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3)).eval()
    before = copy.deepcopy(shared.state_dict())
    model = Model(lambda: shared)
    point = model.init(KEY)
    assert torch.equal(point.params["0.weight"], shared[0].weight)
    point.params["0.weight"] += 1
    model(point.params, point.buffers, torch.ones(2, 4), KEY, "train")
    assert equal(shared.state_dict(), before) and not shared.training
    with torch.no_grad():
        shared[0].weight.zero_()  # the model does not look at it again
    assert float(model(point.params, point.buffers, torch.ones(2, 4))[0].abs().max()) > 0


def test_inputs_reach_forward_as_it_takes_them():
    class Add(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = nn.Parameter(torch.tensor(2.0))

        def forward(self, a, b):
            return self.scale * (a - b)

    model = Model(Add)
    point, a, b = model.init(KEY), torch.tensor([5.0]), torch.tensor([3.0])
    for inputs in ((a, b), [a, b], {"b": b, "a": a}):
        assert model(point.params, {}, inputs)[0].tolist() == [4.0]


def test_logits_are_read_from_a_mapping():
    class Net(nn.Linear):
        def forward(self, x):
            return {"logits": super().forward(x), "loss": None}

    model = Model(lambda: Net(2, 3))
    point = model.init(KEY)
    assert model(point.params, {}, torch.ones(1, 2))[0].shape == (1, 3)


class Returns(nn.Linear):
    """Hands what a linear layer gives to a function, and returns what that gives."""

    def __init__(self, wrap):
        super().__init__(2, 3)
        self.wrap = wrap

    def forward(self, x):
        return self.wrap(super().forward(x))


@pytest.mark.parametrize(
    ("wrap", "output"),
    [
        (lambda y: (0, y), 1),
        (lambda y: {"scores": y, "logits": 0}, "scores"),
        (lambda y: SimpleNamespace(scores=y), "scores"),
        (lambda y: SimpleNamespace(logits=y), None),
        (lambda y: {"logits": y}, None),
        (lambda y: y, None),
    ],
)
def test_what_is_scored_is_chosen_of_what_a_module_returns(wrap, output):
    model, plain = Model(lambda: Returns(wrap), output), Model(lambda: nn.Linear(2, 3))
    point, x = model.init(KEY), torch.ones(1, 2)
    assert torch.equal(model(point.params, {}, x)[0], plain(point.params, {}, x)[0])
    assert model.spec().get("output") == output


@pytest.mark.parametrize(
    ("wrap", "output", "said"),
    [
        (lambda y: (y, 0), 2, "something with output=2, got tuple of 2"),
        (lambda y: {"a": y, "b": y}, "c", "something with output='c', got dict with a, b"),
        (lambda y: SimpleNamespace(a=y), "c", "something with output='c', got SimpleNamespace"),
        (lambda y: y, "c", "something with output='c', got Tensor"),
        (lambda y: (y, 0), 1, "got tuple whose 1 is int: say which part"),
    ],
)
def test_a_missing_part_is_reported(wrap, output, said):
    model = Model(lambda: Returns(wrap), output)
    with pytest.raises((ValueError, TypeError), match=said):
        model(model.init(KEY).params, {}, torch.ones(1, 2))
    with pytest.raises(TypeError, match="expected output= as a place in a tuple"):
        Model(mlp, lambda returned: returned[0])


class Writer(nn.Linear):
    """Doubles its inputs in place."""

    def forward(self, x):
        return super().forward(x.mul_(2))


def test_a_network_that_changes_its_inputs_gets_copies():
    model, x = Model(lambda: Writer(2, 3)), torch.ones(4, 2)
    point = model.init(KEY)
    expected = nn.functional.linear(2 * x, point.params["weight"], point.params["bias"])
    for mode in ("eval", "train", "eval"):
        assert torch.equal(model(point.params, {}, x, mode=mode)[0], expected)
    many = {n: v.expand(5, *v.shape) for n, v in point.params.items()}
    for inputs, axis in ((x, None), (x.expand(5, 4, 2).clone(), 0)):
        outputs = lift(lambda p, x: model(p, {}, x)[0], (0, axis))(many, inputs)
        assert torch.allclose(outputs, expected.expand_as(outputs))
        assert bool((inputs == 1).all())


def test_networks_that_leave_their_inputs_alone_get_those_themselves():
    inputs = []

    class Net(nn.Linear):
        def forward(self, x):
            inputs.append(x)
            return super().forward(x)

    model, x = Model(lambda: Net(2, 3)), torch.ones(4, 2)
    point = model.init(KEY)
    for _ in range(2):
        model(point.params, {}, x)
    assert inputs[0] is not x and inputs[1] is x


def test_a_network_that_begins_to_change_its_inputs_is_refused():
    class Late(nn.Linear):
        def forward(self, x):
            return super().forward(x.mul_(2) if self.training else x)

    model = Model(lambda: Late(2, 3))
    point = model.init(KEY)
    model(point.params, {}, torch.ones(4, 2))
    with pytest.raises(ValueError, match=r"changed its inputs in place.*x = x.clone\(\)"):
        model(point.params, {}, torch.ones(4, 2), mode="train")


def test_a_point_as_a_plain_module():
    module = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 3)).train()
    module(torch.randn(16, 4, generator=torch.Generator().manual_seed(0)))
    model = Model(lambda: copy.deepcopy(module))
    copied = model.at(model.read(module))
    x = torch.ones(5, 4)
    assert torch.equal(copied(x), copy.deepcopy(module).eval()(x))
    assert all(p.requires_grad for p in copied.parameters())
    with torch.no_grad():
        copied[0].weight += 1
    assert not torch.equal(copied[0].weight, module[0].weight)


def test_what_is_neither_module_nor_factory_is_refused():
    with pytest.raises(TypeError, match=r"expected a factory \(\) -> nn.Module or an nn.Module, got str"):
        Model("resnet")
    with pytest.raises(TypeError, match=r"the factory to return an nn.Module, got int"):
        Model(lambda: 3)
    with pytest.raises(TypeError, match=r"expected an nn.Module, got dict"):
        Model(mlp).read({})
    with pytest.raises(TypeError, match=r"takes no arguments, got Linear, which needs in_features, out_features"):
        Model(nn.Linear)


def test_a_module_without_anything_to_infer_is_refused():
    with pytest.raises(ValueError, match=r"parameters that take gradients, got none.*requires_grad"):
        Model(nn.ReLU())
    with pytest.raises(ValueError, match="got none"):
        Model(mlp().requires_grad_(False))


def test_outputs_that_are_not_a_tensor_are_refused():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    model = Model(lambda: Pair(2, 3))
    point = model.init(KEY)
    with pytest.raises(TypeError, match=r"return a tensor .* got tuple: say which part"):
        model(point.params, {}, torch.ones(1, 2))


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(4, 8)), "it has no 3.weight (3, 8)"),
        (nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.ReLU(), nn.Linear(8, 3)), "0.weight is (8, 5) where (8, 4)"),
        (nn.Sequential(*mlp(), nn.BatchNorm1d(3)), "it has 4.weight (3,), which was not expected"),
    ],
)
def test_a_module_that_does_not_fit_gets_an_error_that_says_how(module, message):
    with pytest.raises(ValueError, match=re.escape(f"the module does not fit this model: {message}")):
        Model(mlp).read(module)


def test_describe_difference_is_empty_for_equal_tables():
    assert describe_difference({"a": (2, 3)}, {"a": [2, 3]}) == ""


def test_what_is_read_is_a_copy():
    module = mlp()
    point = Model(mlp).read(module)
    point.params["0.weight"] += 1
    assert not torch.equal(point.params["0.weight"], module[0].weight)
    assert not point.params["0.weight"].requires_grad


def test_the_norm_layers_are_known_with_their_momenta():
    assert Model(ResNet).norms == {f"blocks.{i}.{n}": m for i, m in ((0, 0.1), (1, 0.3)) for n in ("one", "two")}
    assert Model(nn.BatchNorm1d(3, momentum=None)).norms == {"": 1.0}
    assert Model(mlp).norms == {}
    assert Model(lambda: nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False))).norms == {}


def test_the_specification_names_shapes_and_no_addresses():
    class Odd(nn.Linear):
        def extra_repr(self):
            return repr(object())

    spec = Model(lambda: Odd(2, 3)).spec()
    assert spec["params"] == {"weight": [3, 2], "bias": [3]} and spec["frozen"] == {} and spec["buffers"] == {}
    assert spec["module"] == "Odd(<object object>)"


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")
@pytest.mark.parametrize("wrap", [torch.compile, nn.DataParallel, lambda m: nn.DataParallel(torch.compile(m))])
def test_wrappers_of_a_module_are_taken_off(wrap):
    module = mlp()
    bare, wrapped = Model(mlp), Model(lambda: wrap(mlp()))
    assert wrapped.params == bare.params
    for read in (wrapped.read(module), bare.read(wrap(module))):
        assert equal(read, bare.read(module))
    assert equal(Model(wrap(module)).init(KEY), Model(module).init(KEY))


def test_parameters_without_a_shape_are_refused():
    with pytest.raises(ValueError, match=r"got 0\.weight without a shape: run a lazy module once on an example"):
        Model(lambda: nn.Sequential(nn.LazyLinear(3)))


class Complex(nn.Module):
    def __init__(self, requires_grad: bool) -> None:
        super().__init__()
        self.spectrum = nn.Parameter(torch.ones(3, dtype=torch.complex128), requires_grad)
        self.head = nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((self.spectrum * x).abs())


def test_complex_parameters_are_refused_unless_they_are_frozen():
    with pytest.raises(
        ValueError, match=r"expected real parameters, .* got spectrum of torch\.complex128: hold real and"
    ):
        Model(lambda: Complex(True))
    model = Model(lambda: Complex(False))
    start = model.init(KEY)
    assert set(start.params) == {"head.weight", "head.bias"}
    assert model(start.params, start.buffers, rows(4, 3))[0].shape == (4, 2)


def test_a_description_does_not_depend_on_what_torch_prints_of_a_bias(monkeypatch):
    newer = Model(Cnn).spec()
    monkeypatch.setattr(
        nn.BatchNorm2d,
        "extra_repr",
        lambda self: (
            f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}, "
            f"track_running_stats={self.track_running_stats}"
        ),  # as torch 2.11 has it
    )
    assert Model(Cnn).spec() == newer
    assert Model(lambda: nn.Linear(3, 2)).spec() != Model(lambda: nn.Linear(3, 2, bias=False)).spec()
