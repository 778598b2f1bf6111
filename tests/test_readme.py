"""README, CONTRIBUTING and the documentation tell the truth: programs print what they say, the tree is the tree, the
methods are the methods, links lead somewhere."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from basinet.methods import discover
from studies import resnets

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text()


@pytest.mark.slow
def test_the_program_prints_what_the_readme_says(tmp_path):
    program = re.search(r"## A program\n\n```python\n(.*?)```", README, re.DOTALL)[1]
    said = re.search(r"```text\n(.*?)```", README, re.DOTALL)[1]
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, timeout=600)
    assert run.returncode == 0, run.stderr
    number = re.compile(r"-?\d+\.?\d*")
    assert number.sub("#", run.stdout).split() == number.sub("#", said).split()
    printed, expected = ([float(x) for x in number.findall(text)] for text in (run.stdout, said))
    assert printed == pytest.approx(expected, rel=0.02, abs=2e-3)  # rounding differs between processors


def score_rows(text: str) -> dict[str, tuple[str, float, float | None, float | None]]:
    """Rows of a printed comparison: members, NLL, and the interval of the difference."""
    row = re.compile(
        r"^ (\S.*?)  +(\d+)  +(-?[\d.]+)  +(?:reference|[+-][\d.]+ \((-?[\d.]+), (-?[\d.]+)\)) ", re.MULTILINE
    )
    return {
        name: (members, float(nll), *(float(edge) if edge else None for edge in edges))
        for name, members, nll, *edges in row.findall(text)
    }


def test_the_first_comparison_is_what_its_page_says_of_it():
    rows = score_rows((ROOT / "docs" / "examples" / "start-compare.txt").read_text())
    assert len(rows) == 7 and "Here every interval includes zero" in (ROOT / "docs" / "start.md").read_text()
    assert all(low is None or low <= 0 <= high for _, _, low, high in rows.values())


@pytest.mark.slow
def test_the_first_comparison_prints_what_its_page_shows(tmp_path):
    page = (ROOT / "docs" / "start.md").read_text()
    program = re.search(r"```python\n(import numpy.*?)```", page, re.DOTALL)[1]
    command = re.search(r"```\nbasinet (compare patients.csv.*?)```", page, re.DOTALL)[1].replace("\\\n", "").split()
    for words in (["-c", program], ["-m", "basinet", *command]):
        run = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=tmp_path, timeout=1800)
        assert run.returncode == 0, run.stderr
    text = (ROOT / "docs" / "examples" / "start-compare.txt").read_text()
    shown, summary = score_rows(text), json.loads((tmp_path / "runs" / "patients" / "summary.json").read_text())["rows"]
    rows = {row["method"].replace(" (no posterior)", " *"): row for row in summary}
    assert {name: str(row["members"]) for name, row in rows.items()} == {name: row[0] for name, row in shown.items()}
    for name, row in rows.items():  # rounding differs between processors, and adds up
        assert row["nll"] == pytest.approx(shown[name][1], rel=0.01)
    legend = text[text.index("\nNLL, ") : text.index("\nRun:")]
    assert " ".join(legend.split()) in " ".join(run.stdout.split())


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
    lines = re.search(r"## The tree\n.*?```\n(.*?)```", CONTRIBUTING, re.DOTALL)[1].splitlines()
    listed = {line.split()[0] for line in lines if line.startswith("  ") and line[2] != " "}
    package = ROOT / "src" / "basinet"
    folders = {f"{p.name}/" for p in package.iterdir() if p.is_dir() and (p / "__init__.py").exists()}
    files = {p.name for p in package.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert listed == folders | files
    top = {line.split()[0] for line in lines if not line.startswith(" ")}
    assert all((ROOT / name).is_dir() for name in top)
    assert all(len(line.split()) > 1 for line in lines if line.startswith("  "))


def test_the_table_of_resnets_is_that_of_the_records():
    page = (ROOT / "docs" / "studies" / "resnets.md").read_text()
    lines = (ROOT / "results" / "resnets.jsonl").read_text().splitlines()
    rows = [r for r in map(json.loads, lines) if r["kind"] == "row" and r["n_report"] == 5000]
    recorded: dict[str, list[float]] = {}
    for r in rows:
        recorded.setdefault(r["method"], []).append(r["nll"])
        if r["network"] == resnets.FOUR:
            recorded[r["method"]] += [r["scores"][k] for k in ("brier", "ece", "accuracy")]
            recorded[r["method"]] += [r["auroc"][k] for k in ("svhn", "cifar100")]
    table = re.search(r"\| method \| ResNet-20 .*?\n\n", page, re.DOTALL)[0].strip().splitlines()[2:]
    cells = [[x.strip() for x in line.strip("|").split("|")] for line in table]
    shown = {name: [float(x) for x in values if x] for name, *values in cells}
    assert shown == {name: pytest.approx(values, abs=5.1e-4) for name, values in recorded.items()}


def test_every_method_is_in_the_readme_and_has_a_page():
    table = re.search(r"\| method \| what it is \| take it when \|\n(.*?)\n\n", README, re.DOTALL)[1]
    named = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.split("|")[1])}
    ours = {name: cls for name, cls in discover().items() if cls.__module__.startswith("basinet.")}
    assert named == set(ours)
    menu = (ROOT / "mkdocs.yml").read_text()
    for name, cls in ours.items():
        page = f"methods/{cls.__module__.split('.')[-1]}.md"
        assert f"- {name}: {page}\n" in menu
        text = (ROOT / "docs" / page).read_text()
        assert all(f"{{{{{part} {name}}}}}" in text for part in ("theory", "record", "fields"))


def test_the_readme_is_short():
    words = re.findall(r"[A-Za-z][\w'-]*", re.sub(r"```.*?```", "", README, flags=re.DOTALL))
    assert len(words) < 1000


@pytest.mark.parametrize("page", sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")))
def test_every_page_is_in_the_menu(page):
    assert f" {page.removeprefix('docs/')}\n" in (ROOT / "mkdocs.yml").read_text()


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_links_lead_somewhere(page):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / page).read_text())
    assert links
    for link in links:
        assert (ROOT / link).exists(), link


@pytest.mark.parametrize("name", ["theory", "compare", "tables"])
def test_records_that_pages_show_are_there(name):
    rows = [json.loads(line) for line in (ROOT / "results" / f"{name}.jsonl").read_text().splitlines()]
    assert len(rows) > 50
    if name == "theory":
        assert {r["subject"] for r in rows} >= {n for n, c in discover().items() if c.__module__.startswith("basinet.")}
        assert all(r["passed"] for r in rows)


def test_every_method_has_a_record_on_real_data():
    rows = [json.loads(line) for line in (ROOT / "results" / "methods.jsonl").read_text().splitlines()]
    recorded = {r["recipe"] for r in rows if r["data"] == "diabetes"}
    ours = {name for name, cls in discover().items() if cls.__module__.startswith("basinet.")}
    assert ours - recorded == {"NUTS"}, "python docs/tools/record.py NAME measures one; take it off this list"
    assert all("nll" in r or "failed" in r for r in rows) and all(r["reference_nll"] for r in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(path.stem for path in (ROOT / "examples").glob("*.py")))
def test_an_example_prints_what_its_page_shows(name, tmp_path):
    shown = (ROOT / "docs" / "examples" / f"{name}.txt").read_text()
    environment = os.environ | {"MPLBACKEND": "Agg"}
    command = [sys.executable, ROOT / "examples" / f"{name}.py", tmp_path / "picture.png"]
    run = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=600, env=environment)
    assert run.returncode == 0, run.stderr
    assert (tmp_path / "picture.png").stat().st_size > 2000
    number = re.compile(r"-?\d+\.?\d*")
    assert number.sub("#", run.stdout).split() == number.sub("#", shown).split()
    printed, expected = ([float(x) for x in number.findall(text)] for text in (run.stdout, shown))
    assert printed == pytest.approx(expected, rel=0.1, abs=0.02)  # rounding differs between processors, and adds up
