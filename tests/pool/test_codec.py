"""The codec: everything that is registered goes to JSON and tensors and comes back, and nothing else does."""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import basinet as bn
from basinet.core import registry
from basinet.core.registry import Saved
from basinet.families import Delta, Diagonal, Empirical, Mixture
from basinet.methods import discover
from basinet.optim import SGD, Adam, AdamW, Constant, Cosine, Cyclic, Linear, WarmUp
from basinet.pool import decode, describe, encode, fingerprint

PARAMS = {"z.weight": torch.randn(2, 3, generator=torch.Generator().manual_seed(0)), "a.bias": torch.zeros(2)}
BUFFERS = {"norm.mean": torch.ones(3, dtype=torch.float64), "norm.count": torch.tensor(4)}
STACK = {n: torch.stack([x, x + 1]) for n, x in PARAMS.items()}
STACK_BUFFERS = {n: torch.stack([x, x]) for n, x in BUFFERS.items()}
DIAGONAL = Diagonal(PARAMS, {n: torch.full_like(x, 0.5) for n, x in PARAMS.items()}, BUFFERS)
DIAGONALS = Diagonal(STACK, {n: torch.full_like(x, 0.5) for n, x in STACK.items()}, STACK_BUFFERS)

OBJECTS: list[Saved] = [
    SGD(lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-4),
    Adam(lr=1 / 3, betas=(0.5, 0.75), eps=1e-5),
    AdamW(lr=WarmUp(schedule=Cosine(peak=0.1, floor=1e-3), fraction=0.1)),
    Constant(value=0.25),
    Linear(start=0.5, end=0.0),
    Cosine(peak=0.1),
    Cyclic(peak=0.1, cycles=4),
    WarmUp(schedule=Linear(start=1.0, end=0.1)),
    bn.priors.Normal(scale=0.3),
    bn.priors.Normal(scale={"z": 0.1, "": 2.0}),
    bn.priors.Normal(scale="he", centre=PARAMS),
    bn.likelihoods.Categorical(),
    bn.likelihoods.Gaussian(noise=0.1, learned=True),
    Delta(PARAMS, BUFFERS),
    DIAGONAL,
    Empirical(STACK, STACK_BUFFERS, 2),
    Mixture(DIAGONALS, torch.tensor([0.25, 0.75])),
    Mixture(Empirical(STACK, STACK_BUFFERS, 2), torch.tensor([0.5, 0.5])),
    bn.MAP(epochs=3, batch_size=None, optimizer=SGD(lr=Cyclic(peak=0.1, cycles=2))),
    bn.EMA(horizon=2.5),
]


def name(value: Saved) -> str:
    return f"{value.kind}/{type(value).__name__}"


def round_trip(value: Any) -> Any:
    """Through the text that a file would hold."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(encode(value, tensors), allow_nan=False)
    return decode(json.loads(text), tensors)


def same(a: Any, b: Any) -> bool:
    """Equal in type and in every field, order of names included, tensors to the bit."""
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if is_dataclass(a):
        return type(a) is type(b) and all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a))
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("value", OBJECTS, ids=name)
def test_everything_registered_comes_back_the_same(value):
    assert same(round_trip(value), value)


def test_everything_else_that_is_registered_comes_back_too():
    discover()
    ours = {key: cls for key, cls in registry._classes.items() if cls.__module__.startswith("basinet.")}
    kinds = ("optimizer", "rate", "prior", "likelihood", "method")  # families are in check_family, data in their tests
    assert {kind: any(key.startswith(f"{kind}/") for key in ours) for kind in kinds} == dict.fromkeys(kinds, True)
    for key in ours.keys() - {name(value) for value in OBJECTS}:
        needs = [f for f in fields(ours[key]) if f.default is MISSING and f.default_factory is MISSING]
        if key.split("/")[0] in kinds and not needs:  # what needs arguments belongs in the list above
            assert same(round_trip(ours[key]()), ours[key]()), key


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        3,
        -0.1,
        1e-320,
        math.inf,
        -math.inf,
        "text",
        (1, 2.0),
        [],
        {"float": "nan", "tensor": (1,)},
        {"type": 1, "fields": 2},
        torch.float16,
        {"b": torch.tensor([True]), "a": [torch.zeros(0, 2, dtype=torch.bfloat16), (torch.tensor(1 + 2j),)]},
    ],
    ids=repr,
)
def test_plain_values_come_back_the_same(value):
    back = round_trip(value)
    assert same(back, value)


def test_nan_comes_back():
    assert math.isnan(round_trip(math.nan))


def test_tensors_whose_paths_collide_are_kept_apart():
    value = {"a/b": torch.tensor(1), "a": {"b": torch.tensor(2)}}
    assert same(round_trip(value), value)


@pytest.mark.parametrize("value", [object(), {1, 2}, {"x": [lambda: 0]}, torch.nn.Linear(1, 1), 1j])
def test_unknown_values_are_not_saved(value):
    with pytest.raises(TypeError, match=r"cannot save .* is neither a number, string, tensor, list, dict nor a"):
        encode(value, {})


def test_keys_must_be_strings():
    with pytest.raises(TypeError, match="cannot save /x: expected string keys, got 1"):
        encode({"x": {1: 2}}, {})


def test_a_users_own_class_is_known_once_defined(monkeypatch):
    monkeypatch.setattr(registry, "_classes", dict(registry._classes))

    @dataclass(frozen=True)
    class Halving(bn.optim.Rate):
        first: float

        def __call__(self, clock: Any, steps: int) -> Any:
            return self.first * 0.5**clock

    assert round_trip(SGD(lr=Halving(0.5))) == SGD(lr=Halving(0.5))
    encoded = encode(Halving(0.5), {})
    del registry._classes["rate/Halving"]
    with pytest.raises(ValueError, match="names a rate 'Halving' that is not defined here: import the module"):
        decode(encoded, {})


def test_an_unknown_class_is_named_with_the_nearest():
    with pytest.raises(ValueError, match=r"names a prior 'Norml' that is not defined here.*Did you mean 'Normal'\?"):
        decode({"type": "prior/Norml", "fields": {}}, {})


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"type": "os/system", "fields": {"command": "true"}}, "names a os 'system' that is not defined here"),
        ({"type": "prior/os.system", "fields": {}}, r"names a prior 'os\.system' that is not defined here"),
        ({"type": "prior/Prior", "fields": {}}, "names a prior 'Prior'"),
        ({"type": ["prior/Normal"], "fields": {}}, "is not defined here"),
        (
            {"type": "prior/Normal", "fields": {"scale": 1.0, "shape": 2}},
            r"do not fit: expected among \['centre', 'scale'\]",
        ),
        ({"type": "prior/Normal", "fields": 3}, "the fields of prior/Normal do not fit"),
        ({"type": "prior/Normal", "fields": {"scale": -1.0}}, "expected a positive, finite prior standard deviation"),
        ({"tensor": "missing"}, "the tensor 'missing' is missing"),
        ({"tensor": ["x"]}, "expected a str behind the tag 'tensor'"),
        ({"dict": 3}, "expected a dict behind the tag 'dict', got 3"),
        ({"list": "abc"}, "expected a list behind the tag 'list'"),
        ({"tuple": {}}, "expected a list behind the tag 'tuple'"),
        ({"float": 3}, "expected a str behind the tag 'float'"),
        ({"float": "three"}, "could not convert"),
        ({"dtype": "save"}, "unknown dtype 'save'"),
        ({"code": "import os"}, "unknown tag 'code'"),
        ({"dict": {}, "list": []}, "expected one tag"),
        ([1, 2], "expected an object, got list"),
    ],
)
def test_json_that_is_not_ours_is_refused(value, message):
    with pytest.raises(ValueError, match=message):
        decode(value, {})


def test_descriptions_distinguish_tensors_by_their_values():
    one, other = bn.priors.Normal(centre=PARAMS), bn.priors.Normal(centre=PARAMS | {"a.bias": torch.ones(2)})
    again = bn.priors.Normal(centre={n: x.clone() for n, x in PARAMS.items()})
    assert describe(one) == describe(again) != describe(other)
    assert describe(one) != describe(bn.priors.Normal(centre={n: x.double() for n, x in PARAMS.items()}))
    assert describe(torch.zeros(2, 3)) != describe(torch.zeros(3, 2))
    json.dumps(describe(one))


def test_fingerprints_do_not_depend_on_the_order_of_names():
    one = fingerprint({"a": 1, "b": [2, 3]})
    assert one == fingerprint({"b": [2, 3], "a": 1}) != fingerprint({"a": 1, "b": [3, 2]})
    assert len(one) == 16 and set(one) <= set("0123456789abcdef")
