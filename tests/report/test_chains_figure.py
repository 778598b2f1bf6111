"""The figure of chains in a report, and what it makes of records that were altered."""

from __future__ import annotations

import json

import pytest
import torch
from altered import VALUES
from runs import make_run

from basinet.diagnostics import autocorrelation, rank_counts
from basinet.report import read_run
from basinet.report.chains import chains
from basinet.report.page import make_page


def chains_record():
    draws = torch.randn(3, 40, generator=torch.Generator().manual_seed(0))
    shown = {
        "every": 2,
        "trace": draws[:, ::2].tolist(),
        "ranks": rank_counts(draws).tolist(),
        "autocorrelation": autocorrelation(draws).tolist(),
    }
    row = {"name": "loss", "mean": 0.1, "sd": 1.0, "mcse": 0.05, "rhat": 1.004, "bulk": 90.0, "tail": 70.0}
    still = row | {"name": "prediction 3", "rhat": None}
    return {"verdict": "Trust them.", "rows": [row, still], "shown": {"loss": shown, "prediction 3": shown}}


def with_chains(folder, record):
    """A run whose first row has this for its chains."""
    make_run(folder)
    path = folder / "records.jsonl"
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps(json.loads(first) | {"chains": record}), *rest]) + "\n")
    return read_run(folder)


def test_traces_ranks_and_autocorrelations_of_each_quantity(tmp_path):
    run = with_chains(tmp_path, chains_record())
    figure = chains(run)
    assert figure is not None
    loss, still = figure.views
    assert loss.name == "MAP: loss" and [len(panel.series) for panel in loss.panels] == [3, 3, 4]
    trace, ranks, later = (panel.series[0] for panel in loss.panels)
    assert list(trace.x)[:3] == [0, 2, 4] and len(ranks.x) == 21 and later.y[0] == 1
    assert "R-hat 1.004" in loss.note and loss.note.endswith("Trust them.") and "R-hat infinite" in still.note
    assert "Did the chains sample?" in make_page(run)


def test_a_run_without_chains_has_no_such_figure(tmp_path):
    make_run(tmp_path)
    assert chains(read_run(tmp_path)) is None


@pytest.mark.parametrize("part", ["verdict", "rows", "shown", "every", "trace", "ranks", "autocorrelation", "all"])
def test_whatever_is_not_a_number_is_left_out(tmp_path, part):
    for i, value in enumerate(VALUES):
        record = chains_record()
        if part in record:
            record[part] = value
        elif part != "all":
            record["shown"]["loss"] |= {part: value}
        run = with_chains(tmp_path / str(i), value if part == "all" else record)
        figure = chains(run)
        assert figure is None or all(len(view.panels) == 3 for view in figure.views)
