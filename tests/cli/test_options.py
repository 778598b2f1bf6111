"""What the command lets a user set: rows, columns, network, likelihood and prior, and that it prints what it used."""

from __future__ import annotations

import csv
import json
import random
from datetime import date, timedelta

import pytest
from typer.testing import CliRunner

from basinet.cli import app
from basinet.pool import read_json, write_json

runner = CliRunner()
QUICK = ("--members", "2", "--set", "epochs=2")


def invoke(*words):
    return runner.invoke(app, [str(word) for word in words], catch_exceptions=True)


def said(result):
    return " ".join(result.output.split())


@pytest.fixture
def sales(tmp_path):
    """Rows with dates, shops, an export's own split, and a total that is the sum of two columns."""
    r = random.Random(0)
    path = tmp_path / "sales.csv"
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["day", "shop", "part", "net", "tax", "noise", "total"])
        for i in range(120):
            net, tax = r.uniform(10, 90), r.uniform(1, 9)
            part = "train" if i < 80 else "val" if i < 100 else "test"
            day = date(2024, 1, 1) + timedelta(days=i * 37 % 120)
            noise, total = f"{r.gauss(0, 1):.3f}", f"{net + tax:.3f}"
            writer.writerow([day, f"s{i % 8}", part, f"{net:.3f}", f"{tax:.3f}", noise, total])
    return path


def test_fit_and_compare_warn_of_a_sum_of_two_columns(sales, tmp_path):
    drop = ("--drop", "part", "--drop", "shop", "--split", "random")
    for command, out in (("fit", "a"), ("compare", "b")):
        quick = QUICK if command == "fit" else ("--methods", "MAP", "--members", 2, "--set", "MAP.epochs=2")
        result = invoke(command, sales, "--target", "total", *drop, *quick, "--out", tmp_path / out)
        assert result.exit_code == 0, result.output
        assert "a linear function of the inputs predicts the target" in said(result)
        assert "mostly from 'net', 'tax'" in said(result)
    run = json.loads((tmp_path / "b" / "run.json").read_text())
    assert any("linear function" in line for line in run["warnings"])


@pytest.mark.parametrize(
    ("split", "sizes"),
    [
        ("time", "72 training, 24 validation, 24 test"),
        ("group:shop", "75 training, 30 validation, 15 test"),
        ("column:part", "80 training, 20 validation, 20 test"),
    ],
)
def test_rows_are_split_as_asked(sales, tmp_path, split, sizes):
    words = ("compare", sales, "--target", "total", "--drop", "tax", "--split", split, "--unseen", "other")
    result = invoke(*words, "--methods", "MAP", "--members", 2, "--set", "MAP.epochs=2", "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    assert sizes in said(result) and f"split by {split.partition(':')[0]}" in said(result)
    assert "rows are split at random" not in said(result)


def test_dates_with_a_split_at_random_are_warned_of(sales, tmp_path):
    result = invoke("fit", sales, "--target", "total", "--drop", "part", *QUICK, "--out", tmp_path / "fit")
    assert result.exit_code == 0 and "'day' has dates, and rows are split at random" in said(result)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "prior Normal(scale=3.0), likelihood Heteroscedastic(floor=0.001, learned=True)"),
        (("--prior", "0.5"), "prior Normal(scale=0.5)"),
        (("--likelihood", "Gaussian"), "likelihood Gaussian(noise=0.5, learned=True)"),
        (("--likelihood", "StudentT:df=3", "--prior", "Laplace"), "likelihood StudentT(df=3, scale=0.5, learned=True)"),
        (("--width", "7,5"), "prior Normal"),
        (("--set", "optimizer.lr.peak=0.02"), "2 x MAP(epochs=2), step size 2e-2;"),
    ],
)
def test_what_matters_can_be_set_is_printed_and_predicts(sales, tmp_path, options, message):
    fitted = tmp_path / "fitted"
    words = ("fit", sales, "--target", "total", "--drop", "part", "--split", "random")
    result = invoke(*words, *QUICK, *options, "--out", fitted)
    assert result.exit_code == 0, result.output
    assert message in said(result)
    for command, out in (("predict", "p.csv"), ("evaluate", "s.jsonl")):
        result = invoke(command, fitted, sales, "--out", tmp_path / out)
        assert result.exit_code == 0, result.output
    network = read_json(fitted / "table.json")["network"]
    assert network["outputs"] == (1 if "--likelihood" in options else 2)
    assert network["hidden"] == ([7, 5] if "--width" in options else [128, 128, 128])


@pytest.mark.parametrize("command", ["cost", "advise"])
def test_cost_and_advice_take_what_fit_takes(sales, tmp_path, command):
    words = (command, sales, "--target", "total", "--drop", "part", "--category", "tax", "--unseen", "other")
    result = invoke(*words, "--width", "5", "--split", "time", *(("--method", "MAP") if command == "cost" else ()))
    assert result.exit_code == 0, result.output
    result = invoke(*words, "--drop", "none")
    assert result.exit_code == 2 and "there is no column 'none'" in said(result)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--members", "100000"), "less than or equal to 10000"),
        (("--likelihood", "Categorical"), "expected a likelihood of real, Heteroscedastic or Gaussian or StudentT"),
        (("--width", "5", "--model", "net.py:net"), "expected --width or --model, got both"),
        (("--split", "weekday"), "expected split as random, time, time:COL, group:COL or column:COL"),
        (("--split", "group:region"), "there is no column 'region'"),
        (("--split", "time", "--group-duplicates"), "expected duplicates to be grouped in a split at random"),
        (("--set", "optimizer.rate=3"), "Known: eps, lr, lr.floor, lr.peak, weight_decay"),
    ],
)
def test_impossible_options_are_refused_in_one_line(sales, tmp_path, words, message):
    result = invoke("fit", sales, "--target", "total", "--out", tmp_path / "no", *words)
    assert result.exit_code == 2 and message in said(result), result.output
    assert not (tmp_path / "no").exists()


def test_running_a_model_file_is_announced(sales, tmp_path):
    file = tmp_path / "net.py"
    file.write_text("from torch import nn\ndef net(inputs, outputs):\n    return nn.Linear(inputs, outputs)\n")
    words = ("fit", sales, "--target", "total", "--drop", "part", "--split", "random", *QUICK)
    result = invoke(*words, "--model", f"{file}:net", "--out", tmp_path / "fitted")
    assert result.exit_code == 0 and "is run as a program, for its function net" in said(result)
    assert "The file is executed" in said(invoke("fit", "--help")).replace("│ │ ", "")


def test_formulas_among_classes_are_neutralised(tmp_path):
    train = tmp_path / "t.csv"
    train.write_text("x,kind\n" + "\n".join(f"{i * 7 % 11}.5,{('=1+1', 'b')[i % 2]}" for i in range(30)))
    assert invoke("fit", train, "--target", "kind", *QUICK, "--out", tmp_path / "f").exit_code == 0
    assert invoke("predict", tmp_path / "f", train, "--out", tmp_path / "p.csv").exit_code == 0
    with open(tmp_path / "p.csv", newline="") as file:
        classes = {row["class"] for row in csv.DictReader(file)}
    assert classes <= {"'=1+1", "b"}


@pytest.mark.parametrize("scale", [1e-200, 1e-30, 1e30, 1e200])
@pytest.mark.parametrize("where", ["input", "target"])
def test_very_large_and_small_columns_give_results_or_one_line(tmp_path, scale, where):
    r = random.Random(1)
    own, other = (scale, 1.0) if where == "input" else (1.0, scale)
    train = tmp_path / "t.csv"
    train.write_text("x,y\n" + "\n".join(f"{own * r.gauss(0, 1)!r},{other * r.gauss(0, 1)!r}" for _ in range(30)))
    result = invoke("fit", train, "--target", "y", *QUICK, "--out", tmp_path / "f")
    if where == "target":
        assert result.exit_code == 2 and "use another unit" in said(result)
        return
    assert result.exit_code == 0, result.output
    assert invoke("predict", tmp_path / "f", train, "--out", tmp_path / "p.csv").exit_code == 0
    assert invoke("evaluate", tmp_path / "f", train, "--out", tmp_path / "s.jsonl").exit_code == 0
    quick = ("--methods", "MAP", "--members", 2, "--set", "MAP.epochs=1")
    result = invoke("compare", train, "--target", "y", *quick, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.pop("encoder"),
        lambda t: t.pop("file"),
        lambda t: t.update(encoder=3),
        lambda t: t.update(outputs="x"),
        lambda t: t.update(hidden=[0]),
        lambda t: t.update(hidden="wide"),
    ],
)
def test_an_edited_table_file_gives_a_result_or_one_line(sales, tmp_path, change):
    fitted = tmp_path / "fitted"
    words = ("fit", sales, "--target", "total", "--drop", "part", "--split", "random")
    assert invoke(*words, *QUICK, "--out", fitted).exit_code == 0
    content = read_json(fitted / "table.json")
    change(content)
    write_json(fitted / "table.json", content)
    result = invoke("predict", fitted, sales, "--out", tmp_path / "p.csv")
    assert result.exit_code in (0, 2) and (result.exception is None or isinstance(result.exception, SystemExit))
    assert "Traceback" not in result.output


@pytest.mark.parametrize("command", ["fit", "compare", "predict", "stream"])
def test_the_help_of_a_command_is_wrapped_by_the_terminal_alone(command):
    [help_text] = [c.help for c in app.registered_commands if (c.name or c.callback.__name__) == command]
    first, *rest = help_text.split("\n\n")
    assert rest and "\n" not in first + "".join(rest) and all(len(p) > 150 for p in rest)


def test_a_stream_takes_no_split():
    result = invoke("stream", "rows.csv", "--target", "y", "--time", "t", "--split", "random")
    assert result.exit_code == 2 and "No such option" in said(result)
