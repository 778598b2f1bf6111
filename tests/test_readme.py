"""The README tells the truth: its program prints what it says, its tree is the tree, its methods are the methods."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from basinet.methods import discover
from basinet.studies import resnets

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


@pytest.mark.slow
def test_the_program_prints_what_the_readme_says(tmp_path):
    program = re.search(r"## A program\n\n```python\n(.*?)```", README, re.DOTALL)[1]
    said = re.search(r"```text\n(.*?)```", README, re.DOTALL)[1]
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert run.returncode == 0, run.stderr
    number = re.compile(r"-?\d+\.?\d*")
    assert number.sub("#", run.stdout).split() == number.sub("#", said).split()
    found, expected = ([float(x) for x in number.findall(text)] for text in (run.stdout, said))
    assert found == pytest.approx(expected, rel=0.02, abs=2e-3)  # rounding differs between processors


@pytest.mark.slow
def test_a_type_checker_takes_the_program_and_what_else_predictions_have(tmp_path):
    program = re.search(r"## A program\n\n```python\n(.*?)```", README, re.DOTALL)[1]
    program += "print(predictive.mean + predictive.sd, predictive.quantile(0.5), predictive.interval(0.9)[1])\n"
    (tmp_path / "program.py").write_text(program)
    command = ["-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", tmp_path / "program.py"]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    run = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert run.returncode == 0, run.stdout


def test_the_tree_is_the_tree():
    lines = re.search(r"## The tree\n\n```\n(.*?)```", README, re.DOTALL)[1].splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("  ")}
    package = ROOT / "src" / "basinet"
    folders = {f"{p.name}/" for p in package.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    files = {p.name for p in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert listed == folders | files
    top = {line.split()[0] for line in lines if not line.startswith(" ")}
    assert all((ROOT / name).is_dir() for name in top)
    assert all(len(line.split()) > 1 for line in lines if line.startswith("  "))


def test_the_table_of_resnets_is_that_of_the_records():
    lines = (ROOT / "results" / "resnets.jsonl").read_text().splitlines()
    rows = [r for r in map(json.loads, lines) if r["kind"] == "row" and r["n_report"] == 5000]
    found: dict[str, list[float]] = {}
    for r in rows:
        found.setdefault(r["method"], []).append(r["nll"])
        if r["network"] == resnets.FOUR:
            found[r["method"]] += [r["scores"][k] for k in ("brier", "ece", "accuracy")]
            found[r["method"]] += [r["auroc"][k] for k in ("svhn", "cifar100")]
    table = re.search(r"\| method \| ResNet-20 .*?\n\n", README, re.DOTALL)[0].strip().splitlines()[2:]
    cells = [[x.strip() for x in line.strip("|").split("|")] for line in table]
    told = {name: [float(x) for x in values if x] for name, *values in cells}
    assert told == {name: pytest.approx(values, abs=5.1e-4) for name, values in found.items()}


def test_the_table_of_methods_lists_every_method():
    listed = set(re.findall(r"^\| `(\w+)` \|", README, re.MULTILINE))
    assert listed == {name for name, cls in discover().items() if cls.__module__.startswith("basinet.")}
