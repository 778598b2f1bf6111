"""The study of SWAG, made small: its records, and that it resumes from its pool."""

import json

import pytest

from studies import Options, swag


@pytest.mark.slow
def test_the_study_writes_one_record_per_method_with_size_curves(tmp_path, monkeypatch):
    for name, value in (("MEMBERS", 2), ("SIZES", (1, 2)), ("RATES", (0.01, 0.1))):
        monkeypatch.setattr(swag, name, value)
    said: list[str] = []
    records = swag.run(Options(tmp_path, device="cpu", examples=200), said.append)
    assert [r["method"] for r in records] == ["MAP", "MAP longer", "SWA", "SWAG"]
    written = [json.loads(line) for line in (tmp_path / "swag.jsonl").read_text().splitlines()]
    assert [r["curve"] for r in written] == [r["curve"] for r in records]
    for record in records:
        assert record["n_train"] == 200 and [row["size"] for row in record["curve"]] == [1, 2]
        assert 0 < record["curve"][1]["nll"] < record["curve"][0]["nll"] < 2.3
    chosen = records[3]["val_nll_of_rates"]
    assert set(chosen) == {"0.01", "0.1"} and f"step size {min(chosen, key=chosen.get)}," in said[0]
    assert any("fashion_mnist left out" in line for line in said)
    again = swag.run(Options(tmp_path, device="cpu", examples=200), said.append)
    assert [r["curve"] for r in again] == [r["curve"] for r in records]


def test_no_examples_at_all_are_refused(tmp_path):
    with pytest.raises(ValueError, match="expected at least 1 example, got 0"):
        Options(tmp_path, examples=0).load("digits")
