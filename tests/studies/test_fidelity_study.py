"""The study of fidelity, made small: its records, and what a perfect answer would be."""

import json

import basinet as bn
from basinet.studies import Options, fidelity


def test_the_study_writes_a_record_for_each_method(tmp_path, monkeypatch):
    monkeypatch.setattr(fidelity, "REFERENCE", bn.HMC(base=bn.MAP(epochs=50), steps=200, warmup=100, draws=8))
    for name, value in (("CHAINS", 2), ("MEMBERS", 2)):
        monkeypatch.setattr(fidelity, name, value)
    said: list[str] = []
    options = Options(tmp_path, device="cpu", examples=60, methods=("MAP",))
    records = fidelity.run(options, said.append)
    assert [r["method"] for r in records] == ["half of the chains", "MAP", "deep ensemble"]
    written = [json.loads(line) for line in (tmp_path / "fidelity.jsonl").read_text().splitlines()]
    assert [r["total_variation"] for r in written] == [r["total_variation"] for r in records]
    for record in records:
        assert 0.3 < record["agreement"] <= 1 and 0 < record["total_variation"] < 0.7
    assert said[0].startswith("reference: 2 chains of 8 draws.") and "concrete left out" in said[-1]
