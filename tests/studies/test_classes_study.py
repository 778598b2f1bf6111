"""The study of classes: resumption, and what is in the records."""

import numpy as np
import pytest

import studies
from basinet.methods.map import MAP
from basinet.pool import read_records
from studies import classes


def run(out, said=None, sets=("wine",), **options):
    given = studies.Options(out=out, device="cpu", sets=sets, **options)
    return classes.run(given, lambda line: None if said is None else said.append(line))


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(classes, "MAP", lambda: MAP(epochs=3))
    monkeypatch.setattr(classes, "OURS", {"MAP": 1, "deep ensemble": 2})
    monkeypatch.setattr(classes.choice, "STEPS", 5)


def test_every_method_has_a_record_and_a_stopped_run_resumes(short, tmp_path):
    first = run(tmp_path, methods=("MAP", "deep ensemble"))
    assert [(r["method"], r["members"]) for r in first] == [("MAP", 1), ("deep ensemble", 2)]
    said = []
    whole = run(tmp_path, said, methods=classes.METHODS)
    assert whole[:2] == first and read_records(tmp_path / "classes.jsonl") == whole
    assert said[0].startswith("wine, split 0, linear: nll ") and "default" not in whole[2]
    assert all(0 < r["scores"]["accuracy"] <= 1 and r["cpu_seconds"] > 0 for r in whole)
    assert first[0]["default"] == first[1]["default"] and "network" in first[0]["chosen"]


def test_records_of_another_default_are_made_again(short, tmp_path, monkeypatch):
    before = run(tmp_path, methods=("MAP",))
    monkeypatch.setattr(classes, "version", lambda splits: "another")
    after = run(tmp_path, methods=("MAP",))
    assert before[0]["default"] != after[0]["default"] == "another"


def test_numbers_are_cut_into_classes_of_equal_size(short, tmp_path):
    rng = np.random.default_rng(0)
    rows = np.arange(120)
    arrays = {
        "X": rng.normal(size=(120, 2)),
        "y": rng.normal(size=120),
        "train": rows[None, :100],
        "test": rows[None, 100:],
    }
    np.savez(tmp_path / "uci_boston.npz", **arrays, ref_test_mc_rmse=np.ones(1), ref_test_ll=np.ones(1))
    options = studies.Options(out=tmp_path, folder=tmp_path)
    splits = classes._splits("boston in 4", 0, options)
    assert (splits.train.n, splits.val.n, splits.test.n, splits.classes) == (85, 15, 20, 4)
    assert sorted(splits.train.targets.bincount().tolist()) == [21, 21, 21, 22]
    with pytest.raises(ValueError, match="the set boston in 4 is read from files: give --folder"):
        run(tmp_path, sets=("boston in 4",))


def test_what_is_not_known_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the study classes has no method 'MAPS'\."):
        run(tmp_path, methods=("MAPS",))
