"""The study of conformal sets runs, small, and its records say what was promised and what was found."""

from __future__ import annotations

import math

import pytest
import torch

import studies
from basinet.core.noise import Noise
from basinet.pool import read_records
from studies import conformal


def test_the_study_leaves_a_record_for_every_kind_of_set(tmp_path, monkeypatch):
    monkeypatch.setattr(conformal, "MEMBERS", 2)
    monkeypatch.setattr(conformal, "EPOCHS", 10)
    lines: list[str] = []
    options = studies.Options(tmp_path, device="cpu", splits=2, sets=("breast_cancer", "diabetes"))
    records = conformal.run(options, lines.append)
    assert read_records(tmp_path / "conformal.jsonl") == records and len(lines) == len(records)
    kinds = [(r["data"], r["kind"]) for r in records]
    of_classes = ["uncalibrated", "lac, exact", "lac", "aps, exact", "aps", "raps, exact", "raps"]
    assert kinds == [("breast_cancer", k) for k in of_classes] + [
        ("diabetes", k) for k in ("uncalibrated", "scaled", "split", "cqr")
    ]
    for record in records:
        assert len(record["each"]) == record["splits"] == 2
        if record["kind"] == "uncalibrated":
            assert "z" not in record
        else:
            sd = record["sd"]
            assert record["held"] > record["expected"] - 4 * sd and sd < 0.04
            assert record["kind"] in ("lac", "aps", "raps") or record["held"] < record["expected"] + 4 * sd
        assert record["empty"] == 0 or "exact" in record["kind"]
    with pytest.raises(ValueError, match=r"unknown data set 'digit'\. Did you mean 'digits'"):
        conformal.run(studies.Options(tmp_path, sets=("digit",)), lines.append)


def test_the_coverage_to_expect_is_beta_binomial():
    n, m, level = 30, 50, 0.8
    mean, sd = conformal.promised(n, m, level)
    k = math.ceil(31 * 0.8)
    u = Noise.seed(0).uniform(torch.empty(20_000, n + m, dtype=torch.float64))
    held = (u[:, n:] <= u[:, :n].sort(1).values[:, k - 1 : k]).double().mean(1)
    assert abs(float(held.mean()) - mean) < 4 * sd / math.sqrt(20_000)
    assert float(held.std()) == pytest.approx(sd, rel=4 / math.sqrt(2 * 20_000) * 1.5)  # kurtosis near 4
