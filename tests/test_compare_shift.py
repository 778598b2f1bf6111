"""Rows of a comparison where inputs change: other data, corrupted test examples, in records, table and report."""

import json

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score
from typer.testing import CliRunner

import basinet as bn
from basinet.cli import app
from basinet.compare.problems import default_problem
from basinet.compare.shift import EXAMPLES, Shift, shift_table, shifted_means
from basinet.data import Splits
from basinet.data.datasets import load
from basinet.engine.method import Entry
from basinet.report import read_run
from basinet.report.figures import figures

torch.set_num_threads(1)

ROWS = [Entry("MAP", bn.MAP(epochs=2), 1), Entry("three", bn.MAP(epochs=2), 3), "linear"]


def small(inputs, outputs):
    return bn.networks.MLP(inputs, outputs, hidden=(8,))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return bn.compare("diabetes", ROWS, model=small, corrupt="noise,missing", out=folder), folder


def records(folder):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_records_have_scores_and_auroc_of_each_corruption_and_severity(run):
    for record in records(run[1]):
        rows = record["shift"]["rows"]
        assert [(r["corruption"], r["severity"]) for r in rows] == [
            ("none", 0),
            *((name, s) for name in ("noise", "missing") for s in range(1, 6)),
        ]
        for name in ("nll", "rmse", "coverage_90"):  # all 88 test examples are among the first 500
            assert rows[0][name] == pytest.approx(record["scores"][name], rel=1e-5)
        assert record["shift"]["n"] == 88
        members = record["method"] == "three"  # the others have one noise for all inputs, and nothing that tells them
        assert all((r[f"auroc_{part}"] is not None) == members for r in rows[1:] for part in ("total", "epistemic"))


def test_what_is_recorded_is_what_the_posterior_gives_for_corrupted_inputs(run):
    splits = load("diabetes")
    problem = default_problem(splits, small)  # the pool has the members: the same fit reads them
    posterior = bn.fit(bn.MAP(epochs=2), problem, splits.train, val=splits.val, members=3, pool=run[1] / "pool")
    assert posterior.info["trained"] == 0
    inputs = Shift.of(splits, None, "noise").data("noise", 5).inputs
    predictive = posterior.predict(inputs)
    row = next(r for r in records(run[1]) if r["method"] == "three")["shift"]["rows"][5]
    nll = bn.score(predictive, splits.test.targets)["nll"] + np.log(splits.target_sd)
    assert (row["corruption"], row["severity"]) == ("noise", 5) and row["nll"] == pytest.approx(nll, rel=1e-5)
    clean = posterior.predict(splits.test.inputs)
    for part, name in (("variance", "auroc_total"), ("epistemic", "auroc_epistemic")):
        doubts = [getattr(p, part).flatten().numpy() for p in (clean, predictive)]
        known = roc_auc_score([0] * 88 + [1] * 88, np.concatenate(doubts))
        assert row[name] == pytest.approx(known, abs=1e-6)


def test_the_table_and_the_frame_have_means_over_corruptions(run):
    frame, folder = run
    heads, rows = frame.shift
    assert heads[:3] == ["method", "NLL", "NLL 1"] and {row[0] for row in rows} == {"MAP", "three", "linear *"}
    record = next(r for r in records(folder) if r["method"] == "three")
    means = shifted_means(record["shift"])
    assert frame.where(method="three")["shifted_nll"] == [pytest.approx(means["shifted_nll"])]
    assert frame.summary.where(method="three")["shifted_nll"] == [pytest.approx(means["shifted_nll"])]
    entries = record["shift"]["rows"]
    fifth = np.mean([e["nll"] for e in entries if e["severity"] == 5])
    assert next(row for row in rows if row[0] == "three")[6] == f"{fifth:.3f}"
    assert "NLL 5" in str(frame) and "separates corrupted examples from clean ones" in str(frame)
    assert shift_table([{"method": "MAP"}]) is None


def test_the_report_draws_scores_against_severity(run):
    figure = next(f for f in figures(read_run(run[1])) if f.key == "shift")
    assert [view.name for view in figure.views] == ["all of them", "noise", "missing"]
    entries = next(r for r in records(run[1]) if r["method"] == "three")["shift"]["rows"]
    nll, kept, area = figure.views[1].panels
    line = next(s for s in nll.series if s.name == "three")
    assert list(line.x) == [0, 1, 2, 3, 4, 5]
    assert list(line.y) == pytest.approx([entries[i]["nll"] for i in range(6)])
    line = next(s for s in kept.series if s.name == "three")
    assert list(line.y) == pytest.approx([entries[i]["coverage_90"] for i in range(6)])
    assert {s.name for s in area.series} == {"three", "chance"}
    means = next(s for s in figure.views[0].panels[0].series if s.name == "three")
    assert means.y[5] == pytest.approx((entries[5]["nll"] + entries[10]["nll"]) / 2)


def test_the_same_run_resumes_and_other_corruptions_are_another_run(run):
    lines: list[str] = []
    again = bn.compare("diabetes", ROWS, model=small, corrupt=["noise", "missing"], out=run[1], say=lines.append)
    assert again["nll"] == run[0]["nll"] and sum("already" in line for line in lines) == 3
    splits = load("diabetes")
    kinds = [Shift.of(splits, None, corruption).names for corruption in ("all", "Noise, swap", ["range"])]
    assert kinds == [("noise", "shift", "range", "missing", "swap"), ("noise", "swap"), ("range",)]


def test_images_are_corrupted_as_images():
    splits = load("digits")
    shift = Shift.of(splits, None, "weather")
    assert shift.names == bn.corruptions.GROUPS["weather"] and shift.test.n == min(EXAMPLES, splits.test.n)
    foggy = shift.data("fog", 3).inputs
    images = splits.test.inputs.reshape(-1, 1, 8, 8)
    assert torch.equal(foggy, bn.corruptions.corrupt(images, "fog", 3).flatten(1))
    assert shift.data("fog", 3) is shift.data("fog", 3)  # made once for all rows


@pytest.mark.slow
def test_uncertainty_distinguishes_the_inputs_of_another_file_from_those_of_training(tmp_path):
    rng = np.random.default_rng(0)

    def file(name, rows, size, shift):
        x = rng.normal(shift, 1, (rows, 2))
        town = rng.choice(["Ash", "Bow"], rows)
        lines = [f"{a:.4f},{b:.4f},{t},{a + b * b:.4f}" for (a, b), t in zip(x, town)]
        (tmp_path / name).write_text("\n".join(["a,b,town,y", *lines]))
        return tmp_path / name

    train, far = file("train.csv", 300, 2, 0), file("far.csv", 60, 2, 9)
    rows = [Entry("five", bn.MAP(epochs=15), 5)]
    frame = bn.compare(train, rows, target="y", ood=far, out=tmp_path / "run")
    [record] = records(tmp_path / "run")
    assert record["ood"]["name"] == "far.csv" and record["ood"]["n"] == 60
    assert record["ood"]["auroc_epistemic"] > 0.95
    assert frame["ood_auroc"] == [record["ood"]["auroc"]]
    assert "OOD: AUROC with which the variance" in str(frame)
    (tmp_path / "other.csv").write_text("a,c\n1,2\n3,4\n")
    with pytest.raises(ValueError, match="expected the columns of training, got none named 'b', 'town'"):
        bn.compare(train, rows, target="y", ood=tmp_path / "other.csv")


def test_labels_have_entropies_and_calibration_errors_under_corruption(tmp_path):
    x = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    splits = Splits("flags", *bn.Data(x, (x[:, :2] > 0).long()).split(0.5, 0.2, 0.3, seed=0))
    frame = bn.compare(splits, ROWS[:2], model=small, corrupt="shift", out=tmp_path)
    entries = next(r for r in records(tmp_path) if r["method"] == "three")["shift"]["rows"]
    assert all(0 <= e["ece"] <= 1 for e in entries) and all(0 <= e["auroc_total"] <= 1 for e in entries[1:])
    assert frame.shift[0][7] == "ECE" and any(f.key == "shift" for f in figures(read_run(tmp_path)))


def test_the_command_prints_a_second_table(tmp_path):
    words = ["compare", "diabetes", "--methods", "MAP", "--members", "2", "--set", "MAP.epochs=1", "--corrupt", "noise"]
    result = CliRunner().invoke(app, [*words, "--out", str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "Under corruption" in result.output and "NLL 5" in result.output and "means over noise" in result.output
    wrong = CliRunner().invoke(app, ["compare", "diabetes", "--corrupt", "nois"])
    assert wrong.exit_code == 2 and "Did you mean" in wrong.output


def test_what_cannot_be_is_refused_before_anything_is_trained():
    with pytest.raises(ValueError, match=r"expected inputs of shape \(10,\), as diabetes has, got \(13,\)"):
        bn.compare("diabetes", ROWS, ood="wine")
    with pytest.raises(ValueError, match="a file can be used only in a comparison on a file"):
        bn.compare("diabetes", ROWS, ood="wine.csv")
    with pytest.raises(ValueError, match=r"--corrupt all, or names of corruptions, got 'fog'"):
        bn.compare("diabetes", ROWS, corrupt="fog")
    with pytest.raises(ValueError, match=r"got 'fogg'\. Did you mean 'fog'"):
        bn.compare("digits", ROWS, corrupt="fogg")
    pictures = bn.Data(torch.randn(40, 3, 8, 8), torch.arange(40) % 2)
    with pytest.raises(ValueError, match="corrupt before you standardise"):
        bn.compare(Splits("pictures", *pictures.split(0.5, 0.25, 0.25), classes=2), ROWS, corrupt="fog")
    with pytest.raises(ValueError, match="built-in data set, got 'nothing'"):
        bn.compare("diabetes", ROWS, ood="nothing")
