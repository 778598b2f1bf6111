"""The study of online methods runs, small."""

from __future__ import annotations

import pytest

import studies
from basinet.pool import read_records
from studies import online


def test_the_study_leaves_a_record_for_every_method(tmp_path, monkeypatch):
    monkeypatch.setattr(online, "EVERY", 3)
    lines: list[str] = []
    options = studies.Options(tmp_path, examples=60, splits=1, sets=("changes",), methods=("EKF", "run lengths"))
    records = online.run(options, lines.append)
    options = options._replace(sets=("hourly",), examples=260, methods=("linear Kalman",))
    records += online.run(options, lines.append)
    assert read_records(tmp_path / "online.jsonl") == records and len(lines) == len(records) == 3
    assert [r["method"] for r in records] == ["EKF", "run lengths", "linear Kalman"]
    assert len(records[0]["curve"]) == 6 and records[1]["bytes"] > records[0]["bytes"]
    assert 0.5 < records[2]["coverage"] <= 1 and records[2]["skipped"] > 0
    with pytest.raises(ValueError, match="unknown data set 'digit'"):
        online.run(studies.Options(tmp_path, sets=("digit",)), lines.append)


@pytest.mark.slow
def test_a_change_of_the_noise_raises_the_alarm(tmp_path):
    [still, _, loud] = online.run(studies.Options(tmp_path, splits=1, sets=("alarm",)), lambda line: None)
    assert still["found_in_60_batches"] == 0 and loud["found_in_60_batches"] == 1 and loud["median_delay"] < 20
