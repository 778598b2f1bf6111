"""EMA: the average of what descent visits, with norm statistics of its own, found without being registered."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from batch_norm import PROBLEM, classes, net
from torch import nn

import basinet as bn
from basinet import methods
from basinet.core.documented import documented_fields
from basinet.core.tree import ravel, take
from basinet.methods.ema import EMA
from basinet.methods.map import MAP
from basinet.optim import SGD
from basinet.testing import check_method

ENGINE = bn.Engine(device="cpu", strategy="loop", progress=False)


@pytest.mark.slow
def test_ema_conforms_and_averages_as_its_formula_says():
    checks = check_method(EMA(epochs=4, batch_size=16))
    assert any("average along gradient descent" in c.name for c in checks)


@pytest.mark.parametrize("horizon", [0.5, 3.0])
def test_the_average_is_that_of_the_iterates_with_weights_that_decay(horizon):
    problem, data = bn.Problem(lambda: nn.Linear(4, 3).double(), PROBLEM.likelihood), classes()
    sgd, steps = SGD(lr=0.05), 6
    visited = [
        ravel(bn.fit(MAP(epochs=t, batch_size=None, optimizer=sgd), problem, data, engine=ENGINE).mean())
        for t in range(1, steps + 1)
    ]
    decay = math.exp(-1 / horizon)
    weights = torch.tensor([decay ** (steps - t) for t in range(1, steps + 1)], dtype=torch.float64)
    posterior = bn.fit(EMA(epochs=steps, batch_size=None, horizon=horizon, optimizer=sgd), problem, data, engine=ENGINE)
    expected = weights / weights.sum() @ torch.stack(visited)
    torch.testing.assert_close(ravel(posterior.mean()), expected, rtol=0, atol=1e-14)


def test_a_horizon_of_next_to_nothing_is_the_last_iterate():
    data, sgd = classes(), SGD(lr=0.05)
    last = bn.fit(MAP(epochs=4, batch_size=None, optimizer=sgd), PROBLEM, data, engine=ENGINE)
    posterior = bn.fit(EMA(epochs=4, batch_size=None, horizon=1e-4, optimizer=sgd), PROBLEM, data, engine=ENGINE)
    torch.testing.assert_close(ravel(posterior.mean()), ravel(last.mean()), rtol=0, atol=1e-14)


@pytest.mark.parametrize("data_dtype", [torch.float64, torch.float32])
def test_norm_statistics_are_those_of_the_average(data_dtype):
    data = classes().to(dtype=data_dtype)
    posterior = bn.fit(EMA(epochs=6, batch_size=10), PROBLEM, data, members=2, engine=ENGINE)
    assert posterior.parts[0].inputs is None  # statistics are there once and for all
    inputs = data.inputs.double()
    for k in range(2):
        module = net()
        point = take(posterior.parts[0].family, k).mean()
        module.load_state_dict(point.params | point.buffers)
        hidden = module[0](inputs)
        standard = (hidden - hidden.mean(0)) / (hidden.var(0) + module[1].eps).sqrt()
        expected = module[3](torch.tanh(standard * module[1].weight + module[1].bias))
        outputs = posterior.predict(inputs).outputs[k, 0]
        torch.testing.assert_close(outputs, expected.detach(), rtol=0, atol=1e-12)
        torch.testing.assert_close(module.eval()(inputs), expected, rtol=0, atol=1e-12)


def test_a_network_without_norms_keeps_no_inputs():
    problem = bn.Problem(lambda: nn.Linear(4, 3).double(), PROBLEM.likelihood)
    posterior = bn.fit(EMA(epochs=1), problem, classes(), val=classes(8), engine=ENGINE)
    assert posterior.parts[0].inputs is None and len(posterior.info["curves"]["val_nll"][0]) == 1


def test_validation_waits_for_the_statistics():
    posterior = bn.fit(EMA(epochs=1), PROBLEM, classes(), val=classes(8), engine=ENGINE)
    assert "val_nll" not in posterior.info["curves"]


def test_one_average_on_digits_with_batch_norm():
    splits = bn.datasets.load("digits")
    problem = bn.Problem(lambda: bn.networks.MLP(64, 10, hidden=(40,), batch_norm=True), PROBLEM.likelihood)
    posterior = bn.fit(EMA(epochs=30), problem, splits.train, engine=ENGINE)
    predictive = posterior.predict(splits.test.inputs)
    nll = -float(predictive.log_prob(splits.test.targets).mean())
    assert nll < math.log(10) / 6
    accuracy = float((predictive.probs.argmax(-1) == splits.test.targets).double().mean())
    assert accuracy > 0.9
    assert float(F.nll_loss(predictive.probs.log(), splits.test.targets)) == pytest.approx(nll, rel=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0.0}, "expected a finite horizon of more than 0 epochs, got 0"),
        ({"horizon": -1.0}, "expected a finite horizon of more than 0 epochs, got -1"),
        ({"horizon": math.inf}, "expected a finite horizon of more than 0 epochs, got inf"),
        ({"horizon": math.nan}, "expected a finite horizon of more than 0 epochs, got nan"),
        ({"epochs": 0}, "expected at least 1 epoch to average over, got 0"),
    ],
)
def test_hyperparameters_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        EMA(**options)


def test_a_method_is_found_without_being_registered_anywhere():
    code = "import basinet as bn; print(bn.EMA.__module__, 'EMA' in dir(bn), bn.methods.discover()['EMA'] is bn.EMA)"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.split() == ["basinet.methods.ema", "True", "True"]
    for file in ("methods/__init__.py", "engine/__init__.py"):
        assert "ema" not in (Path(bn.__file__).parent / file).read_text().lower().split()
    assert bn.EMA is EMA is methods.discover()["EMA"] is methods.find("ema")


def test_its_fields_are_described_where_they_stand():
    described = documented_fields(EMA)
    assert [f.name for f in fields(EMA) if not described.get(f.name)] == []
    assert described["horizon"] == "Epochs after which a visited weight counts 1/e of the newest."
