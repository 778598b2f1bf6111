"""`basinet fit --shard I/N` and `--on ray`: shares of a fit as a job array trains them, and members on a cluster."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from basinet.cli import app
from basinet.core.tree import leaves
from basinet.tables.fitted import Fitted

QUICK = ["--target", "kind", "--members", "4", "--set", "epochs=3", "--set", "patience=None"]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    x = np.random.default_rng(0).normal(size=(80, 3))
    kinds = np.where(x[:, 0] + x[:, 1] > 0, "sunny", "grey")
    rows = [",".join(f"{v:.4f}" for v in row) + f",{kind}" for row, kind in zip(x, kinds)]
    (tmp_path / "days.csv").write_text("\n".join(["a,b,c,kind", *rows]) + "\n")
    return tmp_path / "days.csv"


def fit(table: Path, out: Path, *options: str) -> str:
    result = CliRunner().invoke(app, ["fit", str(table), "--out", str(out), *QUICK, *options])
    assert result.exit_code == 0, result.output
    return " ".join(result.output.split())


def members(folder: Path) -> list[torch.Tensor]:
    return leaves([part.family for part in Fitted.load(folder).posterior.parts])


def test_shares_are_gathered_by_the_same_command_without_training(table, tmp_path):
    out = tmp_path / "out"
    assert "2 of 4 members" in fit(table, out, "--shard", "1/2")
    assert "2 of 4 members" in fit(table, out, "--shard", "0/2")
    before = {path: path.stat().st_mtime_ns for path in out.rglob("member-*.safetensors")}
    assert len(before) == 4 and "Posterior:" in fit(table, out)
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("member-*.safetensors")}
    assert len(members(out)[0]) == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [(["--shard", "2/2"], "0 to N - 1"), (["--shard", "half"], "I/N"), (["--on", "spark"], "ray")],
)
def test_bad_arguments_get_one_line(table, tmp_path, options, words):
    result = CliRunner().invoke(app, ["fit", str(table), "--out", str(tmp_path / "out"), *QUICK, *options])
    assert result.exit_code == 2 or result.exit_code == 1
    assert words in " ".join(result.output.split()) and "Traceback" not in result.output


@pytest.mark.slow
def test_fit_and_compare_run_on_ray(table, tmp_path):
    pytest.importorskip("ray", reason='Ray is not installed: pip install "basinet[cluster]"')

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "basinet", *words]
        own = os.environ | {"RAY_ADDRESS": "local", "RAY_worker_niceness": "0"}  # not a cluster of other tests
        process = subprocess.run(command, capture_output=True, text=True, timeout=300, env=own)
        assert process.returncode == 0, process.stdout + process.stderr
        return process.stdout + process.stderr

    run("fit", str(table), "--out", str(tmp_path / "ray"), *QUICK, "--on", "ray")
    fit(table, tmp_path / "here", "--shard", "0/1")
    fit(table, tmp_path / "here")
    assert all(torch.equal(a, b) for a, b in zip(members(tmp_path / "ray"), members(tmp_path / "here"), strict=True))
    compared = run(
        "compare", str(table), "--target", "kind", "--methods", "MAP", "--members", "2", "--set", "MAP.epochs=2",
        "--out", str(tmp_path / "compared"), "--on", "ray",
    )  # fmt: skip
    assert "deep ensemble" in compared
