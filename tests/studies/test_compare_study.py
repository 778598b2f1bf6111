"""The study of comparisons runs, small, and its records say who won; its generated tables are as stated."""

from __future__ import annotations

import csv

import pytest

import studies
from basinet.pool import read_records
from basinet.report import read_run
from studies import compare


@pytest.mark.slow
def test_the_study_leaves_a_record_for_every_row_and_makes_none_twice(tmp_path, monkeypatch):
    monkeypatch.setattr(compare, "ROWS", ("MAP",))
    monkeypatch.setattr(compare, "MEMBERS", 2)
    monkeypatch.setattr(compare, "SYNTHETIC_ROWS", 60)
    lines: list[str] = []
    options = studies.Options(tmp_path, device="cpu", sets=("weather", "uci_yacht"), examples=20)
    records = compare.run(options, lines.append)
    assert read_records(tmp_path / "compare.jsonl") == records
    assert [(r["data"], r["method"], r["members"]) for r in records] == [
        ("weather", "MAP", 1),
        ("weather", "deep ensemble", 2),
    ]
    for r in records:
        assert (r["n"], r["n_train"], r["seeds"]) == (12, 20, 2) and "nll_se" not in r and 0 <= r["accuracy"] <= 1
    assert "left out, for want of --folder with their files: uci_yacht" in lines
    assert lines[-1].startswith("weather") and "n 12, 2 seeds" in lines[-1]
    assert read_run(tmp_path / "weather").finished  # a run folder that a report can be made of
    assert compare.run(options, lines.append) == records == read_records(tmp_path / "compare.jsonl")
    tempered = options._replace(sets=("weather",), methods=("MAP", "tempered MAP"))
    rows = ["MAP", "deep ensemble", "tempered MAP", "tempered deep ensemble"]
    assert [r["method"] for r in compare.run(tempered, lines.append)] == rows
    assert [r["method"] for r in compare.run(tempered, lines.append)] == rows  # none twice
    with pytest.raises(ValueError, match=r"the study compare has no set 'wether'\. Did you mean 'weather'"):
        compare.run(studies.Options(tmp_path, sets=("wether",)), lines.append)


def test_the_table_says_who_won_and_who_do_not_differ_significantly():
    row = {"data": "x", "n": 50, "seeds": 2}
    records = [
        row | {"method": "MAP", "nll": 1.2, "low": 0.1},
        row | {"method": "A", "nll": 1.0, "low": 0.0},
        row | {"method": "B", "nll": 1.1, "low": -0.1},
    ]
    [line] = compare.table(records)
    assert line.split() == [
        "x",
        "n",
        "50,",
        "2",
        "seeds:",
        "A",
        "1.000;",
        "not",
        "significantly",
        "different:",
        "B;",
        "MAP",
        "1.200",
    ]
    [line] = compare.table([r for r in records if r["method"] != "B"])
    assert "all others are significantly worse" in line


def test_generated_tables_are_the_same_each_time_and_have_their_targets(tmp_path):
    for name, target in compare.SYNTHETIC.items():
        first, again = (compare.synthetic(name, tmp_path / "new" / f"{k}.csv").read_text() for k in "ab")
        assert first == again
        rows = list(csv.DictReader(first.splitlines()))
        assert len(rows) == compare.SYNTHETIC_ROWS and {*target.split(",")} <= {*rows[0]}
    assert not any(float(r["wind"]) and float(r["fog"]) for r in rows)
