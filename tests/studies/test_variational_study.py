"""The study of variational methods: records of every row, nothing made twice, a table with paired differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import studies
from basinet import MAP, FlowVI, Laplace
from basinet.pool import read_records
from studies import variational


def short(recipe):
    base = {"base": Laplace(base=MAP(epochs=1), structure="full")} if isinstance(recipe, FlowVI) else {}
    return replace(recipe, epochs=1, **base)


@pytest.fixture
def brief(monkeypatch):
    rows = {n: r._replace(recipe=short(r.recipe)) for n, r in variational.ROWS.items()}
    monkeypatch.setattr(variational, "ROWS", rows)


def write_set(folder):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    order = np.stack([rng.permutation(40) for _ in range(20)])
    np.savez(folder / "uci_yacht.npz", X=x, y=x.sum(1) + rng.normal(size=40), train=order[:, :36], test=order[:, 36:],
             ref_test_mc_rmse=np.full(20, 0.5), ref_test_ll=np.full(20, -1.5))  # fmt: skip


@pytest.fixture
def in_this_process(monkeypatch):
    monkeypatch.setattr(variational, "_done", lambda jobs: map(variational.evaluate, jobs))


@pytest.mark.slow
def test_every_row_leaves_a_record_once_and_is_compared_with_map(tmp_path, brief, in_this_process):
    write_set(tmp_path)
    options = studies.Options(tmp_path / "out", folder=tmp_path, sets=("yacht",), splits=1)
    lines: list[str] = []
    records = variational.run(options, lines.append)
    by_name = {r["method"]: r for r in records}
    assert list(by_name) == list(variational._rows()) and len(records) == len(by_name)
    dropout = by_name["MC dropout, one of five rates"]
    assert by_name["deep ensemble"]["members"] == 5 and dropout["members"] == 1
    assert dropout["chosen"]["rate"] in variational.RATES and dropout["reference"] == {"rmse": 0.5, "ll": -1.5}
    assert by_name["deep ensemble"]["steps"] == dropout["steps"] == 5 * by_name["MAP"]["steps"]
    assert by_name["LA-NF"]["steps"] == 2 * by_name["MAP"]["steps"]
    table = [line for line in lines if line.startswith("yacht")]
    assert len(table) == len(records) + 1 and "as published" in table[-1]
    again: list[str] = []
    variational.run(options, again.append)
    assert len(read_records(tmp_path / "out" / "variational.jsonl")) == len(records)
    assert [line for line in again if line.startswith("yacht")] == table


def test_later_splits_have_one_member_and_only_what_is_missing_is_made(tmp_path, brief, in_this_process, monkeypatch):
    write_set(tmp_path)
    monkeypatch.setattr(variational, "FEW", 1)
    options = studies.Options(tmp_path, folder=tmp_path, sets=("yacht",), splits=2, methods=("MAP", "IVON"))
    records = {(r["split"], r["method"]): r for r in variational.run(options, print)}
    assert [*records] == [(0, "MAP"), (0, "deep ensemble"), (0, "IVON"), (0, "IVON x5"), (1, "MAP"),
                          (1, "deep ensemble"), (1, "IVON")]  # fmt: skip
    path = tmp_path / "variational.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(lines[:3]) + "\n")  # as if it was stopped between the records of one fit
    again = {(r["split"], r["method"]): r for r in variational.run(options, print)}
    assert len(read_records(path)) == 7 and {k: r["ll"] for k, r in again.items()} == {
        k: r["ll"] for k, r in records.items()
    }


def test_the_summary_counts_sets_by_paired_differences():
    def record(data, split, method, ll):
        return {"data": data, "split": split, "method": method, "ll": ll}

    records = [record(d, s, "MAP", -s) for d in ("a", "b", "c") for s in range(4)]
    for split, nudge in enumerate((0.0, 0.1, -0.1, 0.0)):
        records.append(record("a", split, "IVON", 1 - split + nudge))
        records.append(record("b", split, "IVON", -1 - split + nudge))
        records.append(record("c", split, "IVON", -split + nudge))
        records.append(record("a", split, "IVON x5", 5.0))  # there is no deep ensemble: nothing to say
    assert [*variational.summary(records)] == [
        "IVON: log likelihood above that of MAP on 1 of 3 sets (a), below on 1, within two standard errors on 1"
    ]


def test_sets_without_files_are_left_out_and_unknown_rows_refused(tmp_path, brief):
    lines: list[str] = []
    options = studies.Options(tmp_path, sets=("yacht",))
    with pytest.raises(ValueError, match="nothing to do, for want of --folder with their files: yacht"):
        variational.run(options, lines.append)
    with pytest.raises(ValueError, match="no row 'MAPP'"):
        variational.run(options._replace(methods=("MAPP",)), lines.append)
