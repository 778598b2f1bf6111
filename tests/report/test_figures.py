"""Figures hold what the arrays say, and every kind of run has the ones it should."""

import numpy as np
import pytest
from runs import METHODS, make_run, older

from basinet.report import read_run, write_figures
from basinet.report.figures import chosen, figures
from basinet.report.pictures import ACROSS, _placed

ALWAYS = {"differences", "cost", "size", "risk", "split", "ood", "shift", "sets", "diagnostics"}


@pytest.mark.parametrize(
    ("kind", "own"), [("classes", {"reliability"}), ("labels", {"reliability"}), ("real", {"intervals", "pit"})]
)
def test_every_kind_has_its_figures(tmp_path, kind, own):
    drawn = figures(read_run(make_run(tmp_path, kind)))
    assert {f.key for f in drawn} == ALWAYS | own
    for figure in drawn:
        assert figure.title and figure.see and figure.read.endswith(".")
        for view in figure.views:
            for panel in view.panels:
                assert panel.series and (panel.x.label or panel.y.label)
                for s in panel.series:
                    assert len(s.x) == len(s.y) and len(s.low) == len(s.high) and len(s.low) in (0, len(s.x))
                    assert s.row or s.tone
                    if panel.y.words:
                        assert set(s.y) <= set(panel.y.words)


def figure_of(folder, key):
    return next(f for f in figures(read_run(folder)) if f.key == key)


def test_an_older_folder_has_those_that_records_allow(tmp_path):
    assert {f.key for f in figures(read_run(older(tmp_path)))} == {"cost", "split"}


def test_differences_are_the_runs(tmp_path):
    run = read_run(make_run(tmp_path))
    [panel] = figure_of(tmp_path, "differences").views[0].panels
    for s in panel.series[1:-1]:
        d = run.differences[s.name]
        assert (s.x[0], s.low[0], s.high[0]) == (d.mean, d.low, d.high)


def test_a_row_that_is_far_off_does_not_set_the_scale(tmp_path):
    make_run(tmp_path, "real", labels=METHODS | {"diverged": (5, 0.7, 2000.0)})  # far too sure: an enormous NLL
    for key in ("differences", "cost", "size"):
        view = figure_of(tmp_path, key).views[0]
        [panel] = view.panels
        axis = panel.x if key == "differences" else panel.y
        assert view.note == "Beyond the scale: diverged."
        for s in panel.series:
            if s.row and s.row != "diverged":
                values = s.x if key == "differences" else s.y
                assert all(axis.span[0] <= v <= axis.span[1] for v in [*values, *s.low, *s.high])
    assert all(v.note == "" for f in figures(read_run(make_run(tmp_path / "b"))) for v in f.views if f.key == "cost")


def test_size_curves_average_seeds(tmp_path):
    run = read_run(make_run(tmp_path, seeds=3))
    view = next(v for v in figure_of(tmp_path, "size").views if v.name == "NLL")
    assert {s.row for s in view.panels[0].series} == {r.name for r in run.rows if r.members > 1}
    for s in view.panels[0].series:
        row = next(r for r in run.rows if r.name == s.row)
        each = [[at["nll"] for at in r["size_curve"]] for r in row.records]
        assert s.x == [1, 2, 3, 4, 5] and s.y == pytest.approx(np.mean(each, axis=0))


def test_pit_shares_sum_to_one_and_intervals_follow(tmp_path):
    run = read_run(make_run(tmp_path, "real"))
    for view, row in zip(figure_of(tmp_path, "pit").views, run.rows):
        assert view.name == row.name and sum(view.panels[0].series[0].y) == pytest.approx(1)
    for s in figure_of(tmp_path, "intervals").views[0].panels[0].series[1:]:
        row = next(r for r in run.rows if r.name == s.row)
        at = s.x.index(0.9)
        assert s.y[at] == pytest.approx(row.value("coverage_90"), abs=1e-6)


def test_risk_at_full_coverage_is_the_score(tmp_path):
    for kind, score in (("classes", lambda r: 1 - r.value("accuracy")), ("real", lambda r: r.value("rmse"))):
        run = read_run(make_run(tmp_path / kind, kind))
        for s in figure_of(tmp_path / kind, "risk").views[0].panels[0].series:
            assert s.y[-1] == pytest.approx(score(next(r for r in run.rows if r.name == s.row)), rel=1e-5)


@pytest.mark.parametrize("kind", ["classes", "real"])
def test_histograms_of_uncertainty_count_everyone(tmp_path, kind):
    run = read_run(make_run(tmp_path, kind))
    for view, row in zip(figure_of(tmp_path, "ood").views[1:], run.rows):
        test, away = view.panels[0].series
        assert sum(test.y) == pytest.approx(1) and sum(away.y) == pytest.approx(1) and test.x == away.x
        values = row.arrays[0]["test_uncertainty"].astype(float)
        values = np.log10(values) if kind == "real" else values
        assert np.dot(test.x, test.y) == pytest.approx(values.mean(), abs=test.width)  # to the width of a bin


def test_the_split_sums_to_the_whole(tmp_path):
    run = read_run(make_run(tmp_path))
    amount, share = (view.panels[0].series for view in figure_of(tmp_path, "split").views)
    assert np.sum([s.x for s in amount], axis=0) == pytest.approx([r.value("entropy") for r in run.rows])
    assert np.sum([s.x for s in share], axis=0) == pytest.approx(np.ones(len(run.rows)))


def test_the_front_is_labelled(tmp_path):
    view = figure_of(make_run(tmp_path), "cost").views[0]
    points = [s for s in view.panels[0].series if s.kind == "points"]
    for s in points:
        beaten = any(o.x[0] <= s.x[0] and o.y[0] < s.y[0] for o in points)
        assert s.labelled == (not beaten)


def test_diagnostics_know_what_curves_are_functions_of(tmp_path):
    views = {v.name: v for v in figure_of(make_run(tmp_path), "diagnostics").views}
    [pep] = views["PEP"].panels
    assert pep.x.label.startswith("size of the noise") and pep.x.log and pep.series[0].x == [0.01, 0.02, 0.05]
    assert pep.series[1].name == "without noise" and pep.series[1].y == pytest.approx([-0.0004, -0.0004])
    assert "0.02" in views["PEP"].note
    assert (
        views["Laplace"].panels == []
        and "Log evidence: -123.4." in views["Laplace"].note
        and "precision: 2/0.5." in views["Laplace"].note
    )
    [loss] = views["deep ensemble"].panels
    assert loss.x.label == "training step" and len(loss.series) == 5


def test_the_best_single_network_is_always_in_colour(tmp_path):
    many = {f"ensemble {i}": (5, 0.1 + 0.01 * i, 1.0) for i in range(9)} | {"MAP": (1, 3.0, 2.0)}
    run = read_run(make_run(tmp_path, labels=many))
    assert run.rows[-1].name == "MAP" and list(chosen(run)) == [*(r.name for r in run.rows[:5]), "MAP"]


@pytest.mark.slow
def test_figures_become_files(tmp_path):
    few = {"MAP": (1, 1.0, 1.5), "costs $1 or $2": (2, 0.7, 1.2)}  # dollars are no mathematics
    make_run(tmp_path / "run", "real", labels=few, seeds=2, inputs="rows")
    written = write_figures(tmp_path / "run", tmp_path / "pictures")
    keys = ALWAYS | {"intervals", "pit"}
    assert {p.name for p in written} == {f"{key}.{form}" for key in keys for form in ("png", "svg")}
    for path in written:
        head = path.read_bytes()[:200]
        assert head.startswith(b"\x89PNG") if path.suffix == ".png" else b"<?xml" in head
    assert sorted((tmp_path / "pictures").iterdir()) == sorted(written)  # nothing half-written lies beside them


def test_panels_of_a_view_stay_on_one_line(tmp_path):
    placed = _placed(figure_of(make_run(tmp_path), "reliability"))
    assert len({at for at, _, _ in placed}) == len(placed) and max(at[1] for at, _, _ in placed) < ACROSS
    for name in {name for _, name, _ in placed}:
        assert len({at[0] for at, other, _ in placed if other == name}) == 1
