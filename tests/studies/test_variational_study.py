"""The study of variational methods: records of every row, nothing made twice, a table with paired differences."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from basinet import studies
from basinet.pool import read_records
from basinet.studies import variational


@pytest.fixture
def brief(monkeypatch):
    rows = {n: r._replace(recipe=replace(r.recipe, epochs=1)) for n, r in variational.ROWS.items()}
    monkeypatch.setattr(variational, "ROWS", rows)


def write_set(folder):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(40, 3))
    order = np.stack([rng.permutation(40) for _ in range(20)])
    np.savez(folder / "uci_yacht.npz", X=x, y=x.sum(1) + rng.normal(size=40), train=order[:, :36], test=order[:, 36:],
             ref_test_mc_rmse=np.full(20, 0.5), ref_test_ll=np.full(20, -1.5))  # fmt: skip


def test_every_row_leaves_a_record_once_and_is_compared_with_map(tmp_path, brief):
    write_set(tmp_path)
    options = studies.Options(tmp_path / "out", folder=tmp_path, sets=("yacht",), splits=1)
    lines: list[str] = []
    records = variational.run(options, lines.append)
    assert {r["method"] for r in records} == set(variational.ROWS)
    by_name = {r["method"]: r for r in records}
    assert by_name["deep ensemble"]["members"] == 5 and by_name["MC dropout"]["members"] == 1
    assert by_name["MC dropout"]["chosen"]["rate"] in variational.RATES
    assert by_name["MC dropout"]["reference"] == {"rmse": 0.5, "ll": -1.5}
    assert by_name["deep ensemble"]["steps"] == 5 * by_name["MAP"]["steps"]
    table = [line for line in lines if line.startswith("yacht")]
    assert len(table) == len(variational.ROWS) + 1 and "as published" in table[-1]
    again: list[str] = []
    variational.run(options, again.append)
    assert len(read_records(tmp_path / "out" / "variational.jsonl")) == len(records)
    assert [line for line in again if line.startswith("yacht")] == table


def test_sets_without_files_are_left_out_and_unknown_rows_refused(tmp_path, brief):
    lines: list[str] = []
    options = studies.Options(tmp_path, sets=("yacht",))
    assert variational.run(options, lines.append) == []
    assert "left out, for want of --folder with its file: yacht" in lines
    with pytest.raises(ValueError, match="no row 'MAPP'"):
        variational.run(options._replace(methods=("MAPP",)), lines.append)
