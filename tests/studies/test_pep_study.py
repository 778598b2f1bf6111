"""The study of PEP runs, small, and its records hold what the figures need."""

from __future__ import annotations

import pytest

import studies
from basinet.pool import read_records
from studies import pep


@pytest.mark.slow
def test_the_study_leaves_the_records_of_its_three_questions(tmp_path, monkeypatch):
    monkeypatch.setattr(pep, "MEMBERS", 2)
    monkeypatch.setattr(pep, "EPOCHS", {"digits": (1, 40)})
    monkeypatch.setattr(pep, "PROBES", 2)
    lines: list[str] = []
    returned = pep.run(studies.Options(tmp_path, device="cpu"), lines.append)
    records = read_records(tmp_path / "pep.jsonl")
    assert records == returned
    assert [r["kind"] for r in records] == ["curve", "curve", "overfitting", "overfitting", "novelty"]
    for record, noise in zip(records, ("gaussian", "uniform")):
        assert record["recipe"]["fields"]["noise"] == noise and len(record["members"]) == 2
        for row in record["members"]:
            curves = row["curves"]
            assert len(curves["sigma"]) == len(curves["ensemble"]) == len(curves["mean"]) == len(curves["each"])
            assert row["gain"] >= 0 and {"base", "pep", "temperature"} <= set(row["scores"])
            assert row["theory"]["fisher"] > 0 > row["theory"]["laplacian"]
    early, late = records[2], records[3]
    assert early["mean"]["gap"] < late["mean"]["gap"] and early["mean"]["gain_val"] <= late["mean"]["gain_val"]
    assert all(0.8 < f["auroc"] <= 1 for row in records[4]["members"] for f in row["found"].values())
    assert any("left out, for want of --folder with their files: fashion_mnist (Zalando" in line for line in lines)


def test_unknown_sets_are_refused(tmp_path):
    with pytest.raises(ValueError, match="the study pep has no set 'resnet'"):
        pep.run(studies.Options(tmp_path, sets=("resnet",)), print)


def test_options_cut_data():
    data = pep.datasets.load("wine").train
    assert studies.Options(None, examples=7).cut(data).n == 7
    assert studies.Options(None).cut(data) is data and studies.Options(None).cut(data, 5).n == 5
    assert studies.Options(None, examples=7).cut(data, 5).n == 7


TABLE = (
    "members=3",
    "ensemble=2",
    "draws=4",
    "epochs=3",
    "probed=2",
    "collected=2",
    "samples=4",
    "probe=1,3",
    "batch=32",
)


def test_a_row_of_the_table_has_all_methods_and_is_not_made_again(tmp_path, monkeypatch):
    said: list[str] = []
    methods = ("baseline", "PEP", "temperature", "deep ensemble", "probe")
    options = studies.Options(tmp_path, device="cpu", examples=100, preset="digits", changes=TABLE, methods=methods)
    records = pep.run(options, said.append)
    assert [(r["kind"], r["method"]) for r in records] == [
        *(("table", name) for name in methods[:-1]), ("probe", "1"), ("probe", "3"), ("examples", "PEP"),
    ]  # fmt: skip
    plain, _, cool, mixed = records[:4]
    assert [r["n"] for r in records[:4]] == [3, 3, 3, 4] and all(len(r["sd"]) == 4 for r in records[:4])
    assert cool["mean"]["error"] == plain["mean"]["error"] and mixed["mean"]["nll"] < plain["mean"]["nll"]
    for record in records[4:6]:
        assert len(record["members"]) == 2
        for row in record["members"]:
            assert row["fisher"] > 0 and row["overfitting"] == pytest.approx(row["test"] - row["train"])
    examples = records[-1]
    assert (
        examples["n"] == 100
        and len(examples["most"]) == 10
        and examples["most"][0]["effect"] >= examples["quantiles"][-1]
    )
    assert examples["corrected"] + examples["broken"] <= 100
    monkeypatch.setattr(pep.table, "fit", None)
    assert pep.run(options, said.append) == records and read_records(tmp_path / "pep.jsonl") == records


def test_the_papers_rows_are_known_and_wrong_ones_refused(tmp_path):
    assert pep.table.published("cifar10-cnn", "deep ensemble") == {
        "nll": 0.709, "brier": 0.335, "ece": 8.867, "error": 22.88,
    }  # fmt: skip
    for preset, setting in pep.table.PRESETS.items():  # the weights that get noise are there
        params = dict(pep.table.NETWORKS[setting.network]().named_parameters())
        assert all(params[name].dim() > 1 for name in setting.where), preset
    with pytest.raises(ValueError, match="no preset 'mnist'"):
        pep.run(studies.Options(tmp_path, preset="mnist"), print)
    with pytest.raises(ValueError, match="mnist-mlp needs the files of mnist: give --folder"):
        pep.run(studies.Options(tmp_path, preset="mnist-mlp"), print)
    with pytest.raises(ValueError, match="ensembles of 10 are drawn out of 4 members"):
        pep.run(studies.Options(tmp_path, preset="digits", changes=("members=4",)), print)
    with pytest.raises(ValueError, match="give --preset, mnist-mlp say"):
        pep.run(studies.Options(tmp_path, changes=("members=4",)), print)
