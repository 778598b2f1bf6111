"""Rows of a comparison that sample: their record says how chains mixed, and the report draws it."""

from __future__ import annotations

import basinet as bn
from basinet.compare.chains import unmixed
from basinet.engine.method import Entry
from basinet.report import read_run
from basinet.report.chains import chains
from basinet.report.summary import summary


def test_records_say_how_chains_mixed(tmp_path):
    base = bn.MAP(epochs=20)
    rows = [
        Entry("MCLMC", bn.MCLMC(base=base, steps=200, warmup=100, draws=10), 2),
        Entry("SGLD", bn.SGLD(epochs=20, draws=4), 2),
        Entry("MAP", base, 1),
    ]
    problem = bn.Problem(lambda: bn.networks.MLP(13, 3, hidden=(4,)), bn.likelihoods.Categorical())
    engine = bn.Engine(device="cpu", progress=False, compile=False)
    comparison = bn.compare("wine", rows, problem=problem, out=tmp_path, engine=engine, say=lambda line: None)
    run = read_run(tmp_path)
    by_row = {row.name: row.records[0].get("chains") for row in run.rows}
    assert by_row["MAP"] is None and by_row["MCLMC"]["rows"][0]["name"] == "loss" and by_row["SGLD"]["verdict"]
    figure = chains(run)
    assert figure is not None and {view.name.partition(":")[0] for view in figure.views} == {"MCLMC", "SGLD"}
    assert by_row["SGLD"]["converged"] is False  # forty steps
    assert "Chains had not converged" in comparison.warning and "SGLD" in str(comparison)
    answer = dict(summary(run))["Did the chains sample?"]
    assert answer.startswith("NO. The chains of") and "SGLD" in answer


def test_rows_that_converged_or_do_not_say_are_left_out():
    row = {"name": "loss", "rhat": 1.5}
    assert unmixed([{"method": "a", "chains": {"converged": True, "rows": [row]}}, {"method": "b"}]) == ""
    assert unmixed([{"method": "old", "chains": {"rows": [row]}}]) == ""
    line = unmixed([{"method": "c", "chains": {"converged": False, "rows": [row, {"name": "x", "rhat": None}]}}])
    assert line.startswith("Chains had not converged (R-hat up to 1.50) for c:")
