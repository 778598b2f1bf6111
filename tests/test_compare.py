"""`bn.compare`: what a run folder holds, what is shared, what is not made again, and how the same compute is spent."""

import json
import math
import shutil
import sys
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch

import basinet as bn
from basinet.compare import default_problem
from basinet.compare.budget import Budget, scaled
from basinet.compare.frame import Frame
from basinet.compare.rows import Row, base_of, choose, plan_steps, steps_of
from basinet.compare.table import _on_front
from basinet.compare.turns import Turns
from basinet.compare.units import unit_in
from basinet.data import Data, Splits
from basinet.data.toys import gaussians
from basinet.engine.method import Entry
from basinet.pool import read_records

torch.set_num_threads(1)
QUICK = bn.MAP(epochs=4, batch_size=16)


def small(inputs: int, outputs: int) -> torch.nn.Module:
    return bn.networks.MLP(inputs, outputs, hidden=(8,))


def classes(n: int = 100, ood: bool = False) -> Splits:
    train, val, test = gaussians(n, seed=1).split(0.5, 0.2, 0.3, seed=0)
    far = Data(torch.full((20, 2), 30.0) + torch.arange(40.0).reshape(20, 2), torch.zeros(20, dtype=torch.long))
    return Splits("spots", train, val, test, classes=5, ood=far if ood else None)


def numbers(n: int = 60, mean: float = 100.0, sd: float = 5.0) -> Splits:
    x = torch.linspace(-2, 2, n)[:, None]
    parts = Data(x, x.sin() + 0.1 * torch.cos(37 * x)).split(0.5, 0.2, 0.3, seed=0)
    return Splits("waves", *parts, target_mean=mean, target_sd=sd, feature_names=("time",))


def labels(n: int = 80) -> Splits:
    x = torch.linspace(-2, 2, n)[:, None]
    y = torch.cat([x > 0, x.abs() > 1, x > -1], 1).long()
    return Splits("flags", *Data(x, y).split(0.5, 0.2, 0.3, seed=0))


ENTRIES = (
    Entry("MAP", QUICK, 1),
    Entry("deep ensemble", QUICK, 3),
    Entry("Laplaces", bn.Laplace(base=QUICK), 3),
    Entry("PEPs", bn.PEP(base=QUICK, draws=2, iterations=1), 3),
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("run")
    frame = bn.compare(classes(ood=True), ENTRIES, model=small, seeds=2, out=out)
    return frame, out, read_records(out / "records.jsonl")


def arrays_of(out, record):
    with np.load(out / record["arrays"], allow_pickle=False) as archive:
        return dict(archive)


# The run folder


def test_a_run_folder_holds_what_was_planned_and_what_was_found(run):
    _, out, records = run
    about = json.loads((out / "run.json").read_text())
    assert about["format"] == 1 and about["finished"] and about["failed"] == {}
    assert about["planned"] == ["MAP", "deep ensemble", "Laplaces", "PEPs"] and about["seeds"] == [0, 1]
    assert (about["kind"], about["n_train"], about["n_val"], about["n_test"]) == ("classes", 50, 20, 30)
    assert about["parameters"] == 2 * 8 + 8 + 8 * 5 + 5 and "Linear" in about["network"]
    assert about["inputs"] == {"kind": "rows", "shape": [2], "columns": None}
    assert [(r["method"], r["seed"]) for r in records] == [(e.label, s) for e in ENTRIES for s in (0, 1)]
    for record in records:
        assert record["steps"] == record["members"] * 13  # 4 epochs of 50 examples, 16 at a time
        assert record["draws"] == record["members"] * {"Laplaces": 20, "PEPs": 25}.get(record["method"], 1)
        assert (record["size_curve"] == []) == (record["members"] == 1)
        assert record["ood"]["n"] == 20 and 0 <= record["ood"]["auroc"] <= 1
    with np.load(out / "test.npz", allow_pickle=False) as test:
        assert test["targets"].shape == (30,) and test["inputs"].shape == (30, 2) and test["n_inputs"] == 30
    assert not list(out.rglob(".*"))  # nothing half-written


def test_arrays_are_what_the_scores_are_made_of(run):
    _, out, records = run
    with np.load(out / "test.npz", allow_pickle=False) as test:
        targets = test["targets"]
    for record in records:
        arrays, scores = arrays_of(out, record), record["scores"]
        assert all(x.dtype in (np.float32, bool) and len(x) in (30, 20) for x in arrays.values())
        assert -arrays["log_prob"].mean() == pytest.approx(scores["nll"], rel=1e-5)
        np.testing.assert_allclose(arrays["probs"].sum(1), 1, rtol=1e-5)
        np.testing.assert_array_equal(arrays["correct"], arrays["probs"].argmax(1) == targets)
        assert arrays["correct"].mean() == pytest.approx(scores["accuracy"])
        np.testing.assert_allclose(arrays["confidence"], arrays["probs"].max(1), rtol=1e-6)
        np.testing.assert_allclose(np.exp(arrays["log_prob"]), arrays["probs"][np.arange(30), targets], rtol=1e-3)
        parts = arrays["aleatoric"] + arrays["between"] + arrays["within"]
        np.testing.assert_allclose(parts, arrays["total"], rtol=1e-4, atol=1e-6)
        area = (arrays["ood_uncertainty"][:, None] > arrays["test_uncertainty"]).mean()
        area += 0.5 * (arrays["ood_uncertainty"][:, None] == arrays["test_uncertainty"]).mean()
        assert record["ood"]["auroc"] == pytest.approx(area, abs=1e-6)


def test_the_scores_are_those_of_bn_score(tmp_path):
    splits = classes()
    problem = bn.Problem(lambda: small(2, 5), bn.likelihoods.Categorical())
    frame = bn.compare(splits, [Entry("three", QUICK, 3)], problem=problem, out=tmp_path)
    ensemble = bn.fit(QUICK, problem, splits.train, members=3)
    for name, value in bn.score(ensemble, splits.test).items():
        assert name == "n" or frame[0][name] == pytest.approx(value, rel=1e-5, abs=1e-7)
    predictive = ensemble.predict(splits.test.inputs)
    [record] = read_records(tmp_path / "records.jsonl")
    for row, known in zip(record["size_curve"], bn.size_curve(predictive, splits.test.targets), strict=True):
        for name in ("size", "subsets", "nll", "nll_sd", "brier", "ece", "accuracy"):
            assert row[name] == pytest.approx(known[name], rel=1e-4, abs=1e-6)
        assert row["n"] == 30


def test_numbers_are_in_units_of_the_target(tmp_path):
    plain, scaled_ = (
        bn.compare(numbers(mean=mean, sd=sd), [Entry("two", QUICK, 2)], model=small, out=tmp_path / str(sd))
        for mean, sd in ((0.0, 1.0), (100.0, 5.0))
    )
    for name, factor in (("rmse", 5), ("crps", 5), ("variance", 25), ("coverage_90", 1)):
        assert scaled_[0][name] == pytest.approx(factor * plain[0][name], rel=1e-5)
    assert scaled_[0]["nll"] == pytest.approx(plain[0]["nll"] + math.log(5), rel=1e-5)
    [record] = read_records(tmp_path / "5.0" / "records.jsonl")
    arrays = arrays_of(tmp_path / "5.0", record)
    with np.load(tmp_path / "5.0" / "test.npz") as test:
        targets = test["targets"]
    assert 90 < targets.min() < targets.max() < 110
    assert np.sqrt(((arrays["mean"] - targets) ** 2).mean()) == pytest.approx(scaled_[0]["rmse"], rel=1e-5)
    inside = (arrays["low90"] <= targets) & (targets <= arrays["high90"])
    assert inside.mean() == pytest.approx(scaled_[0]["coverage_90"])
    assert arrays["crps"].mean() == pytest.approx(scaled_[0]["crps"], rel=1e-5)
    assert -arrays["log_prob"].mean() == pytest.approx(scaled_[0]["nll"], rel=1e-5)
    np.testing.assert_allclose(arrays["sd"] ** 2, arrays["total"], rtol=1e-4)
    last = record["size_curve"][-1]
    assert last["nll"] == pytest.approx(scaled_[0]["nll"], rel=1e-5)
    assert last["rmse"] == pytest.approx(scaled_[0]["rmse"], rel=1e-4)


def test_labels_are_compared_too(tmp_path):
    entries = [*ENTRIES[:3]]
    frame = bn.compare(labels(), entries, model=small, out=tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["kind"] == "labels"
    record = read_records(tmp_path / "records.jsonl")[1]
    arrays = arrays_of(tmp_path, record)
    with np.load(tmp_path / "test.npz") as test:
        truth = test["targets"]
    assert arrays["probs"].shape == truth.shape == (24, 3)
    right = (arrays["probs"] > 0.5) == truth
    assert right.mean() == pytest.approx(frame[1]["accuracy"])
    np.testing.assert_array_equal(arrays["correct"], right.all(1))
    last = record["size_curve"][-1]
    for name in ("nll", "brier", "ece", "accuracy"):
        assert last[name] == pytest.approx(frame[1][name], rel=1e-4, abs=1e-6)


def test_with_many_classes_the_largest_probabilities_are_kept(tmp_path, monkeypatch):
    from basinet.compare import measure

    monkeypatch.setattr(measure, "TABLE", 100)  # fewer than 30 x 5
    bn.compare(classes(), [ENTRIES[0]], model=small, out=tmp_path)
    [record] = read_records(tmp_path / "records.jsonl")
    arrays = arrays_of(tmp_path, record)
    assert "probs" not in arrays and arrays["top_probs"].shape == arrays["top_classes"].shape == (30, 5)
    np.testing.assert_allclose(arrays["top_probs"][:, 0], arrays["confidence"], rtol=1e-6)
    assert (np.diff(arrays["top_probs"]) <= 0).all()


# Sharing, going on


def test_rows_on_the_same_networks_train_them_once(run):
    _, out, records = run
    assert len(list((out / "pool").glob("map-*/member-0-*.safetensors"))) == 3  # of seed 0, for all four rows
    assert len(list((out / "pool").glob("map-*"))) == 2  # one entry per seed
    assert {p.name.split("-")[0] for p in (out / "pool").iterdir()} == {
        "map", "laplace", "pep", "pool.json", "computes",
    }  # fmt: skip
    by = {(r["method"], r["seed"]): r for r in records}
    assert by["Laplaces", 0]["fit_seconds"] > by["deep ensemble", 0]["fit_seconds"]  # it counts what it starts from


def test_a_base_and_a_start_are_one_place_in_the_pool(tmp_path):
    splits = classes()
    problem = bn.Problem(lambda: small(2, 5), bn.likelihoods.Categorical())
    recipe = bn.Laplace(base=QUICK)
    bn.fit(recipe, problem, splits.train, val=splits.val, members=2, pool=tmp_path / "pool")
    files = sorted((tmp_path / "pool").rglob("*.safetensors"))
    frame = bn.compare(splits, [Entry("two", recipe, 2)], problem=problem, out=tmp_path)
    assert sorted((tmp_path / "pool").rglob("*.safetensors")) == files and len(files) == 4
    assert len(frame) == 1


def test_the_same_again_makes_nothing_and_more_rows_are_added(run, monkeypatch):
    frame, out, records = run
    before = (out / "records.jsonl").read_bytes()
    from basinet.compare import fitted as module

    monkeypatch.setattr(module, "fitting", None)  # nothing may be fitted
    again = bn.compare(classes(ood=True), ENTRIES, model=small, seeds=2, out=out)
    assert again.rows == frame.rows and again.summary.rows == frame.summary.rows
    assert (out / "records.jsonl").read_bytes() == before
    monkeypatch.undo()
    other = bn.compare(classes(ood=True), [Entry("five", QUICK, 5)], model=small, out=out)
    assert other["method"] == ["five"]
    assert json.loads((out / "run.json").read_text())["planned"][-3:] == ["MAP", "PEPs", "deep ensemble"]
    assert len(read_records(out / "records.jsonl")) == len(records) + 1


def test_what_has_changed_is_reported_and_made_again(tmp_path):
    def once(splits=None, recipe=QUICK):
        said: list[str] = []
        frame = bn.compare(splits or classes(), [Entry("one", recipe, 1)], model=small, out=tmp_path, say=said.append)
        return frame, " ".join(said), read_records(tmp_path / "records.jsonl")

    first, _, _ = once()
    for words, arguments in (
        ("1 record is of another recipe", {"recipe": replace(QUICK, epochs=2)}),
        ("1 record is of other data", {"splits": classes(120), "recipe": replace(QUICK, epochs=2)}),
    ):
        frame, said, records = once(**arguments)
        assert words in said and len(records) == 1 and frame[0]["nll"] != first[0]["nll"]
    [record] = records
    (tmp_path / record["arrays"]).unlink()
    _, said, _ = once(**arguments)
    assert "arrays that are gone" in said and (tmp_path / record["arrays"]).exists()
    old = record | {"versions": {"basinet": "0.0.1"}}
    (tmp_path / "records.jsonl").write_text(json.dumps(old) + "\n")
    _, said, records = once(**arguments)
    assert "version 0.0.1 of basinet" in said and len(records) == 1


def test_a_stopped_run_resumes(tmp_path, monkeypatch):
    from basinet.compare import fitted as module

    fit = module.fitting
    monkeypatch.setattr(
        module, "fitting", lambda recipe, *a, **k: _stop() if isinstance(recipe, bn.PEP) else fit(recipe, *a, **k)
    )
    with pytest.raises(KeyboardInterrupt):
        bn.compare(classes(), ENTRIES, model=small, out=tmp_path)
    assert not json.loads((tmp_path / "run.json").read_text())["finished"]
    monkeypatch.undo()
    times = {r["method"]: r["time"] for r in read_records(tmp_path / "records.jsonl")}
    assert set(times) == {"MAP", "deep ensemble", "Laplaces"}
    bn.compare(classes(), ENTRIES, model=small, out=tmp_path)
    after = read_records(tmp_path / "records.jsonl")
    assert [r["method"] for r in after] == [e.label for e in ENTRIES]
    assert json.loads((tmp_path / "run.json").read_text())["finished"]


def _stop():
    raise KeyboardInterrupt


def test_folders_of_other_versions_are_refused(tmp_path):
    (tmp_path / "records.jsonl").write_text("{}\n")
    with pytest.raises(bn.FileError, match="older basinet"):
        bn.compare(classes(), [ENTRIES[0]], model=small, out=tmp_path)
    assert (tmp_path / "records.jsonl").read_text() == "{}\n"
    (tmp_path / "run.json").write_text('{"format": 7}')
    with pytest.raises(bn.FileError, match="format 7, of a newer basinet"):
        bn.compare(classes(), [ENTRIES[0]], model=small, out=tmp_path)
    (tmp_path / "run.json").write_text('{"format')
    with pytest.raises(bn.FileError, match="damaged"):
        bn.compare(classes(), [ENTRIES[0]], model=small, out=tmp_path)


def test_a_row_that_fails_is_left_out_and_reported(tmp_path):
    bad = bn.MAP(epochs=4, optimizer=bn.optim.SGD(lr=1e30))
    frame = bn.compare(classes(), [Entry("wild", bad, 1), ENTRIES[0]], model=small, out=tmp_path)
    assert frame["method"] == ["MAP"]
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["finished"] and "NaN or infinite" in about["failed"]["wild"]
    with pytest.raises(FloatingPointError, match="NaN or infinite"):
        bn.compare(classes(), [Entry("wild", bad, 1)], model=small)


# Damage


def test_damaged_records_and_arrays_are_made_again_from_the_pool(tmp_path, monkeypatch):
    rows = ENTRIES[:2]
    bn.compare(classes(), rows, model=small, out=tmp_path)
    whole = {path: path.read_bytes() for path in (tmp_path / "records.jsonl", *(tmp_path / "arrays").iterdir())}
    first, arrays = tmp_path / "records.jsonl", tmp_path / "arrays" / "map-0.npz"
    lines = whole[first].decode().splitlines()
    bits = bytearray(whole[arrays])
    bits[len(bits) // 2] ^= 16
    from basinet.compare import fitted as module

    steps = []
    fit = module.fitting
    monkeypatch.setattr(module, "fitting", lambda recipe, *a, **k: steps.append(k["pool"]) or fit(recipe, *a, **k))
    files = sorted((tmp_path / "pool").rglob("*.safetensors"))
    before = [file.stat().st_mtime_ns for file in files]
    for path, content, words in (
        (arrays, b"", "arrays that are damaged"),
        (arrays, bytes(bits), "arrays that are damaged"),
        (first, b"", ""),
        (first, b"\xff\xfe" + whole[first], "of damage"),
        (first, whole[first].replace(b'"nll": 0', b'"nll": 9', 1).replace(b'"nll": 1', b'"nll": 9', 1), "was altered"),
        (first, b"[" * 100_000 + b"\n" + lines[1].encode() + b"\n", "of damage"),
        (first, b"7\nnull\n" + whole[first], "of damage"),
    ):
        path.write_bytes(content)
        said: list[str] = []
        frame = bn.compare(classes(), rows, model=small, out=tmp_path, say=said.append)
        assert words in " ".join(said) and frame["method"] == ["MAP", "deep ensemble"]
        assert sorted(r["method"] for r in read_records(first)) == ["MAP", "deep ensemble"]
        assert arrays.read_bytes()[:2] == b"PK" and arrays_of(tmp_path, read_records(first)[0])["log_prob"].size == 30
    assert sorted((tmp_path / "pool").rglob("*.safetensors")) == files
    assert [file.stat().st_mtime_ns for file in files] == before  # nothing was trained again


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.*cast.*")  # of the alterations themselves
def test_an_altered_run_folder_is_repaired_or_refused_with_a_message(tmp_path):
    sys.path.insert(0, str(Path(__file__).parent / "report"))
    from altered import alter

    first = bn.compare(classes(), ENTRIES[:2], model=small, out=tmp_path / "whole")
    right = 0
    for seed in range(60):
        shutil.copytree(tmp_path / "whole", tmp_path / "run")
        alteration = alter(tmp_path / "run", seed)
        try:
            frame = bn.compare(classes(), ENTRIES[:2], model=small, out=tmp_path / "run")
            assert frame["nll"] == pytest.approx(first["nll"], rel=1e-6), alteration
            right += 1
        except (ValueError, OSError):  # one clean line of the command
            pass
        except Exception as error:
            raise AssertionError(f"seed {seed}: {alteration}") from error
        finally:
            shutil.rmtree(tmp_path / "run")
    assert right > 40


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"methods": [5]}, "expected methods as names such as 'MAP', recipes .* got 5"),
        ({"methods": 5}, "got 5"),
        ({"methods": [bn.MAP]}, r"got MAP: write MAP\(\)"),
        ({"methods": [None]}, "got None"),
        ({"methods": [Entry("x", 3, 1)]}, "expected methods"),
        ({"methods": [Entry("x", QUICK, "two")]}, "expected methods"),
        ({"budget": 60}, "expected a budget such as '60s' or '20000steps', got 60"),
        ({"budget": "1e999s"}, "expected a budget"),
        ({"members": 2.5}, "expected at least 1 member, got 2.5"),
        ({"seeds": "many"}, "expected at least one seed"),
        ({"seeds": 0}, "expected at least one seed"),
        ({"seeds": [0, "a"]}, "expected at least one seed"),
        ({"seed": "a"}, "expected seed as a whole number"),
        ({"examples": "all"}, "expected at least 1 training example, got 'all'"),
        ({"problem": "net"}, "expected problem=bn.Problem"),
        ({"engine": "cpu"}, "expected engine=bn.Engine"),
        ({"model": 7}, "expected model as a function"),
        ({"against": 3}, "expected --against one of the rows"),
        ({"data": 3}, "expected data as a name, a file or bn.datasets.Splits"),
    ],
)
def test_arguments_of_wrong_types_are_refused_with_a_message(arguments, words):
    given = {"data": classes(), "methods": [ENTRIES[0]], "model": small} | arguments
    with pytest.raises(ValueError, match=words):
        bn.compare(given.pop("data"), **given)


# Temperatures


def test_tempered_rows_share_the_members_that_are_trained_already(tmp_path):
    longer = bn.MAP(epochs=40, batch_size=16)
    entries = [Entry("MAP", longer, 1), Entry("deep ensemble", longer, 3)]
    data = gaussians(300, seed=1)
    some = torch.arange(300) % 4 == 0  # labels that are wrong: else there is no best temperature
    data = Data(data.inputs, torch.where(some, (data.targets + 1) % 5, data.targets))
    splits = Splits("spots", *data.split(0.5, 0.2, 0.3, seed=0), classes=5)
    problem = default_problem(splits, small)
    chosen = choose(None, 3, False).rows
    labels_ = [row.label for row in chosen]
    assert labels_[labels_.index("MAP") + 1] == "tempered MAP"
    assert labels_[labels_.index("deep ensemble") + 1] == "tempered deep ensemble"
    assert not any(row.tempered for row in choose(None, 3, False, "counts").rows)
    from basinet.compare.api import Asking, carry_out
    from basinet.compare.rows import _tempered

    setting, rows = Asking(problem=problem).prepare(splits, entries, warn=lambda line: None)
    rows = [*rows, *map(_tempered, rows)]
    frame = carry_out(setting, rows, tmp_path, None, None, lambda line: None)
    assert len(list((tmp_path / "pool").rglob("*.safetensors"))) == 3  # three networks for four rows
    ensemble = bn.fit(longer, problem, splits.train, members=3)
    known = bn.score(bn.temper(ensemble, splits.val), splits.test)
    row = frame.where(method="tempered deep ensemble")[0]
    assert row["nll"] == pytest.approx(known["nll"], rel=1e-5) and row["draws"] == 3 and row["steps"] == 3 * 375
    record = read_records(tmp_path / "records.jsonl")[-1]
    assert record["tempered"] and "sets" not in record and "tuned on the validation examples" in record["unset"]
    again: list[str] = []
    carry_out(setting, rows, tmp_path, None, None, again.append)
    assert all("already" in line for line in again)


def tempered_too(splits: Splits, problem: bn.Problem, out: Path, *entries: Entry) -> Frame:
    """Entries and their copies with a temperature."""
    from basinet.compare.api import Asking, carry_out
    from basinet.compare.rows import _tempered

    setting, rows = Asking(problem=problem).prepare(splits, entries, warn=lambda line: None)
    return carry_out(setting, [*rows, *map(_tempered, rows)], out, None, None, lambda line: None)


def noisy_numbers(n: int) -> Splits:
    x = bn.Noise.seed(1).normal(torch.empty(n, 1))
    y = x.sin() + bn.Noise.seed(2).normal(x)
    return Splits("noise", *Data(x, y).split(0.3, 0.5, 0.2, seed=0), target_mean=100.0, target_sd=5.0)


def test_tempered_rows_of_real_targets_have_a_factor_on_the_spread(tmp_path):
    """Networks that take the noise to be .2 of its size: one network and the ensemble, with a factor of about 5."""
    splits = noisy_numbers(400)
    problem = bn.Problem(lambda: small(1, 1), bn.likelihoods.Gaussian(noise=0.2))
    offered = [row.label for row in choose(None, 3, False, "real").rows]
    assert {"tempered MAP", "tempered deep ensemble"} < set(offered)
    frame = tempered_too(splits, problem, tmp_path, Entry("MAP", QUICK, 1), Entry("deep ensemble", QUICK, 3))
    records = {r["method"]: r for r in read_records(tmp_path / "records.jsonl")}
    for label in ("tempered MAP", "tempered deep ensemble"):
        record = records[label]
        [factor] = record["temperature"]
        assert 3 < factor < 8 and record["tempered"]
        assert 0.8 < record["scores"]["coverage_90"] < 0.97 and record["draws"] == record["members"]
        assert record["size_curve"] == []  # a factor of three members is not that of one
    assert "temperature" not in records["MAP"] and records["MAP"]["scores"]["coverage_90"] < 0.5
    assert "Tempered: the spread multiplied by a factor" in str(frame)


def test_the_examples_that_calibrate_sets_are_not_those_that_temper(tmp_path, monkeypatch):
    from basinet.compare import run as comparing
    from basinet.compare.sets import validation

    splits = noisy_numbers(400)
    tuning, held = validation(splits)
    assert held is not None and tuning.n + held.n == splits.val.n
    tempered_on: list[Data] = []
    temper = comparing.temper
    monkeypatch.setattr(
        comparing, "temper", lambda p, val, **more: (tempered_on.append(val), temper(p, val, **more))[1]
    )
    tempered_too(splits, default_problem(splits, small), tmp_path, Entry("MAP", QUICK, 1))
    [val] = tempered_on
    assert torch.equal(val.inputs, tuning.inputs)
    assert "sets" in read_records(tmp_path / "records.jsonl")[1]


def test_counts_have_no_tempered_rows():
    x = torch.linspace(-1, 1, 60)[:, None]
    splits = Splits("counts", *Data(x, (3 + x).round()).split(0.5, 0.2, 0.3, seed=0))
    problem = bn.Problem(lambda: small(1, 1), bn.likelihoods.Poisson())
    with pytest.raises(ValueError, match="not for counts"):
        bn.compare(splits, ["tempered MAP"], problem=problem)


def test_temperatures_are_asked_for_before_a_name():
    rows = choose(["tempered laplace", "tempered", "MAP"], 3, False).rows
    assert [(r.label, r.tempered) for r in rows] == [
        ("tempered Laplace", True), ("tempered mixture of Laplaces", True), ("tempered MAP", True),
        ("tempered deep ensemble", True), ("MAP", False), ("deep ensemble", False),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="temperatures are for classes, labels and real numbers, not for counts"):
        choose(["tempered MAP"], 3, False, "counts")
    assert [r.label for r in choose(None, None, True).rows][:2] == ["given network", "tempered given network"]


@pytest.mark.parametrize(
    ("recipe", "looks"),
    [
        (bn.MAP(epochs=5), False),
        (bn.MAP(), True),
        (bn.MAP(epochs=5, patience=3), True),
        (bn.PEP(), True),
        (bn.Laplace(base=bn.MAP(epochs=5), prior_precision="prior"), False),
        (bn.Laplace(base=bn.MAP(epochs=5), prior_precision="validation"), True),
        (bn.Laplace(base=bn.MAP(patience=3), prior_precision="prior"), True),
        (bn.Laplace(base=bn.PEP(), prior_precision="prior"), True),
        (bn.Laplace(base=bn.PEP(base=bn.MAP(patience=3)), prior_precision="prior"), True),
    ],
)
def test_what_a_method_starts_from_may_have_looked_at_validation_data(recipe, looks):
    from basinet.compare.sets import looks_at_val
    from basinet.engine.method import chooses_by_val

    assert looks_at_val(recipe) == looks
    assert looks_at_val(recipe, started=True) == chooses_by_val(recipe)  # what it would start from is not run


# Weights that were trained elsewhere


@pytest.mark.slow
def test_given_weights_are_where_post_hoc_methods_start(tmp_path):
    from safetensors.torch import save_file

    torch.manual_seed(0)
    module = small(2, 5)
    save_file(module.state_dict(), str(tmp_path / "net.safetensors"))
    said: list[str] = []
    rows = ["Laplace", "MAP", Entry("many", bn.PEP(base=QUICK), 2)]
    frame = bn.compare(
        classes(), rows, model=small, start=tmp_path / "net.safetensors", say=said.append, out=tmp_path / "r"
    )
    assert frame["method"] == ["given network", "Laplace", "MAP", "deep ensemble", "many"]
    assert "MAP: trains its own networks" in " ".join(said) and "may have been trained on the test part" in " ".join(
        said
    )
    problem = bn.Problem(lambda: small(2, 5), bn.likelihoods.Categorical())
    alone = bn.score(bn.Posterior.of(module, problem), classes().test)
    assert frame[0]["nll"] == pytest.approx(alone["nll"], rel=1e-6) and frame[0]["steps"] == 0 == frame[1]["steps"]
    start, splits = bn.Posterior.of(module, problem), classes()
    laplace = bn.fit(bn.Laplace(), problem, splits.train, val=splits.val, start=start)
    assert frame[1]["nll"] == pytest.approx(bn.score(laplace, classes().test)["nll"], rel=1e-5)


def test_given_weights_of_a_regression_get_the_noise_of_validation_data():
    torch.manual_seed(0)
    module, splits = small(1, 1), numbers(mean=0.0, sd=1.0)
    problem = bn.Problem(lambda: small(1, 1), bn.likelihoods.Gaussian(noise=0.5, learned=True))
    start = bn.Posterior.of(module, problem)
    frame = bn.compare(splits, ["Laplace"], problem=problem, start=start)
    gap = (module(splits.val.inputs) - splits.val.targets).square().mean().sqrt()
    y, mean = splits.test.targets, module(splits.test.inputs)
    expected = -torch.distributions.Normal(mean, gap).log_prob(y).mean().detach()
    assert frame[0]["nll"] == pytest.approx(float(expected), rel=1e-5)


def test_weights_that_do_not_fit_are_refused(tmp_path):
    from safetensors.torch import save_file

    save_file(small(3, 5).state_dict(), str(tmp_path / "net.safetensors"))
    with pytest.raises(
        bn.FileError, match=r"net.safetensors: it belongs to another model: layers.0.weight is \(8, 3\)"
    ):
        bn.compare(classes(), ["Laplace"], model=small, start=tmp_path / "net.safetensors")


# Which rows


@pytest.fixture(autouse=True)
def ours(monkeypatch):
    """Only the library's own methods, whatever other tests define."""
    from basinet.compare import rows

    known = {name: cls for name, cls in rows.discover().items() if cls.__module__.startswith("basinet.")}
    monkeypatch.setattr(rows, "discover", lambda: known)


def test_by_default_rows_are_taken_until_they_take_long():
    chosen = choose(None, None, False)
    labels_ = [row.label for row in chosen.rows]
    everything = choose("all", None, False)
    assert set(labels_) <= {row.label for row in everything.rows} and not everything.lines
    assert {"MAP", "deep ensemble", "Laplace", "MultiSWAG", "PEP"} <= set(labels_) and len(labels_) <= 20
    assert not {"HMC", "NUTS", "FoRDE", "anchored ensemble"} & set(labels_)  # asked for by name
    assert not chosen.lines
    assert all(row.members in (1, 4) for row in choose("all", 4, False).rows)


def test_rows_are_asked_for_by_method_label_recipe_or_entry():
    recipe = bn.MAP(epochs=3)
    rows = choose(["laplace", "Deep Ensemble", recipe, Entry("x", recipe, 7)], None, False).rows
    assert [(r.label, r.members) for r in rows] == [
        ("Laplace", 1),
        ("mixture of Laplaces", 10),
        ("deep ensemble", 10),
        ("MAP(epochs=3)", 1),
        ("x", 7),
    ]
    with pytest.raises(ValueError, match="Did you mean 'MAP'"):
        choose(["MPA"], None, False)
    with pytest.raises(ValueError, match="got 'x' for two"):
        choose([Entry("x", recipe, 7), Entry("x", recipe, 8)], None, False)


def test_with_given_weights_what_trains_from_scratch_has_to_be_asked_for():
    chosen = choose(None, None, True)
    assert all(row.started for row in chosen.rows) and "deep ensemble" in chosen.lines[0]
    assert {type(row.recipe) for row in chosen.rows} >= {bn.Laplace, bn.PEP, bn.SWAG, type(None)}
    assert all(row.members == 1 for row in chosen.rows)


# Budgets


@pytest.mark.parametrize("steps", [500, 5000])
def test_every_row_costs_the_same_steps(steps):
    for row in choose("all", None, False).rows:
        fitting = scaled(row, steps, 1000)
        total = fitting.members * plan_steps(fitting, 1000)
        assert total <= steps or fitting.members == 1, fitting
        if steps == 500:
            continue
        assert 0.9 * steps <= total, fitting  # an epoch is 8 steps
        if base_of(row.recipe) is not None:  # in proportion
            share = steps_of(base_of(row.recipe), 1000) / steps_of(row.recipe, 1000)
            assert steps_of(base_of(fitting.recipe), 1000) == pytest.approx(share * total / fitting.members, rel=0.1)


def test_rows_with_a_budget_still_share_their_networks():
    ensemble = scaled(Row("a", bn.MAP(), 10), 5000, 1000)
    laplace = scaled(Row("b", bn.Laplace(), 10), 5000, 1000)
    assert base_of(laplace.recipe) == ensemble.recipe and laplace.members == ensemble.members == 10


def test_a_budget_below_one_epoch_per_member_leaves_fewer_members():
    fitting = scaled(Row("a", bn.MAP(batch_size=10), 10), 350, 1000)  # an epoch is 100 steps
    assert (fitting.members, plan_steps(fitting, 1000)) == (3, 100)
    fitting = scaled(Row("a", bn.MAP(batch_size=10), 10), 50, 1000)
    assert (fitting.members, plan_steps(fitting, 1000)) == (1, 100) and "more than the budget" in fitting.spending


def test_budgets_are_read_from_words():
    assert Budget.read("60s") == (60.0, "s") and Budget.read("20_000 steps") == (20000.0, "steps")
    for text in ("60", "0s", "s", "3 minutes", "-1s"):
        with pytest.raises(ValueError, match="expected a budget such as 60s or 20000steps"):
            Budget.read(text)


def test_seconds_become_steps_by_trials():
    from basinet.compare import budget

    def seconds(row):  # 10 ms per step, and 2 s on top
        return 2.0 + 0.01 * row.members * plan_steps(row, 1000)

    [fitting] = budget.spent(Budget(60.0, "s"), [Row("a", bn.MAP(), 10)], 1000, seconds, None)
    assert fitting.members * plan_steps(fitting, 1000) == pytest.approx(5800, rel=0.02)
    kept = budget.record(Budget(60.0, "s"), [Row("a", bn.MAP(), 10)], [fitting])
    again = budget.spent(Budget(60.0, "s"), [Row("a", bn.MAP(), 10)], 1000, None, json.loads(json.dumps(kept)))
    assert again == [fitting]


def test_a_run_with_a_budget_says_how_it_was_spent_and_resumes(tmp_path):
    said: list[str] = []
    arguments = {"model": small, "budget": "60steps", "out": tmp_path}
    bn.compare(classes(), ENTRIES[:3], say=said.append, **arguments)
    records = read_records(tmp_path / "records.jsonl")
    assert all(50 <= r["steps"] <= 60 for r in records), [r["steps"] for r in records]
    assert "60 training steps of one network per row" in said[0]
    about = json.loads((tmp_path / "run.json").read_text())
    assert (
        about["budget"]["text"] == "60steps" and records[1]["told"] == about["budget"]["rows"]["deep ensemble"]["told"]
    )
    bn.compare(classes(), ENTRIES[:3], **arguments)
    assert read_records(tmp_path / "records.jsonl") == records


# Summaries


def test_the_summary_has_means_errors_paired_differences_and_fronts(run):
    frame, out, records = run
    best = min(frame.summary, key=lambda row: row["nll"])
    for row in frame.summary:
        mine = [r["scores"]["nll"] for r in records if r["method"] == row["method"]]
        assert row["nll"] == pytest.approx(np.mean(mine)) and row["seeds"] == 2 and row["n"] == 30
        assert "nll_se" not in row  # of two seeds, which may be close by chance
        assert row["reference"] == best["method"]
        assert row["difference"] == pytest.approx(row["nll"] - best["nll"], abs=1e-6)
        assert row["low"] <= row["difference"] <= row["high"]
    other = bn.compare(classes(ood=True), ENTRIES, model=small, seeds=2, out=out, against="map")
    assert {row["reference"] for row in other.summary} == {"MAP"}
    with pytest.raises(ValueError, match="expected --against one of the rows"):
        bn.compare(classes(ood=True), ENTRIES, model=small, seeds=2, out=out, against="HMC")
    written = json.loads((out / "summary.json").read_text())
    assert [row["method"] for row in written["rows"]] == [e.label for e in ENTRIES]


def test_the_front_is_of_rows_that_nothing_beats():
    points = [(0.3, 1.0), (0.2, 2.0), (0.25, 3.0), (0.2, 5.0), (0.1, 9.0), (math.inf, 0.5), (0.4, 1.0)]
    assert [_on_front(p, points) for p in points] == [True, True, False, False, True, False, False]


def test_the_table_is_sorted_by_score_and_has_passes(run):
    from basinet.compare import table

    frame, _, _ = run
    heads, rows = table(frame.summary)
    order = sorted(frame.summary, key=lambda row: row["nll"])
    assert [row[0] for row in rows] == [row["method"] for row in order]
    assert heads[-1] == "passes" and [row[-1] for row in rows] == [f"{row['draws']:.0f}" for row in order]
    assert [row[heads.index("steps")] for row in rows] == [f"{row['steps']:,.0f}" for row in order]
    assert "± se" not in " ".join(heads)  # of two seeds


def test_steps_are_those_that_members_took(tmp_path):
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = torch.arange(60) % 2  # nothing to learn: validation stops training at once
    parts = [Data(x[a:b], y[a:b]) for a, b in ((0, 30), (30, 45), (45, 60))]
    splits = Splits("noise", *parts, classes=2)
    recipe = bn.MAP(epochs=200, patience=2)
    entries = [Entry("two", recipe, 2), Entry("around", bn.Laplace(base=recipe), 2)]
    bn.compare(splits, entries, out=tmp_path)
    two, around = (r["steps"] for r in read_records(tmp_path / "records.jsonl"))
    assert two == around < 2 * 200


def test_a_frame_is_rows_columns_and_a_table(run):
    comparison, _, _ = run
    assert comparison["method"][:2] == ["MAP", "MAP"] and comparison["seed"][:2] == [0, 1] and len(comparison) == 8
    assert comparison.where(method="MAP", seed=1).rows == [comparison[1]]
    with pytest.raises(KeyError, match="there is no column 'nul'"):
        comparison["nul"]
    text = str(comparison)
    assert "deep ensemble" in text and "difference (95 %)" in text and "n = 30" in text and "2 seeds" in text
    frame = Frame([{"a": 1, "b": "x"}, {"a": None, "c": 0.123456}])
    assert frame.columns == ["a", "b", "c"] and frame["c"] == [None, 0.123456]
    assert str(frame).splitlines()[2].split() == ["-", "-", "0.1235"]


def test_a_frame_becomes_pandas(run):
    pandas = pytest.importorskip("pandas")
    frame, _, _ = run
    table = frame.to_pandas()
    assert isinstance(table, pandas.DataFrame) and list(table["nll"]) == frame["nll"]


# What is suspicious


def test_an_input_that_gives_the_target_away_is_warned_of():
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, :1].exp() > 1).long()[:, 0]
    said: list[str] = []
    parts = Data(torch.cat([x[:, 1:], y[:, None] * 100 + x[:, :1]], 1), y).split(0.6, 0.2, 0.2, seed=0)
    splits = Splits("leak", *parts, classes=2, feature_names=("a", "b", "after"))
    bn.compare(splits, [ENTRIES[0]], model=small, say=said.append)
    assert [line for line in said if "alone determines the target" in line] == [
        "'after' alone determines the target of every training row: is it known before the target is? If not, leave it "
        "out (drop=, or --drop)"
    ]
    said.clear()
    bn.compare(numbers(), [ENTRIES[0]], model=small, say=said.append)
    assert not [line for line in said if "alone determines" in line]


def test_records_have_the_coverage_of_conformal_sets(tmp_path):
    mine = (Entry("MAP", QUICK, 1), Entry("PEP", bn.PEP(base=QUICK, draws=2, iterations=1), 1))
    for splits, kinds in ((classes(400), ["lac", "aps", "raps"]), (numbers(400), ["scaled", "split", "cqr"])):
        bn.compare(splits, mine, model=small, out=tmp_path / splits.name)
        plain, pep = read_records(tmp_path / splits.name / "records.jsonl")
        assert [s["kind"] for s in plain["sets"]] == kinds
        assert "sets" not in pep and "tuned on the validation examples" in pep["unset"]  # they would calibrate
        for s in plain["sets"]:
            assert s["low"] <= s["coverage"] <= s["high"] and abs(s["coverage"] - 0.9) < 0.2 and s["n"] <= 80
    posterior = bn.fit(QUICK, default_problem(splits, small), splits.train)
    held = bn.conformal(posterior, splits.val, "split", 0.9).predict(splits.test.inputs)
    low, high = held.conformal_interval
    assert plain["sets"][1]["size"] == pytest.approx(5.0 * float((high - low).mean()))  # in units of the target
    assert plain["sets"][1]["coverage"] == float(
        ((low <= splits.test.targets) & (splits.test.targets <= high)).double().mean()
    )


# Tables


def test_rows_of_a_table_are_kept_as_they_were_and_the_unit_is_that_of_its_name(tmp_path):
    file, rng = tmp_path / "flats.csv", np.random.default_rng(0)
    days = [str(np.datetime64("2021-03-01") + int(d)) for d in rng.integers(0, 900, 80)]
    cells = [(d, str(rng.choice(["gas", "oil"])), f"{rng.uniform(20, 90):.1f}") for d in days]
    lines = [f"{d},{h},{a},{float(a) * 12 + rng.normal():.2f}" for d, h, a in cells]
    file.write_text("listed,heating,area,rent [EUR]\n" + "\n".join(lines) + "\n")
    out = tmp_path / "run"
    bn.compare(file, [Entry("one", QUICK, 1)], target="rent [EUR]", model=small, out=out)
    about = json.loads((out / "run.json").read_text())
    assert about["unit"] == "EUR" and about["target"] == "rent [EUR]"
    assert about["inputs"]["columns"] == ["listed", "heating", "area"]
    with np.load(out / "test.npz", allow_pickle=False) as test:
        assert test["inputs"].shape == (16, 3)
        rows, targets = test["inputs"].tolist(), test["targets"]
    known = {line.rpartition(",")[0].replace(".0", ""): float(line.rpartition(",")[2]) for line in lines}
    assert [known[",".join(row)] for row in rows] == pytest.approx(targets.tolist(), rel=1e-5)


@pytest.mark.parametrize(("name", "unit"), [("rent [EUR]", "EUR"), ("rent", None), ("x [ ]", None), ("[a] b", None)])
def test_a_unit_is_what_a_name_ends_with_in_brackets(name, unit):
    assert unit_in(name) == unit


def test_training_takes_at_most_this_many_examples(tmp_path):
    frame = bn.compare(classes(), [Entry("one", QUICK, 1)], model=small, examples=20, out=tmp_path)
    assert frame["n_train"] == [20] and frame.summary[0]["n"] == 30
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["description"] == "Trained on 20 of 50 examples."
    assert bn.compare(classes(), [Entry("one", QUICK, 1)], model=small, examples=500)["n_train"] == [50]
    with pytest.raises(ValueError, match="expected at least 1 training example, got 0"):
        bn.compare(classes(), [Entry("one", QUICK, 1)], model=small, examples=0)


def test_few_test_examples_are_warned_of_and_have_no_intervals(tmp_path):
    said: list[str] = []
    few = numbers(30)
    frame = bn.compare(
        few, [Entry("one", QUICK, 1), Entry("two", QUICK, 2)], model=small, out=tmp_path, say=said.append
    )
    assert few.test.n == 9 and "9 test examples say very little: scores are mostly chance" in said
    other = frame.summary.where(method=next(m for m in ("one", "two") if m != frame.summary[0]["reference"]))[0]
    assert other["difference"] is not None and other["low"] is None and other["high"] is None


class Forward(torch.nn.Module):
    """Layers that are always the same, and a forward that is not."""

    def __init__(self, inputs, outputs, between):
        super().__init__()
        self.first, self.last, self.between = torch.nn.Linear(inputs, 8), torch.nn.Linear(8, outputs), [between]

    def forward(self, x):
        return self.last(self.between[0](self.first(x)))


def test_records_of_another_forward_in_the_same_layers_are_not_shown(tmp_path):
    def compared(between):
        make = lambda inputs, outputs: Forward(inputs, outputs, between)  # noqa: E731
        bn.compare(classes(), (Entry("MAP", QUICK, 1),), model=make, out=tmp_path)
        return read_records(tmp_path / "records.jsonl")

    [before] = compared(torch.relu)
    with pytest.raises(ValueError, match=r"it computes something else .*another --out"):
        compared(torch.tanh)
    assert compared(torch.relu) == [before]
    shutil.rmtree(tmp_path / "pool")  # the records are left
    [after] = compared(torch.tanh)
    assert after["scores"]["nll"] != before["scores"]["nll"]


@pytest.mark.parametrize(
    "other",
    [torch.nn.functional.relu6, lambda x: x.relu().clamp(max=40), lambda x: torch.where(x > 15, -x, x.relu())],
    ids=["relu6", "clamp", "branch"],
)
def test_records_of_a_forward_that_differs_where_data_hardly_come_are_not_shown(other, tmp_path):
    def compared(between):
        make = lambda inputs, outputs: Forward(inputs, outputs, between)  # noqa: E731
        said: list[str] = []
        bn.compare(classes(), (Entry("MAP", QUICK, 1),), model=make, out=tmp_path, say=said.append)
        return said

    compared(torch.relu)
    with pytest.raises(ValueError, match=r"it computes something else .*another --out"):
        compared(other)
    shutil.rmtree(tmp_path / "pool")
    assert any("1 record is of other data, another network or other weights: not used" in x for x in compared(other))


def test_rows_that_train_the_same_wait_for_those_before_them_and_others_do_not():
    other = replace(QUICK, epochs=3)
    rows = [Row("a", QUICK, 1), Row("b", bn.Laplace(base=QUICK), 3), Row("c", other, 1), Row("d", QUICK, 3)]
    turns = Turns([(row, 0) for row in rows])
    a, b, c, d = (turns.of(number) for number in range(4))

    def may(turn, recipe):
        return not list(islice(turn.wait(recipe), 1))

    assert may(a, QUICK) and not may(b, QUICK) and may(c, other) and not may(d, QUICK)
    assert may(b, rows[1].recipe)
    a.over(QUICK)
    assert may(b, QUICK) and not may(d, QUICK)
    b.leave()
    assert may(d, QUICK)
