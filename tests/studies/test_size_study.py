"""`basinet study size`: curves of all sizes, and the error that theory expects of them."""

from __future__ import annotations

import pytest

import basinet as bn
from studies import Options, size


def test_the_error_of_ensembles_is_that_of_theory(tmp_path, monkeypatch):
    monkeypatch.setattr(size, "MEMBERS", 3)
    monkeypatch.setattr(size, "MAP", lambda epochs: bn.MAP(epochs=epochs // 25))
    digits, gaps = size.run(Options(tmp_path, examples=20), lambda line: None)
    assert [row["size"] for row in digits["curve"]] == [1, 2, 3]
    for part in gaps["identity"].values():
        for row in part["rows"][:2]:  # of one and two members, drawn 1,000 times
            assert abs(row["measured"] - row["theory"]) < 4.5 * row["se"]
        whole = part["rows"][-1]  # all three, whichever were asked for
        assert whole["measured"] == pytest.approx((part["v"] + 2 * part["c"]) / 3, rel=1e-9)
