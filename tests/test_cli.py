"""The command line, as a user meets it."""

import csv
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from datetime import date, timedelta

import numpy as np
import pytest
from typer.testing import CliRunner

from basinet import __version__
from basinet.calibrate.conformal_sets import promised
from basinet.cli import app
from basinet.pool import read_records

runner = CliRunner()


def invoke(*words: str):
    return runner.invoke(app, list(words), catch_exceptions=True)


def test_version_and_help():
    assert invoke("--version").output.strip() == __version__
    for command in ("compare", "cost", "advise", "fit", "predict", "evaluate", "methods", "check", "study"):
        assert command in invoke("--help").output
        assert invoke(command, "--help").exit_code == 0


@pytest.mark.slow
def test_compare_prints_a_table_and_leaves_records_and_a_pool(tmp_path):
    out = tmp_path / "run"
    result = invoke("compare", "wine", "--methods", "MAP,Laplace", "--members", "3", "--out", str(out))
    assert result.exit_code == 0, result.output
    for word in (
        "method",
        "members",
        "NLL",
        "difference (95 %)",
        "Brier",
        "ECE",
        "accuracy",
        "epistemic",
        "fit s",
        "predict",
        "deep ensemble",
        "mixture of Laplaces",
        "reference",
        "n = 35",
    ):
        assert word in result.output
    assert max(map(len, result.stdout.splitlines())) <= 120 and "…" not in result.stdout
    records = read_records(out / "records.jsonl")
    assert [(r["method"], r["members"]) for r in records] == [
        ("MAP", 1),
        ("deep ensemble", 3),
        ("Laplace", 1),
        ("mixture of Laplaces", 3),
    ]
    for record in records:
        assert record["data"] == "wine" and record["seed"] == 0 and record["n_test"] == record["scores"]["n"]
        assert record["versions"]["basinet"] == __version__
        assert json.dumps(record)
    assert len(list((out / "pool").glob("map-*/member-*.safetensors"))) == 3


def test_compare_of_regression_has_its_own_columns(tmp_path):
    words = ("--members", "2", "--set", "MAP.epochs=5", "--out", str(tmp_path / "run"))
    result = invoke("compare", "diabetes", "--method", "map", *words)
    assert result.exit_code == 0, result.output
    assert "by validation: CRPS" in result.output
    assert sorted(path.name for path in (tmp_path / "run" / "pilot").iterdir()) == ["gaussian", "heteroscedastic"]
    assert all(word in result.output for word in ("RMSE", "CRPS", "in 90%"))
    assert "…" not in result.stdout


@pytest.mark.slow
def test_the_same_command_again_trains_nothing_and_says_the_same(tmp_path):
    words = ("compare", "wine", "--method", "MAP", "--members", "2", "--out", str(tmp_path))
    first = invoke(*words)
    assert first.exit_code == 0
    files = {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")}
    records = (tmp_path / "records.jsonl").read_bytes()
    again = invoke(*words)
    assert again.exit_code == 0 and "MAP: already in" in again.output and again.stdout == first.stdout
    assert files == {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*.safetensors")}
    assert records == (tmp_path / "records.jsonl").read_bytes()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", "digit"), "Did you mean 'digits'?"),
        (("compare", "digits", "--method", "MPA"), "Did you mean 'MAP'?"),
        (
            ("compare", "digits", "--methods", "MAP", "--budget", "an hour"),
            "expected a budget such as 60s or 20000steps",
        ),
        (("compare", "digits", "--methods", "MAP", "--against", "mpa"), "Did you mean 'map'?"),
        (("compare", "digits", "--weights", "no.safetensors"), "no.safetensors: there is no such file"),
        (("methods", "MPA"), "Did you mean 'MAP'?"),
        (("check", "MPA"), "Did you mean 'MAP'?"),
        (("study", "siz"), "Did you mean 'size'?"),
        (("study", "size", "--sets", "digits"), "the study size takes no --sets: leave it out"),
        (("study", "uci", "--sets", "yacht, bostn", "--folder", "nowhere"), "uci_yacht.npz: there is no such file"),
        (("study", "uci", "--folder", "nowhere", "--methods", "map"), "Did you mean 'MAP'?"),
        (("compare", "fashion_mnist"), "pass folder="),
        (("compare", "cifar10", "--folder", "nowhere"), "expected a folder with the files of cifar10"),
        (("compare", "nowhere.csv", "--target", "y"), "nowhere.csv: there is no such file"),
        (("compare", "digits", "--target", "y"), "expected a file that ends in .csv, .npz, .parquet"),
        (("compare", "wine", "--device", "abacus"), "expected device as 'cpu'"),
        (("fit", "nowhere.csv", "--target", "y"), "there is no such file"),
        (("fit", "nowhere.csv", "--target", "y", "--method", "MPA"), "Did you mean 'MAP'?"),
        (("fit", "nowhere.csv", "--target", "y", "--set", "epoch=3"), "Did you mean 'epochs'?"),
        (
            ("fit", "nowhere.csv", "--target", "y", "--set", "epochs=many"),
            "expected epochs of MAP as int or None, got 'many'",
        ),
        (
            ("fit", "nowhere.csv", "--target", "y", "--method", "Laplace", "--set", "structure=kfac"),
            "expected structure of Laplace as full or kronecker or eigen-corrected or diagonal or low-rank or None",
        ),
        (
            ("fit", "nowhere.csv", "--target", "y", "--method", "Laplace", "--set", "where=3"),
            "expected where of Laplace as str or None, got '3'",
        ),
        (("fit", "nowhere.csv", "--target", "y", "--missing", "drop"), "expected missing among refuse, impute"),
        (("predict", "nowhere", "nowhere.csv"), "expected the folder of a posterior fitted to a file"),
        (("predict", "nowhere", "nowhere.csv", "--out", "p.txt"), "expected --out to end in .csv or .parquet"),
        (("predict", "nowhere", "nowhere.csv", "--level", "1"), "expected --level between 0 and 1"),
        (("evaluate", "nowhere", "nowhere.csv"), "expected the folder of a posterior fitted to a file"),
    ],
)
def test_wrong_arguments_get_one_line_and_status_2(words, message):
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in " ".join(result.output.split())
    assert "Traceback" not in result.output


@pytest.mark.slow
def test_a_pool_of_another_problem_is_refused(tmp_path):
    assert invoke("compare", "wine", "--method", "MAP", "--members", "2", "--out", str(tmp_path)).exit_code == 0
    result = invoke("compare", "breast_cancer", "--method", "MAP", "--members", "2", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "another problem" in result.output and "layers.0.weight" in result.output


def test_methods_lists_all_and_describes_one():
    listed = invoke("methods").output
    assert "MAP" in listed and "EMA" in listed
    one = invoke("methods", "ema").output
    assert "horizon" in one and "5.0" in one and "Epochs after which" in one


def test_studies_are_listed():
    listed = " ".join(invoke("study").output.replace("│", " ").split())
    assert "How does a deep ensemble improve" in listed and "beside a linear model and gradient boosting." in listed


def test_an_installed_package_says_where_the_studies_are(monkeypatch, tmp_path):
    monkeypatch.setattr("basinet.cli.tools.CHECKOUT", tmp_path)
    result = invoke("study", "size")
    assert result.exit_code == 2 and "clone the repository" in " ".join(result.output.split())


@pytest.mark.slow
def test_what_a_study_defines_travels_to_machines_without_a_checkout(tmp_path):
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    from basinet.cli import tools
    from studies import uci

    tools._travels(tools._studies())
    (tmp_path / "sent").write_bytes(cloudpickle.dumps(uci._mean_and_error))
    code = "import pickle, sys; print(pickle.load(open('sent', 'rb'))([1.0, 3.0]), 'studies' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path)
    assert run.stdout.split() == ["2", "±", "1", "False"], run.stderr


@pytest.mark.slow
def test_check_passes_and_prints_what_theory_says():
    result = invoke("check", "EMA")
    assert result.exit_code == 0, result.output
    assert "theory says" in result.output and "0 failed" in result.output


@pytest.mark.slow
def test_check_fails_with_status_1_when_a_method_is_wrong(monkeypatch):
    from basinet.methods.ema import EMA

    monkeypatch.setattr(EMA, "absorb", lambda self, state, step: (state._replace(memory=state.params), None))
    result = invoke("check", "EMA")
    assert result.exit_code == 1
    assert "FAIL" in result.output


@pytest.mark.slow
def test_ctrl_c_leaves_whole_files_and_a_clear_message(tmp_path):
    words = [sys.executable, "-m", "basinet", "compare", "digits", "--members", "40", "--out", str(tmp_path)]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ)
    deadline = time.monotonic() + 120
    while not list(tmp_path.glob("pool/*/member-*")) and time.monotonic() < deadline:
        time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=120)
    assert process.returncode == 130
    assert "stopped" in stderr and "same command" in stderr and "Traceback" not in stderr
    assert not list(tmp_path.rglob(".*.safetensors*"))  # no temporary file stays
    from basinet.pool import read_tensors

    for file in tmp_path.rglob("*.safetensors"):
        read_tensors(file)


# Files


def houses(path, n, seed=0):
    """A csv of a user: an identifier, a number, a category, a date, missing cells, and a price."""
    r = random.Random(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "size", "city", "sold", "price"])
        for i in range(n):
            size, city = r.uniform(30, 200), r.choice(["Bern", "Basel", "Chur"])
            sold = date(2020, 1, 1) + timedelta(days=r.randrange(1000))
            price = 3000 * size + 50_000 * (city == "Bern") + r.gauss(0, 10_000)
            shown = "" if r.random() < 0.05 else f"{size:.1f}"
            writer.writerow([f"H{seed}-{i}", shown, city, sold, f"{price:.0f}"])
    return str(path)


def flowers(path, n=90, seed=0):
    """A csv with three classes by name."""
    r = random.Random(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["x", "y", "kind"])
        for i in range(n):
            writer.writerow([f"{i % 3 + r.gauss(0, 0.3):.3f}", f"{r.gauss(0, 1):.3f}", ("iris", "rose", "[/x]")[i % 3]])
    return str(path)


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


QUICK = ("--members", "2", "--set", "epochs=30")


@pytest.mark.slow
def test_a_file_from_compare_to_predict(tmp_path):
    train, new = houses(tmp_path / "houses.csv", 200), houses(tmp_path / "new.csv", 40, seed=1)
    words = ("--target", "price", "--missing", "impute")
    short = ("--members", "2", "--set", "MAP.epochs=100", "--out", str(tmp_path / "run"))
    result = invoke("compare", train, *words, "--method", "MAP", *short)
    assert result.exit_code == 0, result.output
    assert "column 'id' is left out" in result.output and "RMSE" in result.output
    rmse = read_records(tmp_path / "run" / "records.jsonl")[-1]["scores"]["rmse"]
    assert 5_000 < rmse < 150_000  # in francs, not in standard deviations

    fitted = str(tmp_path / "fitted")
    result = invoke("fit", train, *words, *QUICK, "--set", "batch_size=20", "--out", fitted)
    assert result.exit_code == 0, result.output
    assert "170 training, 30 validation rows" in result.output
    assert "by validation: CRPS" in result.output and "Spread of the mixture: multiplied by" in result.output

    out = tmp_path / "predictions.csv"
    result = invoke("predict", fitted, new, "--out", str(out))
    assert result.exit_code == 0, result.output
    predicted, truth = read(out), [float(row["price"]) for row in read(new)]
    assert list(predicted[0]) == ["mean", "sd", "aleatoric", "epistemic", "low", "high"] and len(predicted) == 40
    for row in predicted:
        x = {name: float(value) for name, value in row.items()}
        assert x["low"] < x["mean"] < x["high"]
        assert x["sd"] ** 2 == pytest.approx(x["aleatoric"] + x["epistemic"], rel=1e-6)
        assert x["high"] - x["low"] == pytest.approx(2 * 1.645 * x["sd"], rel=0.1)

    result = invoke("evaluate", fitted, new, "--out", str(tmp_path / "scores.jsonl"))
    assert result.exit_code == 0, result.output
    [record] = read_records(tmp_path / "scores.jsonl")
    scores = record["scores"]
    errors = [float(row["mean"]) - y for row, y in zip(predicted, truth)]
    assert scores["rmse"] == pytest.approx(math.sqrt(sum(e * e for e in errors) / len(errors)), rel=1e-5)
    inside = [float(row["low"]) <= y <= float(row["high"]) for row, y in zip(predicted, truth)]
    assert scores["coverage_90"] == pytest.approx(sum(inside) / len(inside))
    assert math.log(1_000) < scores["nll"] < math.log(1_000_000)  # a density per franc
    assert (record["members"], record["data"]) == (2, "new.csv")
    assert "not for new data" in invoke("evaluate", fitted, train).output


def test_classes_by_name_and_files_of_every_kind(tmp_path):
    pytest.importorskip("pyarrow")
    from basinet.tables import read_table
    from basinet.tables.values import numbers

    train, fitted = flowers(tmp_path / "flowers.csv"), str(tmp_path / "fitted")
    assert invoke("fit", train, "--target", "kind", *QUICK, "--out", fitted).exit_code == 0
    cells = read(train)
    columns = {name: np.array([float(row[name]) for row in cells]) for name in ("y", "x")}  # in another order
    np.savez(tmp_path / "new.npz", **columns)
    for file, out in ((train, "a.csv"), (tmp_path / "new.npz", "b.parquet")):
        result = invoke("predict", fitted, str(file), "--out", str(tmp_path / out))
        assert result.exit_code == 0, result.output
    first, second = read_table(tmp_path / "a.csv").columns, read_table(tmp_path / "b.parquet").columns
    assert list(first) == list(second) == ["class", "entropy", "aleatoric", "epistemic", "p_[/x]", "p_iris", "p_rose"]
    assert first["class"].tolist() == second["class"].tolist()
    probs = np.stack([numbers(first[f"p_{name}"], name) for name in ("[/x]", "iris", "rose")])
    np.testing.assert_allclose(probs.sum(0), 1, rtol=1e-6)
    right = np.mean(first["class"] == np.array([row["kind"] for row in cells], object))
    assert right > 0.7
    result = invoke("evaluate", fitted, train)
    assert result.exit_code == 0 and f"{right:.6g}" in result.output


def test_a_calibrated_fit_predicts_intervals_and_sets_with_the_stated_coverage(tmp_path):
    train, new = houses(tmp_path / "houses.csv", 400), houses(tmp_path / "new.csv", 300, seed=1)
    words = ("--target", "price", "--missing", "impute", *QUICK, "--val", "0.3", "--conformal", "0.8")
    fitted, out = str(tmp_path / "fitted"), tmp_path / "predictions.csv"
    assert invoke("fit", train, *words, "--out", fitted).exit_code == 0
    result = invoke("predict", fitted, new, "--out", str(out))
    assert result.exit_code == 0 and "probability 0.8 (calibrated on 120 rows)" in result.output
    predicted, truth = read(out), [float(row["price"]) for row in read(new)]
    assert list(predicted[0])[-2:] == ["conformal_low", "conformal_high"]
    inside = [float(r["conformal_low"]) <= y <= float(r["conformal_high"]) for r, y in zip(predicted, truth)]
    mean, sd = promised(120, 300, 0.8)
    assert abs(sum(inside) / 300 - mean) < 4 * sd
    result = invoke("predict", fitted, new, "--out", str(out), "--samples", "1")
    assert "calibrated for the default number of samples" in result.output

    train, fitted = flowers(tmp_path / "flowers.csv"), str(tmp_path / "flowers")
    words = ("--target", "kind", *QUICK, "--val", "0.3", "--conformal", "0.8", "--out", fitted)
    assert invoke("fit", train, *words).exit_code == 0
    assert invoke("predict", fitted, train, "--out", str(out)).exit_code == 0
    rows = read(out)
    assert list(rows[0])[-1] == "conformal_set" and {len(r["conformal_set"].split("|")) for r in rows} <= {1, 2, 3}
    assert all(r["class"] in r["conformal_set"].split("|") for r in rows)  # never empty
    assert np.mean([y["kind"] in r["conformal_set"].split("|") for r, y in zip(rows, read(train))]) > 0.7


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--conformal", "1.5"), "expected --conformal between 0 and 1, such as 0.9, got 1.5"),
        (("--conformal", "0.9", "--val", "0"), "--conformal 0.9 needs at least 9 rows to calibrate on, got 0: raise"),
        (("--conformal", "0.99"), "--conformal 0.99 needs at least 99 rows to calibrate on, got 1"),
        (("--conformal", "0.9", "--val", "0.5"), "--val 0.5 is kept twice, to validate and to calibrate"),
    ],
)
def test_a_calibration_that_would_not_hold_is_refused_before_training(tmp_path, words, said):
    result = invoke("fit", flowers(tmp_path / "f.csv"), "--target", "kind", *words, "--out", str(tmp_path / "fitted"))
    assert result.exit_code == 2 and said in " ".join(result.output.split())
    assert not (tmp_path / "fitted").exists()


def test_a_fit_resumes_from_its_pool_and_replaces_what_was_saved(tmp_path):
    train, fitted = flowers(tmp_path / "flowers.csv"), tmp_path / "fitted"
    words = ("fit", train, "--target", "kind", "--set", "epochs=3", "--out", str(fitted))
    assert invoke(*words, "--members", "2").exit_code == 0
    files = {p: p.stat().st_mtime_ns for p in (fitted / "pool").rglob("*.safetensors")}
    assert invoke(*words, "--members", "3").exit_code == 0
    now = {p: p.stat().st_mtime_ns for p in (fitted / "pool").rglob("*.safetensors")}
    assert len(now) == 3 and files.items() <= now.items()
    assert invoke("predict", str(fitted), train, "--out", str(tmp_path / "p.csv")).exit_code == 0
    manifest = (fitted / "posterior.json").read_bytes()
    assert invoke(*words, "--members", "1").exit_code == 0
    (fitted / "posterior.json").write_bytes(manifest)  # as if it had been stopped between the two files
    result = invoke("predict", str(fitted), train, "--out", str(tmp_path / "p.csv"))
    assert result.exit_code == 2 and "belongs to another posterior" in result.output


def test_a_network_of_the_user(tmp_path):
    train = flowers(tmp_path / "flowers.csv")
    net = tmp_path / "net.py"
    net.write_text(
        "from torch import nn\n"
        "def sized(inputs, outputs):\n"
        "    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, outputs))\n"
        "def named(outputs_first=0, width=8):\n    return nn.Linear(2, 3)\n"
        "def wrong(inputs, outputs, depth):\n    return nn.Linear(inputs, outputs)\n"
        "def fails(inputs, outputs):\n    raise KeyError('depth')\n"
        "def nothing():\n    return 3\n"
        "def narrow():\n    return nn.Linear(7, 3)\n"
    )
    for name in ("sized", "named"):
        fitted, model = str(tmp_path / name), f"{net}:{name}"
        words = ("fit", train, "--target", "kind", "--members", "2", "--set", "epochs=2", "--out", fitted)
        result = invoke(*words, "--model", model)
        assert result.exit_code == 0, result.output
        out = ("--out", str(tmp_path / "p.csv"))
        result = invoke("predict", fitted, train, *out)
        assert result.exit_code == 2 and f"pass --model {model}" in result.output
        assert invoke("predict", fitted, train, *out, "--model", model).exit_code == 0
    result = invoke("predict", fitted, train, *out, "--model", f"{net}:sized")
    assert result.exit_code == 2 and "it belongs to another model" in result.output
    for name, message in {
        "wrong": "of (inputs, outputs) or of nothing, got one of (inputs, outputs, depth)",
        "fails": "fails failed: KeyError: 'depth'",
        "nothing": "to return an nn.Module, got int",
        "narrow": "the network does not run on the data",
        "absent": "has no function 'absent'",
    }.items():
        result = invoke("fit", train, "--target", "kind", "--model", f"{net}:{name}", "--out", str(tmp_path / "no"))
        assert result.exit_code == 2 and message in result.output
    net.write_text("def (")
    for model, message in (
        (f"{net}:a", "cannot be run: SyntaxError"),
        ("net.py", "FILE.py:NAME"),
        ("no.py:a", "no file"),
    ):
        result = invoke("fit", train, "--target", "kind", "--model", model, "--out", str(tmp_path / "no"))
        assert result.exit_code == 2 and message in result.output


def test_a_bad_file_gets_one_line_and_status_2(tmp_path):
    train, fitted = flowers(tmp_path / "flowers.csv"), str(tmp_path / "fitted")
    assert (
        invoke("fit", train, "--target", "kind", "--members", "1", "--set", "epochs=1", "--out", fitted).exit_code == 0
    )
    (tmp_path / "new.csv").write_text("x,kind\n1,iris\n")
    (tmp_path / "tulip.csv").write_text("x,y,kind\n1,2,tulip\n")
    out = ("--out", str(tmp_path / "p.csv"))
    new = str(tmp_path / "new.csv")
    for words, message in (
        (("fit", train), "expected --target with the column to predict, one of 'x', 'y', 'kind'"),
        (("compare", train), "expected --target with the column to predict, one of 'x', 'y', 'kind'"),
        (("fit", train, "--target", "kinds"), "there is no column 'kinds'. Did you mean 'kind'?"),
        (("fit", train, "--target", "kind", "--kind", "real"), "expected numbers"),
        (("fit", train, "--target", "kind", "--drop", "z"), "there is no column 'z'"),
        (("predict", fitted, new, *out), "got none named 'y'; there are 'x', 'kind'"),
        (("predict", fitted, train, "--out", train), "differ from the file that is read"),
        (("evaluate", fitted, str(tmp_path / "tulip.csv")), "got 'tulip' in row 1"),
    ):
        result = invoke(*words)
        assert result.exit_code == 2, words
        lines = [line for line in result.output.splitlines() if line.startswith("error:")]
        assert len(lines) == 1 and message in lines[0]
        assert "Traceback" not in result.output
    assert not (tmp_path / "p.csv").exists()


def test_ten_rows_are_enough(tmp_path):
    path = tmp_path / "ten.csv"
    path.write_text("a,b\n" + "".join(f"{(i * 7) % 10},{i / 2}\n" for i in range(10)))
    fitted = str(tmp_path / "fitted")
    result = invoke("fit", str(path), "--target", "b", "--members", "2", "--set", "epochs=2", "--out", fitted)
    assert result.exit_code == 0, result.output
    assert "9 training, 1 validation rows" in result.output
    assert invoke("predict", fitted, str(path), "--out", str(tmp_path / "p.csv")).exit_code == 0
    words = ("fit", str(path), "--target", "b", "--members", "1", "--set", "epochs=2", "--val", "0")
    result = invoke(*words, "--out", str(tmp_path / "all"))
    assert result.exit_code == 0 and "10 training, 0 validation rows" in result.output
