"""The study of classes: resumption, and what is in the records."""

import pytest

import studies
from basinet.methods.map import MAP
from basinet.pool import read_records
from studies import classes


def run(out, said=None, **options):
    given = studies.Options(out=out, device="cpu", sets=("wine",), **options)
    return classes.run(given, lambda line: None if said is None else said.append(line))


@pytest.fixture
def short(monkeypatch):
    monkeypatch.setattr(classes, "MAP", lambda epochs=2: MAP(epochs=min(epochs, 3)))
    monkeypatch.setattr(classes, "OURS", {"MAP": 1, "MAP for 1000 steps": 1})


def test_every_method_has_a_record_and_a_stopped_run_goes_on(short, tmp_path):
    methods = ("MAP", "MAP for 1000 steps", classes.BOOSTING)
    first = run(tmp_path, methods=methods[:2])
    assert [(r["method"], r["members"]) for r in first] == [("MAP", 1), ("MAP for 1000 steps", 1)]
    said = []
    whole = run(tmp_path, said, methods=methods)
    assert whole[:2] == first and read_records(tmp_path / "classes.jsonl") == whole
    assert said[0].startswith("wine, split 0, scikit-learn boosting: nll ") and "default" not in whole[2]
    assert all(0 < r["scores"]["accuracy"] <= 1 and r["cpu_seconds"] > 0 for r in whole)
    assert first[0]["default"] == first[1]["default"] and first[0]["recipe"] != first[1]["recipe"]


def test_records_of_another_default_are_made_again(short, tmp_path, monkeypatch):
    before = run(tmp_path, methods=("MAP",))
    monkeypatch.setattr(classes, "_version", lambda splits: "another")
    after = run(tmp_path, methods=("MAP",))
    assert before[0]["default"] != after[0]["default"] == "another"


def test_the_default_before_had_a_thousand_steps_for_any_data():
    for n in (150, 5000, 60_000):
        steps = classes._recipe("MAP for 1000 steps", n).schedule(n).steps
        assert steps == pytest.approx(1000, rel=0.25)
    assert classes._recipe("deep ensemble", 150) == MAP()


def test_what_is_not_known_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the study classes has no method 'MAPS'\."):
        run(tmp_path, methods=("MAPS",))
