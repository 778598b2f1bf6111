"""The UCI study: units, resumption, and that test rows decide nothing."""

import math

import numpy as np
import pytest
import torch

import studies
from basinet.pool import read_records
from studies import uci


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a set of sixty rows and two splits, and short trainings."""
    monkeypatch.setattr(uci, "SHORT", 2)
    monkeypatch.setattr(uci, "LONG", 12)
    write(tmp_path / "data")
    return tmp_path / "data"


def write(folder, change=lambda y, test: y):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 2))
    x = np.concatenate([x, np.full((60, 1), 3.0)], 1)  # with a constant column
    rows = np.stack([np.arange(60), rng.permutation(60)]).astype(np.uint16)
    y = change(2 * x[:, 0] + 0.1 * rng.normal(size=60), rows[0, 40:])
    folder.mkdir(exist_ok=True)
    names = ("X", "y", "train", "test", "ref_test_mc_rmse", "ref_test_ll")
    values = (x, y, rows[:, :40], rows[:, 40:], [1.0, 2.0], [-1.0, -3.0])
    np.savez(folder / "uci_yacht.npz", **dict(zip(names, values)))


def run(folder, out, said=None, **options):
    options = studies.Options(out=out, folder=folder, device="cpu", sets=("yacht",), **options)
    return uci.run(options, lambda line: None if said is None else said.append(line))


def test_every_split_and_method_has_a_record_and_a_stopped_run_resumes(folder, tmp_path):
    first = run(folder, tmp_path / "out", splits=1, methods=("MAP", "anchored ensemble"))
    assert [(r["split"], r["method"], r["members"]) for r in first] == [(0, "MAP", 1), (0, "anchored ensemble", 5)]
    said = []
    both = run(folder, tmp_path / "out", said)
    assert both[:2] == first  # not made again
    assert len(said[: -len(list(uci.table(both)))]) == len(both) - 2  # one line for each that was made
    assert {(r["split"], r["method"]) for r in both} == {(k, m) for k in (0, 1) for m in uci.METHODS}
    assert read_records(tmp_path / "out" / "uci.jsonl") == both
    whole = run(folder, tmp_path / "whole")
    apart = {(r["split"], r["method"]): r for r in both}
    for r in whole:
        other = apart[r["split"], r["method"]]
        assert r["chosen"] == other["chosen"] and r["recipe"] == other["recipe"]
        assert r["scores"] == pytest.approx(other["scores"], rel=1e-3)  # alone as among others, but for rounding
        assert r["reference"] == {"rmse": (1.0, 2.0)[r["split"]], "ll": (-1.0, -3.0)[r["split"]]}
        assert r["n_train"] == 40 and r["n_test"] == 20 and r["versions"]["torch"]
        assert r["ll"] == -r["scores"]["nll"] and r["rmse"] == r["scores"]["rmse"]


def test_scores_are_in_units_of_the_target(folder, tmp_path):
    plain = run(folder, tmp_path / "plain", splits=1)
    write(folder, lambda y, test: 1000 * y + 5)
    for a, b in zip(plain, run(folder, tmp_path / "scaled", splits=1)):
        assert b["rmse"] == pytest.approx(1000 * a["rmse"], rel=1e-2)  # the fits differ by rounding
        assert b["ll"] == pytest.approx(a["ll"] - math.log(1000), abs=2e-2)
        assert b["scores"]["crps"] == pytest.approx(1000 * a["scores"]["crps"], rel=1e-2)


def test_test_rows_decide_nothing(folder, tmp_path):
    before = run(folder, tmp_path / "before", splits=1)

    def moved(y, test):
        y[test] += 10
        return y

    write(folder, moved)
    for a, b in zip(before, run(folder, tmp_path / "after", splits=1)):
        assert b["rmse"] > a["rmse"] + 5
        assert (a["chosen"], a["scores"]["variance"]) == (b["chosen"], b["scores"]["variance"])


def test_tuning_trains_on_four_fifths_and_the_end_on_all_training_rows(folder, tmp_path, monkeypatch):
    fits, fit = [], uci.fit

    def watched(recipe, problem, data, **options):
        fits.append((type(recipe).__name__, data.n, options["members"]))
        return fit(recipe, problem, data, **options)

    monkeypatch.setattr(uci, "fit", watched)
    run(folder, tmp_path, splits=1)
    assert fits == [("MAP", 40, 5), ("Snapshot", 40, 1), ("Anchored", 32, 5), ("Anchored", 40, 5)]


def test_large_sets_are_not_tuned(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(uci, "SMALL", 10)
    for record in run(folder, tmp_path, splits=1):
        assert record["chosen"] == {} and record["recipe"]["fields"]["epochs"] == 2
        fields = record["likelihood"]["fields"]
        assert fields.get("learned") or "floor" in fields  # of which the network predicts the noise


def test_the_best_noise_is_the_spread_of_the_errors():
    errors = torch.randn(500, generator=torch.Generator().manual_seed(0))
    targets = 0.2 * (errors - errors.mean()) / errors.std(correction=0)
    same = torch.zeros(3, 500)  # members that agree: the best sd is the root mean square
    assert uci.best_noise(same, targets) == pytest.approx(0.2, rel=0.021)  # half the distance of the values tried
    apart = torch.tensor([-0.15, 0.15])[:, None].expand(2, 500)
    tried = uci.NOISES[:, None]
    mixture = sum(torch.distributions.Normal(m, tried).log_prob(targets.double()).exp() for m in (-0.15, 0.15)) / 2
    assert uci.best_noise(apart, targets) == pytest.approx(float(tried[mixture.log().mean(1).argmax(), 0]))


def test_the_table_has_means_errors_and_what_others_published():
    def record(split, method, rmse, ll):
        scores = {"rmse": rmse, "ll": ll}
        return {
            "data": "yacht",
            "split": split,
            "method": method,
            **scores,
            "reference": {"rmse": 1.0 + split, "ll": -3},
        }

    records = [record(0, "MAP", 1.0, -1.0), record(1, "MAP", 2.0, -2.0), record(0, "deep ensemble", 0.5, -0.25)]
    lines = [line.split() for line in uci.table(records)]
    assert lines[1] == ["yacht", "2", "MAP", "1.5", "±", "0.5", "-1.5", "±", "0.5"]
    assert lines[2] == ["yacht", "1", "deep", "ensemble", "0.5", "-0.25", "-1.18"]
    assert lines[3][:4] == ["yacht", "2", "MC", "dropout,"] and lines[3][-6:] == ["1.5", "±", "0.5", "-3", "±", "0"]
    assert lines[4] == ["yacht", "ReLU", "Gaussian", "process", "-0.49"]
    assert all(len(line) <= 120 for line in uci.table(records))


def test_what_cannot_run_is_refused_first(tmp_path):
    with pytest.raises(ValueError, match="give --folder"):
        run(None, tmp_path)
    with pytest.raises(ValueError, match="Did you mean 'deep ensemble'"):
        run(tmp_path, tmp_path, methods=("ensemble",))
    with pytest.raises(ValueError, match=r"uci_yacht\.npz: there is no such file"):
        run(tmp_path, tmp_path)
    assert not list(tmp_path.iterdir())
    narrowed = studies.Options(tmp_path, sets=("digits",))
    with pytest.raises(ValueError, match="the study size takes no --sets: leave it out"):
        studies.check(studies.find("size"), narrowed)
    studies.check(studies.find("uci"), narrowed)
