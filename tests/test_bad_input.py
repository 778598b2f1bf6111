"""Bad input is refused before anything is trained or written, and the message says what to do."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import basinet as bn
from basinet import methods

X = bn.Noise.seed(3).normal(torch.empty(8, 4))
Y = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
CLASSES, REAL = bn.likelihoods.Categorical(), bn.likelihoods.Gaussian()


def net(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


class Returns(nn.Module):
    """A network whose outputs are what a function makes of the logits."""

    def __init__(self, change: Any) -> None:
        super().__init__()
        self.net, self.change = net(), change

    def forward(self, x: Tensor) -> Any:
        return self.change(self.net(x))


def refuse(message: str, model: Any, likelihood: Any, data: bn.Data, tmp_path: Any, **options: Any) -> None:
    """The fit fails with the message, untrained and unwritten, and leaves the module as it was."""
    problem = bn.Problem(model, likelihood)
    state = {n: x.clone() for n, x in model.state_dict().items()} if isinstance(model, nn.Module) else {}
    with pytest.raises((ValueError, TypeError), match=message):
        bn.fit(
            bn.MAP(epochs=1),
            problem,
            data,
            pool=tmp_path / "pool",
            engine=bn.Engine(device="cpu", progress=False),
            observe=lambda event: pytest.fail("it trained"),
            **options,
        )
    assert not (tmp_path / "pool").exists()
    assert all(torch.equal(model.state_dict()[n], x) for n, x in state.items())


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (Y + 1, r"targets in 0 \.\.\. 2, one of the network's 3 outputs, got 1 \.\.\. 3: relabel the classes or widen"),
        (Y - 1, r"targets in 0 \.\.\. 2, .* got -1 \.\.\. 1: relabel the classes"),
        (torch.ones_like(Y), "at least two classes among the targets, got only class 1"),
        (Y.float(), r"integer class targets, got torch\.float32: use targets\.long\(\)"),
        (Y > 0, r"integer class targets, got torch\.bool: use targets\.long\(\)"),
        (nn.functional.one_hot(Y), r"targets \(batch\) .*got \(batch, 3\): pass class indices, not one-hot vectors"),
        (Y[:, None], r"targets \(batch\) for outputs \(batch, 3\), got \(batch, 1\)"),
    ],
    ids=["too high", "negative", "one class", "float", "bool", "one-hot", "column"],
)
def test_class_targets_that_do_not_fit(targets, message, tmp_path):
    refuse(message, net(), CLASSES, bn.Data(X, targets), tmp_path)


@pytest.mark.parametrize(
    ("model", "likelihood", "targets", "message"),
    [
        (lambda: net(1), CLASSES, Y, r"at least 2 classes, got \(2, 1\): end the network in one logit per class"),
        (lambda: net(2), CLASSES, Y, r"targets in 0 \.\.\. 1, one of the network's 2 outputs, got 0 \.\.\. 2"),
        (lambda: net(1), REAL, Y, r"floating-point targets, got torch\.int64: use targets\.float\(\)"),
        (lambda: net(2), REAL, X[:, :1], r"\(batch, [12]\).*\(batch, [12]\): match the network's last layer"),
        (lambda: net(2), REAL, X[:, 0], "match the network's last layer to the targets"),
    ],
    ids=["one output", "too few outputs", "integers", "other width", "vector against matrix"],
)
def test_outputs_that_do_not_fit_the_likelihood(model, likelihood, targets, message, tmp_path):
    refuse(message, model, likelihood, bn.Data(X, targets), tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda out: (out, out), "expected the module to return a tensor .*, got tuple: say which part .*output=0"),
        (lambda out: {"scores": out}, "expected the module to return a tensor .*'logits'.*, got dict"),
        (lambda out: out.mean(), r"expected one output row for each example, got outputs \(\) for 2 examples"),
        (lambda out: out.T, r"expected one output row for each example, got outputs \(3, 2\) for 2 examples"),
    ],
    ids=["tuple", "dict", "scalar", "transposed"],
)
def test_networks_that_return_something_else(change, message, tmp_path):
    refuse(message, lambda: Returns(change), CLASSES, bn.Data(X, Y), tmp_path)


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (X[:, :3], r"does not run on the data \(inputs of shape \[\(3,\)\] per example\): .*shapes cannot be"),
        ({"x": X}, r"does not run on the data \(inputs of shape \[\(4,\)\] per example\): .*unexpected keyword"),
        ((X, X), r"does not run on the data \(inputs of shape \[\(4,\), \(4,\)\] per example\): .*positional argument"),
    ],
    ids=["width", "keyword", "position"],
)
def test_inputs_that_the_network_does_not_take(inputs, message, tmp_path):
    refuse(message, net, CLASSES, bn.Data(inputs, Y), tmp_path)


@pytest.mark.parametrize(
    ("val", "message"),
    [
        (bn.Data(X, Y + 1), r"targets in 0 \.\.\. 2, one of the network's 3 outputs, got 1 \.\.\. 3"),
        (bn.Data(X, Y.float()), "integer class targets"),
        (bn.Data(X[:, :2], Y), r"does not run on the data \(inputs of shape \[\(2,\)\]"),
    ],
)
def test_validation_data_that_do_not_fit(val, message, tmp_path):
    refuse(message, net, CLASSES, bn.Data(X, Y), tmp_path, val=val)


def test_one_class_is_enough_for_validation_data():
    posterior = bn.fit(bn.MAP(epochs=1), bn.Problem(net, CLASSES), bn.Data(X, Y), val=bn.Data(X[:2], Y[:2] * 0))
    assert len(posterior.info["curves"]["val_nll"][0]) == 1


@pytest.mark.parametrize(
    ("model", "error", "message"),
    [
        ("mlp", TypeError, r"expected a factory \(\) -> nn\.Module or an nn\.Module, got str"),
        (lambda: 3, TypeError, r"expected the factory to return an nn\.Module, got int"),
        (nn.ReLU, ValueError, "expected a module with parameters that take gradients, got none"),
        (lambda: net().requires_grad_(False), ValueError, r"nothing can be inferred\. Check requires_grad"),
    ],
)
def test_what_is_not_a_network_is_refused(model, error, message):
    with pytest.raises(error, match=message):
        bn.Problem(model, CLASSES)


@pytest.mark.parametrize(("name", "meant"), [("mpa", "MAP"), ("em", "EMA"), ("MAPS", "MAP")])
def test_an_unknown_method_gets_the_nearest_and_the_list(name, meant):
    with pytest.raises(ValueError, match=rf"unknown method '{name}'\. Did you mean '{meant}'\? Known: .*EMA.*MAP"):
        methods.find(name)
    assert methods.find(meant.lower()).__name__ == meant


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'basinet' has no attribute 'MPA'"):
        _ = bn.MPA
