"""The study of tables: units, resumption, and what is in the records."""

from types import SimpleNamespace

import numpy as np
import pytest

import studies
from basinet.methods.batch_ensemble import BatchEnsemble
from basinet.methods.map import MAP
from basinet.pool import read_records
from studies import tables


def run(out, said=None, **options):
    options = studies.Options(out=out, folder=out, device="cpu", sets=("linear",), **options)
    return tables.run(options, lambda line: None if said is None else said.append(line))


@pytest.fixture
def short(monkeypatch):
    """Few rows and steps."""
    monkeypatch.setattr(tables, "MAP", lambda: MAP(epochs=3))
    monkeypatch.setattr(tables, "BatchEnsemble", lambda: BatchEnsemble(epochs=3, count=3))
    monkeypatch.setattr(tables, "MEMBERS", 2)
    rows = tables.Rows(*(np.asarray(x) for x in tables._synthetic(80, 3, lambda x, e: 5 + 3 * x[:, 0] + 0.1 * e, 0)))
    monkeypatch.setitem(tables.UNPUBLISHED, "linear", lambda split: rows)


def test_every_method_has_a_record_and_a_stopped_run_resumes(short, tmp_path):
    methods = ("MAP", "deep ensemble", "TabM-like", "scikit-learn boosting")
    first = run(tmp_path, methods=methods[:3])
    assert [(r["method"], r["members"], len(r["noise_factors"])) for r in first] == [
        ("MAP", 1, 1),
        ("deep ensemble", 2, 2),
        ("TabM-like", 1, 3),
    ]
    said = []
    whole = run(tmp_path, said, methods=methods)
    assert whole[:3] == first and read_records(tmp_path / "tables.jsonl") == whole
    assert said[0].startswith("linear, split 0, scikit-learn boosting: rmse ") and said[-1].startswith(
        "+ a set on whose first split"
    )
    assert all(0.01 < r["spread"] < 100 and r["chosen"] == first[0]["chosen"] for r in first)
    assert {r["n_train"] for r in whole} == {61, 72} and {r["n_test"] for r in whole} == {8}
    assert all(0.01 < r["scores"]["rmse"] < 2 and r["cpu_seconds"] > 0 for r in whole)  # in units of the target


def test_other_networks_are_fitted_once_and_their_spread_is_that_of_rows_they_stop_by(short, tmp_path, monkeypatch):
    fits = []

    class Middle:
        """Predicts the mean of the rows that do not say when to stop."""

        def fit(self, inputs, targets, val_idxs):
            fits.append((targets, val_idxs))
            self.middle = np.delete(targets, val_idxs).mean()
            return self

        def predict(self, inputs):
            return np.full(len(inputs), self.middle)

    package = SimpleNamespace(TabM_D_Regressor=lambda **given: Middle())
    monkeypatch.setattr(tables, "import_module", lambda name: package)
    [record] = run(tmp_path, methods=("TabM",))
    [(targets, held)] = fits
    residuals = targets[held] - np.delete(targets, held).mean()
    assert len(targets) == 72 and len(held) == 15
    assert record["residual_sd"] == pytest.approx(np.sqrt(np.mean(residuals**2)))


def test_what_is_not_known_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"the study tables has no method 'MAPS'\."):
        run(tmp_path, methods=("MAPS",))
    with pytest.raises(ValueError, match="give --folder"):
        tables.run(studies.Options(out=tmp_path), print)


def test_records_of_another_default_are_made_again_and_those_of_others_kept(short, tmp_path, monkeypatch):
    methods = ("MAP", "scikit-learn boosting")
    before = run(tmp_path, methods=methods)
    assert before[0]["default"] == tables.version() and "default" not in before[1]
    monkeypatch.setattr(tables, "version", lambda: "another")
    after = run(tmp_path, methods=methods)
    assert after[0]["default"] == "another" and after[1] == before[1]
    assert len(read_records(tmp_path / "tables.jsonl")) == 3


@pytest.mark.parametrize("change", ["tables.MEMBERS", "choice.STEPS", "choice.Z_NOISE", "MAP"])
def test_the_version_of_the_default_distinguishes_defaults(change, monkeypatch):
    before = tables.version()
    assert before == tables.version()
    room, _, name = change.rpartition(".")
    place = tables.choice if room == "choice" else tables
    monkeypatch.setattr(place, name, (lambda: MAP(epochs=4)) if name == "MAP" else 7)
    assert tables.version() != before
