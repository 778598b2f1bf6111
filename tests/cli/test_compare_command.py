"""`basinet compare` on files: labels, given weights, leaks, few rows, many classes, and what is wrong with them."""

import csv
import json
import random
import sys

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from basinet.cli import app
from basinet.cli.files import _promise
from basinet.pool import read_records

torch.set_num_threads(1)
NET = """
from torch import nn

def net(inputs, outputs):
    return nn.Sequential(nn.Linear(inputs, 4), nn.Tanh(), nn.Linear(4, outputs))
"""


BRIEF = ("--members", "2", "--set", "MAP.epochs=2")


def invoke(*words: str):
    return CliRunner().invoke(app, list(words), catch_exceptions=True)


def written(path, header, rows):
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(rows)
    return str(path)


def about(out):
    return json.loads((out / "run.json").read_text())


def test_a_table_in_units_with_warnings_and_rows_as_they_were(tmp_path):
    r = random.Random(0)
    order = r.sample(range(100, 160), 60)  # counts the rows, in another order
    sizes = [r.uniform(30, 200) for _ in order]
    rows = [
        [n, f"{x:.1f}", "CH", r.choice("ab"), f"2021-0{r.randint(1, 9)}-11", f"{3000 * x + r.gauss(0, 9000):.0f}"]
        for n, x in zip(order, sizes)
    ]
    train = written(tmp_path / "houses.csv", ["id", "size", "land", "kind", "sold", "price"], rows)
    out = tmp_path / "run"
    result = invoke("compare", train, "--target", "price", "--methods", "MAP", *BRIEF, "--out", str(out))
    assert result.exit_code == 0, result.output
    record = about(out)
    assert record["finished"] and record["target"] == "price" and record["kind"] == "real"
    assert ["id" in line for line in record["warnings"][:2]] == [True, False] and "'land'" in record["warnings"][1]
    assert all(f"warning: {line}" in result.output for line in record["warnings"])
    assert record["inputs"]["columns"] == ["size", "kind", "sold"]
    with np.load(out / "test.npz", allow_pickle=False) as test:
        cells = {(f"{float(size):.1f}", kind, sold) for size, kind, sold in test["inputs"]}
        assert cells <= {(row[1], row[3], row[4]) for row in rows}
        assert {f"{y:.0f}" for y in test["targets"]} <= {row[-1] for row in rows}


def test_a_column_that_gives_the_target_away_is_warned_of(tmp_path):
    r = random.Random(0)
    rows = [[f"{r.gauss(0, 1):.3f}", f"{3 * y + 0.5:.4f}", f"{y:.4f}"] for y in (r.gauss(0, 1) for _ in range(60))]
    train = written(tmp_path / "leak.csv", ["x", "bill", "price"], rows)
    words = ("compare", train, "--target", "price", "--methods", "MAP", *BRIEF)
    result = invoke(*words, "--out", str(tmp_path / "a"))
    assert result.exit_code == 0 and "'bill' alone determines the target" in " ".join(result.output.split())
    assert any("'bill' alone" in line for line in about(tmp_path / "a")["warnings"])
    assert "alone determines" not in invoke(*words, "--drop", "bill", "--out", str(tmp_path / "b")).output


@pytest.mark.parametrize("target", ["y", "rain,wind"])
def test_labels_from_an_array_or_from_columns(tmp_path, target):
    x = np.linspace(-2, 2, 60)
    y = np.stack([x > 0, np.abs(x) > 1], 1)
    np.savez(tmp_path / "flags.npz", x=x, y=y)
    rows = [[f"{a:.3f}", int(b), str(bool(c)).lower()] for a, (b, c) in zip(x, y)]
    flags = written(tmp_path / "flags.csv", ["x", "rain", "wind"], rows)
    file = flags if "," in target else str(tmp_path / "flags.npz")
    out = tmp_path / "run"
    result = invoke("compare", file, "--target", target, "--methods", "MAP", "--members", "2", "--out", str(out))
    assert result.exit_code == 0, result.output
    assert "2 labels" in result.output and about(out)["kind"] == "labels"
    assert about(out)["classes"] == (["rain", "wind"] if "," in target else ["y.0", "y.1"])
    assert read_records(out / "records.jsonl")[-1]["scores"]["accuracy"] > 0.8
    fitted = str(tmp_path / "fitted")
    words = ("--members", "2", "--set", "epochs=20", "--out", fitted)
    assert invoke("fit", file, "--target", target, *words).exit_code == 0
    result = invoke("predict", fitted, file, "--out", str(tmp_path / "p.csv"))
    assert result.exit_code == 0, result.output
    with open(tmp_path / "p.csv", newline="") as handle:
        first = next(csv.DictReader(handle))
    assert list(first) == ["entropy", "aleatoric", "epistemic", *(f"p_{name}" for name in about(out)["classes"])]
    assert invoke("evaluate", fitted, file).exit_code == 0


def test_labels_that_are_not_zero_or_one_are_refused(tmp_path):
    rows = [[i % 7, i % 2, i % 3] for i in range(30)]
    train = written(tmp_path / "flags.csv", ["x", "rain", "wind"], rows)
    for target, message in (
        ("rain,wind", "label 'wind': expected labels, 0 or 1 (or false and true), got '2' in row 3"),
        ("rain,snow", "there is no column 'snow'"),
        ("rain,rain", "got 'rain' twice"),
    ):
        result = invoke("compare", train, "--target", target, "--out", str(tmp_path / "no"))
        assert result.exit_code == 2 and message in " ".join(result.output.split()), result.output
    result = invoke("compare", train, "--target", "rain,wind", "--kind", "real", "--out", str(tmp_path / "no"))
    assert result.exit_code == 2 and "expected one column for a target of kind 'real'" in result.output
    assert not (tmp_path / "no").exists()


def test_ten_rows_are_compared(tmp_path):
    train = written(tmp_path / "ten.csv", ["a", "b"], [[(i * 7) % 10, i / 2] for i in range(10)])
    words = ("--methods", "MAP,Laplace,PEP", *BRIEF, "--seeds", "2", "--out", str(tmp_path / "run"))
    result = invoke("compare", train, "--target", "b", *words)
    assert result.exit_code == 0, result.output
    assert "6 training, 2 validation, 2 test" in result.output and "± se" not in result.output  # of two seeds


def test_a_target_of_mixed_types_is_refused(tmp_path):
    train = written(tmp_path / "mixed.csv", ["a", "b"], [[i, "many" if i == 7 else i / 2] for i in range(30)])
    result = invoke("compare", train, "--target", "b", "--out", str(tmp_path / "no"))
    assert result.exit_code == 2 and "expected only names or only numbers" in result.output
    assert "got 'many' in row 8" in " ".join(result.output.split()) and not (tmp_path / "no").exists()


def test_a_network_and_its_weights(tmp_path):
    sys.modules.pop("basinet_model_net", None)
    rows = [[f"{i % 3 + 0.1 * (i % 5):.2f}", f"{i % 7}", "abc"[i % 3]] for i in range(60)]
    train = written(tmp_path / "flowers.csv", ["x", "y", "kind"], rows)
    (tmp_path / "net.py").write_text(NET)
    torch.manual_seed(0)
    scope: dict = {}
    exec(NET, scope)
    torch.save(scope["net"](2, 3).state_dict(), tmp_path / "net.pt")
    torch.save(scope["net"](4, 3).state_dict(), tmp_path / "wide.pt")
    words = ("compare", train, "--target", "kind", "--model", f"{tmp_path}/net.py:net")
    result = invoke(*words, "--weights", str(tmp_path / "net.pt"), "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    assert "left out, since they would train networks from scratch" in printed and "deep ensemble" in printed
    methods = [r["method"] for r in read_records(tmp_path / "run" / "records.jsonl")]
    assert methods[0] == "given network" and {"Laplace", "PEP", "SWAG"} <= set(methods) and "MAP" not in methods
    assert not list((tmp_path / "run" / "pool").glob("map-*"))  # nothing was trained from scratch
    result = invoke(*words, "--weights", str(tmp_path / "wide.pt"), "--out", str(tmp_path / "no"))
    assert result.exit_code == 2 and "0.weight is (4, 4) where (4, 2) was expected" in " ".join(result.output.split())
    (tmp_path / "net.py").write_text("raise RuntimeError('no licence')")
    result = invoke(*words, "--out", str(tmp_path / "no"))
    assert result.exit_code == 2 and "cannot be run: RuntimeError: no licence" in " ".join(result.output.split())
    assert not (tmp_path / "no").exists()


def test_the_folder_of_an_older_version_is_left_alone(tmp_path):
    (tmp_path / "records.jsonl").write_text('{"data": "wine", "method": "MAP", "scores": {}}\n')
    before = sorted(tmp_path.rglob("*"))
    result = invoke("compare", "wine", "--methods", "MAP", "--out", str(tmp_path))
    assert result.exit_code == 2 and "written by an older basinet" in result.output
    assert sorted(tmp_path.rglob("*")) == before


def test_a_terminal_without_the_characters_of_the_table_gets_it_too(tmp_path):
    import os
    import subprocess

    train = written(tmp_path / "ten.csv", ["a", "b"], [[(i * 7) % 10, i / 2] for i in range(20)])
    words = ("compare", train, "--target", "b", "--methods", "MAP", *BRIEF, "--out", str(tmp_path / "run"))
    for encoding in ("ascii", "latin-1"):
        process = subprocess.run(
            [sys.executable, "-m", "basinet", *words],
            env=os.environ | {"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
            capture_output=True,
            check=False,
        )
        assert process.returncode == 0, process.stderr.decode()
        assert b"deep ensemble" in process.stdout and b"Run: " in process.stdout


def test_an_evaluation_prints_whether_sets_have_the_stated_coverage(tmp_path):
    r = random.Random(0)
    rows = [[f"{x:.3f}", f"{2 * x + r.gauss(0, 0.5):.3f}"] for x in (r.uniform(-2, 2) for _ in range(300))]
    train, test = (
        written(tmp_path / "a.csv", ["x", "y"], rows[:200]),
        written(tmp_path / "b.csv", ["x", "y"], rows[200:]),
    )
    fitted, record = str(tmp_path / "fitted"), tmp_path / "record.jsonl"
    words = ("--members", "1", "--set", "epochs=60", "--val", "0.4", "--conformal", "0.9", "--out", fitted)
    result = invoke("fit", train, "--target", "y", *words)
    assert result.exit_code == 0, result.output
    result = invoke("evaluate", fitted, test, "--out", str(record))
    assert result.exit_code == 0, result.output
    printed = " ".join(result.output.split())
    [measured] = read_records(record)[0]["sets"]
    assert measured["kind"] == "scaled" and measured["level"] == 0.9 and measured["n"] == 80
    assert (
        f"promise 90.0%: they contain the truth in {measured['coverage']:.1%} of rows here" in printed
        and "wide on average" in printed
    )
    assert invoke("predict", fitted, test, "--out", str(tmp_path / "p.csv")).exit_code == 0
    with open(tmp_path / "p.csv", newline="") as file:
        sets = [(float(p["conformal_low"]), float(p["conformal_high"])) for p in csv.DictReader(file)]
    inside = [low <= float(row[1]) <= high for (low, high), row in zip(sets, rows[200:])]
    assert measured["coverage"] == pytest.approx(sum(inside) / 100)
    assert measured["size"] == pytest.approx(sum(high - low for low, high in sets) / 100, rel=1e-4)


@pytest.mark.parametrize(
    ("low", "high", "kept"), [(0.85, 0.95, "kept"), (0.93, 0.99, "kept"), (0.7, 0.88, "NOT KEPT"), (0.8, 0.9, "kept")]
)
def test_sets_that_contain_the_truth_more_often_than_promised_keep_their_promise(low, high, kept):
    sets = {"kind": "lac", "n": 50, "level": 0.9, "coverage": (low + high) / 2, "low": low, "high": high, "size": 1.25}
    assert _promise(sets, "classes").endswith(f"): {kept}") and "Conformal sets (lac" in _promise(sets, "classes")
    assert "Conformal intervals (lac" in _promise(sets, "real")
