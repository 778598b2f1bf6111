"""Whether training had ended is a test: noise and a shrinking step are not taken for progress, and progress is seen."""

import numpy as np
import pytest
import torch

import basinet as bn
from basinet.data import Data, Splits
from basinet.ended import LITTLE, training_of
from basinet.engine.method import Entry
from basinet.pool import read_records

torch.set_num_threads(1)
STEPS = 1000
COSINE = bn.MAP(optimizer=bn.optim.Adam(lr=bn.optim.Cosine(peak=3e-3)))
STEP = np.linspace(10, STEPS, 100)
RATE = 0.5 * (1 + np.cos(np.pi * STEP / STEPS))
WAY = np.cumsum(RATE) / RATE.sum()


def of(loss, members=1, name="val_nll", recipe=COSINE):
    curves = {"step": [STEP.tolist()] * members, name: [loss().tolist() for _ in range(members)]}
    return training_of(curves, recipe, STEPS)


def test_a_loss_that_falls_with_the_way_it_went_is_seen():
    rng = np.random.default_rng(0)
    trend = of(lambda: 3 - 2 * WAY + 0.01 * rng.normal(size=100))
    assert trend["falling"] and trend["curve"] == "val_nll"
    assert trend["drop"] == pytest.approx(2 * (WAY[-1] - WAY[50]), rel=0.3)


def test_a_step_that_shrinks_is_not_progress():
    """Swings as large as the step: the loss falls with the rate, and more training would gain nothing."""
    rng = np.random.default_rng(1)
    falling = [of(lambda: 1 + 0.3 * RATE + 0.02 * rng.normal(size=100))["falling"] for _ in range(300)]
    assert sum(falling) <= 2  # once in 2,000 by chance, if that


def test_neither_noise_nor_a_rising_loss_is_progress():
    rng = np.random.default_rng(2)
    assert sum(of(lambda: 1 + 0.1 * rng.normal(size=100))["falling"] for _ in range(300)) <= 2
    assert not of(lambda: 1 + WAY)["falling"]
    assert not of(lambda: 1 - 0.3 * LITTLE * WAY)["falling"]  # significant, but too little to matter


def test_the_validation_nll_counts_where_there_is_one():
    """The training loss falls forever while the network learns its examples by heart."""
    curves = {"step": [STEP.tolist()], "loss": [(2 - WAY).tolist()], "val_nll": [(1 + WAY).tolist()]}
    assert not training_of(curves, COSINE, STEPS)["falling"]
    del curves["val_nll"]
    assert training_of(curves, COSINE, STEPS)["falling"]


def test_members_that_stopped_by_themselves_and_short_curves_say_nothing():
    curves = {"step": [STEP.tolist(), STEP[:60].tolist()], "loss": [(2 - WAY).tolist(), (2 - WAY[:60]).tolist()]}
    assert training_of(curves, COSINE, STEPS) is None
    assert training_of({"step": [[1.0, 2.0]], "loss": [[2.0, 1.0]]}, COSINE, STEPS) is None
    assert training_of({}, COSINE, 0) is None


def test_a_comparison_of_networks_that_hardly_trained_says_so(tmp_path):
    x = torch.linspace(-2, 2, 200)[:, None]
    parts = Data(x, 3 * x.sin()).split(0.5, 0.2, 0.3, seed=0)
    short = bn.MAP(epochs=30, batch_size=20, optimizer=bn.optim.Adam(lr=bn.optim.Cosine(peak=3e-3)))
    rows = [Entry("short", short, 1), Entry("Laplace", bn.Laplace(base=short), 1)]
    frame = bn.compare(
        Splits("waves", *parts), rows, model=lambda i, o: bn.networks.MLP(i, o, hidden=(8,)), out=tmp_path
    )
    assert frame.warning.startswith("Training had not ended") and "short, Laplace" in frame.warning
    assert frame.warning in str(frame)
    plain, laplace = read_records(tmp_path / "records.jsonl")
    assert plain["training"]["falling"] and laplace["training"] == plain["training"]  # that of what it starts from
    assert plain["spread"] == "point" and laplace["spread"] == "posterior"
