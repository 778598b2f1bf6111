"""The study of PEP runs, small, and its records hold what the figures need."""

from __future__ import annotations

import pytest

from basinet import studies
from basinet.pool import read_records
from basinet.studies import pep


def test_the_study_leaves_the_records_of_its_three_questions(tmp_path, monkeypatch):
    monkeypatch.setattr(pep, "MEMBERS", 2)
    monkeypatch.setattr(pep, "EPOCHS", {"digits": (1, 40)})
    monkeypatch.setattr(pep, "PROBES", 2)
    lines: list[str] = []
    made = pep.run(studies.Options(tmp_path, device="cpu"), lines.append)
    records = read_records(tmp_path / "pep.jsonl")
    assert records == made
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
    assert any("left out: give --folder" in line for line in lines)


def test_unknown_sets_are_told(tmp_path):
    with pytest.raises(ValueError, match="the study pep has no set 'resnet'"):
        pep.run(studies.Options(tmp_path, sets=("resnet",)), print)


def test_options_cut_data():
    data = pep.datasets.load("wine").train
    assert studies.Options(None, examples=7).cut(data).n == 7
    assert studies.Options(None).cut(data) is data and studies.Options(None).cut(data, 5).n == 5
    assert studies.Options(None, examples=7).cut(data, 5).n == 7
