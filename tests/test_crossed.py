"""Ensembles on tables whose members have validation rows of their own: in compare, in the command, in estimators."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import basinet as bn
from basinet.cli import app
from basinet.compare.api import Asking, carry_out
from basinet.compare.rows import _crossed, choose
from basinet.compare.run import Setting
from basinet.data.datasets import Splits
from basinet.engine.method import Entry
from basinet.pool import read_records
from basinet.tables import Rules
from basinet.tables.crossed import ROWS, crossed, why_not_crossed

ENGINE = bn.Engine(device="cpu", progress=False, compile=False)
PROBLEM = bn.Problem(
    lambda: bn.networks.MLP(2, 1, hidden=(8,)), bn.likelihoods.Gaussian(noise=0.2), bn.priors.Normal(scale=1.0)
)


def splits(n: int = 200, **changes: object) -> Splits:
    x = bn.Noise.seed(1).normal(torch.empty(n, 2))
    y = x[:, :1].sin() + 0.5 * bn.Noise.seed(2).normal(x[:, :1])
    return Splits("waves", *bn.Data(x, y).split(0.6, 0.2, 0.2), **changes)  # type: ignore[arg-type]


def test_rows_change_places_in_the_proportion_that_the_parts_have():
    whole = splits()
    train, val = crossed(whole.train, whole.val, 3, seed=0)
    assert (train.n, val.n, len(train.targets)) == (120, 40, 160)
    assert len(train.rows) == len(val.rows) == 64  # more members can be asked for later
    again, _ = crossed(whole.train, whole.val, 70, seed=0)
    assert torch.equal(again.rows[:64], train.rows)
    many = bn.Data(torch.zeros(ROWS, 1), torch.zeros(ROWS, 1))
    assert crossed(many, whole.val, 3, 0) == (many, whole.val)


def test_compare_has_the_row_for_real_targets_and_for_classes_where_it_is_asked_for():
    labels = [row.label for row in choose(None, 3, False, "real").rows]
    assert labels[labels.index("tempered deep ensemble") + 1] == "crossed deep ensemble"
    assert not any(row.crossed for row in choose(None, 3, False, "classes").rows)
    [ensemble] = choose(["crossed deep ensemble"], 3, False, "classes").rows
    assert ensemble.crossed and not ensemble.tempered  # as `basinet fit` does with classes
    with pytest.raises(ValueError, match="classes and real targets, not for labels"):
        choose(["crossed deep ensemble"], 3, False, "labels")
    with pytest.raises(ValueError, match="trains its own networks"):
        choose(["crossed Laplace"], 3, False, "real")


def test_a_crossed_row_is_tempered_and_recorded_as_such(tmp_path):
    rows = choose([Entry("deep ensemble", bn.MAP(epochs=30), 3)], None, False, "real").rows
    setting = Setting(splits(), PROBLEM, engine=ENGINE)
    table = carry_out(
        setting, [*rows, *(_crossed(row, "real") for row in rows)], tmp_path, None, None, lambda line: None
    )
    first, second = read_records(tmp_path / "records.jsonl")
    assert (first["crossed"], second["crossed"], second["tempered"]) == (False, True, True)
    assert 1.5 < second["temperature"][0] < 4  # noise of 0.5 that the networks take to be 0.2
    assert second["scores"]["nll"] < first["scores"]["nll"] - 0.3
    assert "Crossed: tempered, and each member is validated on rows of its own" in str(table)


def test_rows_that_may_not_change_places_do_not(tmp_path):
    dated = splits(exchangeable=False)
    assert "not split at random" in why_not_crossed(dated) and why_not_crossed(splits()) == ""
    assert "serves all" in why_not_crossed(splits(2 * ROWS))
    rows = ["linear", "crossed deep ensemble"]
    bn.compare(dated, rows, members=2, out=tmp_path, engine=ENGINE, problem=PROBLEM)
    [record] = read_records(tmp_path / "records.jsonl")
    assert record["reference"]
    assert any(
        "crossed rows are left out" in line for line in json.loads((tmp_path / "run.json").read_text())["warnings"]
    )


def test_default_rows_without_a_crossed_one_say_why(tmp_path):
    file, said = waves(tmp_path / "waves.csv"), list[str]()
    asking = Asking("height", Rules(group_duplicates=True), members=2, engine=ENGINE)
    _, rows = asking.prepare(file, None, said.append)
    assert not any(row.crossed for row in rows)
    assert any("crossed rows are left out" in line and "with copies together" in line for line in said)


def waves(path: Path, n: int = 80) -> str:
    whole = splits(n)
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["a", "b", "height"])
        for part in (whole.train, whole.val, whole.test):
            writer.writerows([*x.tolist(), *y.tolist()] for x, y in zip(part.inputs, part.targets))
    return str(path)


def test_the_command_reports_it_and_an_ensemble_can_grow(tmp_path):
    words = ["fit", waves(tmp_path / "waves.csv"), "--target", "height", "--out", str(tmp_path / "fitted")]
    words += ["--set", "epochs=3", "--set", "batch_size=32"]
    result = CliRunner().invoke(app, [*words, "--members", "2"])
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert "68 training, 12 validation rows (different ones for each member)" in printed
    assert "of members one by one on rows they have not seen" in printed
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "fitted" / "pool").rglob("*.safetensors")}
    assert CliRunner().invoke(app, [*words, "--members", "3"]).exit_code == 0
    now = {p: p.stat().st_mtime_ns for p in (tmp_path / "fitted" / "pool").rglob("*.safetensors")}
    assert len(now) == 3 and files.items() <= now.items()


def test_the_command_says_that_one_part_serves_all_where_copies_stay_together(tmp_path):
    words = ["fit", waves(tmp_path / "waves.csv"), "--target", "height", "--out", str(tmp_path / "fitted")]
    words += ["--set", "epochs=1", "--members", "2", "--group-duplicates"]
    result = CliRunner().invoke(app, words)
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert (
        "validation rows: one part for all, not split at random one by one" in printed
        and "with copies together" in printed
    )


def test_estimators_have_a_spread_from_own_rows():
    from basinet.sklearn import BasinetRegressor

    whole = splits(300).train
    X, y = whole.inputs.numpy(), whole.targets[:, 0].numpy()
    estimator = BasinetRegressor(bn.MAP(epochs=5), members=3, engine=ENGINE, random_state=0).fit(X, y)
    assert estimator.posterior_.temperature.of == "average"
    mean, sd = estimator.predict(X, return_std=True)
    assert mean.shape == sd.shape == (len(X),)
