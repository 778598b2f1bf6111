"""Reading run folders: whole ones, unfinished ones, older ones, damaged ones."""

import json

import numpy as np
import pytest
from runs import METHODS, edit, make_run, older

from basinet.pool import FileError
from basinet.report import read_run


def lines(folder):
    return [json.loads(line) for line in (folder / "records.jsonl").read_text().splitlines()]


def test_a_run_is_read_with_its_best_row_first(tmp_path):
    run = read_run(make_run(tmp_path, seeds=3))
    assert {row.name for row in run.rows} == set(METHODS) and not run.notices
    nll = [row.value("nll") for row in run.rows]
    assert nll == sorted(nll)
    row = run.rows[0]
    own = [r["scores"]["nll"] for r in lines(tmp_path) if r["method"] == row.name]
    assert row.seeds == [0, 1, 2] and row.value("nll") == pytest.approx(np.mean(own))
    assert row.error("nll") == pytest.approx(np.std(own, ddof=1) / np.sqrt(3))
    for seeds in (1, 2):  # two may be close by chance
        assert np.isnan(read_run(make_run(tmp_path / str(seeds), seeds=seeds)).rows[0].error("nll"))


def test_differences_are_means_of_paired_log_likelihoods(tmp_path):
    run = read_run(make_run(tmp_path, seeds=2))
    best = run.rows[0]
    assert list(run.differences) == [row.name for row in run.rows[1:]]
    for row in run.rows[1:]:
        d = run.differences[row.name]
        assert d.mean == pytest.approx(row.value("nll") - best.value("nll"), abs=1e-6)
        assert d.low < d.mean < d.high


def test_rows_are_paired_by_the_seeds_that_both_have(tmp_path):
    make_run(tmp_path, seeds=2)
    kept = [r for r in lines(tmp_path) if not (r["method"] == "MAP" and r["seed"] == 1)]
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in kept))
    run = read_run(tmp_path)
    best, other = run.rows[0], next(row for row in run.rows if row.name == "MAP")
    assert best.seeds == [0, 1] and other.seeds == [0] and run.missing == ["MAP"]
    expected = (best.arrays[0]["log_prob"].astype(float) - other.arrays[0]["log_prob"]).mean()
    assert run.differences["MAP"].mean == pytest.approx(expected, abs=1e-7)


def test_a_row_of_other_examples_is_not_paired(tmp_path):
    make_run(tmp_path)
    path = tmp_path / "arrays" / "MAP-0.npz"
    np.savez(path, **{name: a[:-1] for name, a in np.load(path).items()})
    run = read_run(tmp_path)
    assert "MAP" not in run.differences and len(run.differences) == len(METHODS) - 2


def test_of_equal_rows_the_cheaper_is_first(tmp_path):
    make_run(tmp_path)
    changed = lines(tmp_path)
    for r in changed:
        r["scores"]["nll"] = 0.5
        r["fit_seconds"] = 1.0 if r["method"] == "PEP" else 2.0
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in changed))
    assert read_run(tmp_path).rows[0].name == "PEP"


def test_of_a_row_that_was_run_again_the_last_counts(tmp_path):
    make_run(tmp_path)
    again = lines(tmp_path)[0] | {"fit_seconds": 123.0}
    with open(tmp_path / "records.jsonl", "a") as file:
        file.write(json.dumps(again) + "\n")
    run = read_run(tmp_path)
    assert len(run.rows) == len(METHODS)
    assert next(r for r in run.rows if r.name == again["method"]).value("fit_seconds") == 123.0


def test_ensembles_of_different_size_are_different_rows(tmp_path):
    make_run(tmp_path)
    other = next(r for r in lines(tmp_path) if r["method"] == "deep ensemble") | {"members": 9}
    with open(tmp_path / "records.jsonl", "a") as file:
        file.write(json.dumps(other) + "\n")
    names = {row.name for row in read_run(tmp_path).rows}
    assert {"deep ensemble (5)", "deep ensemble (9)"} <= names and "deep ensemble" not in names


def test_members_that_were_lost_are_reported(tmp_path):
    make_run(tmp_path, seeds=2)
    changed = lines(tmp_path)
    for r, left in zip((r for r in changed if r["method"] == "deep ensemble"), (2, 4)):
        r |= {"members": left, "asked": 5}
    (tmp_path / "records.jsonl").write_text("".join(json.dumps(r) + "\n" for r in changed))
    rows = {row.name: row.members_in_words for row in read_run(tmp_path).rows}
    assert rows["deep ensemble"] == "2 to 4 of 5" and rows["MultiSWAG"] == "5" and len(rows) == len(METHODS)


def test_rows_that_failed_are_not_missing(tmp_path):
    make_run(tmp_path, finished=False)
    edit(tmp_path, failed={"EMA": "the loss became NaN"})
    run = read_run(tmp_path)
    assert "EMA" not in run.missing and "PEP" in run.missing and run.failed == {"EMA": "the loss became NaN"}


def test_an_unfinished_run_knows_what_is_missing(tmp_path):
    run = read_run(make_run(tmp_path, finished=False))
    assert not run.finished and run.missing == list(METHODS)[3:]


def test_an_older_folder_is_read_and_says_so(tmp_path):
    run = read_run(older(tmp_path))
    assert run.kind == "classes" and run.data == "made up" and not run.differences
    assert "older version" in run.notices[0]
    assert read_run(older(tmp_path / "real", "real")).kind == "real"


def test_missing_and_damaged_arrays_become_notices(tmp_path):
    make_run(tmp_path)
    (tmp_path / "arrays" / "MAP-0.npz").unlink()
    damaged = tmp_path / "arrays" / "SWAG-0.npz"
    damaged.write_bytes(damaged.read_bytes()[:500])
    run = read_run(tmp_path)
    assert len(run.rows) == len(METHODS)
    assert any("MAP-0.npz is missing" in n for n in run.notices)
    assert any("SWAG-0.npz is damaged" in n for n in run.notices)


def test_arrays_never_unpickle(tmp_path):
    make_run(tmp_path)
    np.savez(tmp_path / "arrays" / "MAP-0.npz", log_prob=np.array([{}], dtype=object))
    assert any("MAP-0.npz" in n for n in read_run(tmp_path).notices)


def test_rows_of_another_data_set_are_left_out(tmp_path):
    make_run(tmp_path)
    with open(tmp_path / "records.jsonl", "a") as file:
        file.write(json.dumps(lines(tmp_path)[0] | {"data": "iris", "method": "other"}) + "\n")
    run = read_run(tmp_path)
    assert "other" not in {row.name for row in run.rows} and "iris" in run.notices[0]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda f: (f / "run.json").write_text("{"), "run.json: it is damaged"),
        (lambda f: (f / "run.json").write_text("[]"), "no format number"),
        (lambda f: edit(f, format=99), "newer than this basinet reads"),
        (lambda f: (f / "records.jsonl").write_text(""), "no rows yet"),
        (lambda f: (f / "records.jsonl").unlink(), "no records.jsonl"),
        (lambda f: edit(f, data="elsewhere"), "none of its 8 rows is of the data set 'elsewhere'"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name_and_reason(tmp_path, spoil, said):
    make_run(tmp_path)
    spoil(tmp_path)
    with pytest.raises(FileError, match=said):
        read_run(tmp_path)


def test_no_folder():
    with pytest.raises(FileError, match="no such folder"):
        read_run(__import__("pathlib").Path("nowhere"))
