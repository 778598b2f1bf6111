"""The study of local posteriors around the members of an ensemble, made small."""

import pytest
import torch

import basinet as bn
from basinet.methods import laplace
from basinet.pool import read_records
from basinet.studies import Options, local

METHODS = [
    "deep ensemble",
    "temperature",
    "PEP",
    "SWA",
    "SWAG",
    "Laplace, last layer, full",
    "Laplace, last layer, Kronecker",
    "Laplace, all layers, Kronecker",
]


@pytest.fixture
def small(monkeypatch):
    for name, value in (("MEMBERS", 3), ("SUBSETS", 3), ("HIDDEN", (12,)), ("RATES", (0.01, 0.1))):
        monkeypatch.setattr(local, name, value)
    monkeypatch.setattr(local, "EPOCHS", {"digits": 5, "fashion_mnist": 5})
    monkeypatch.setattr(laplace, "FACTORS", [1.0, 100.0])


def test_every_method_has_a_curve_beside_the_same_members_as_they_were(small, tmp_path):
    said: list[str] = []
    options = Options(tmp_path, device="cpu", examples=100)
    records = local.run(options, said.append)
    assert [r["method"] for r in records] == METHODS and read_records(tmp_path / "local.jsonl") == records
    assert any("fashion_mnist left out: give --folder" in line for line in said)
    for r in records:
        assert r["n_train"] == r["n_test"] == 100 and [row["size"] for row in r["curve"]] == [1, 2, 3]
        assert all(row["low"] <= row["over_ensemble"] <= row["high"] for row in r["curve"])
        base = records[0]["curve"]
        for row, plain in zip(r["curve"][::2], base[::2]):  # sizes of which all subsets are taken
            assert row["over_ensemble"] == pytest.approx(row["nll"] - plain["nll"], abs=1e-5)
        for what in ("temperature", "sigma", "prior_factor"):
            assert len(r["chosen"].get(what, [0, 0, 0])) == 3
    at = local._Set.load("digits", options)
    maps, last = at.maps(), records[0]["curve"][-1]
    assert last["nll"] == pytest.approx(bn.score(maps, at.test)["nll"], rel=1e-4)
    rows = local._logs(at, at.member_probs(maps, at.test.inputs))
    assert float(-rows[3].mean()) == pytest.approx(last["nll"], rel=1e-4)
    assert local.run(options, said.append) == records  # not made again


def test_subsets_are_members_without_repeats(small):
    at = local._Set.load("digits", Options(None, device="cpu", examples=20))
    assert [c.tolist() for c in at.subsets(1)] == [[0], [1], [2]] and [len(c) for c in at.subsets(3)] == [3]
    pairs = at.subsets(2)
    assert len(pairs) == 3 and all(len(torch.unique(c)) == 2 for c in pairs)
    assert all(torch.equal(a, b) for a, b in zip(pairs, at.subsets(2)))


def test_unknown_sets_are_told(tmp_path):
    with pytest.raises(ValueError, match="the study local has no set 'digit'"):
        local.run(Options(tmp_path, sets=("digit",)), print)
