"""The command line, as a user meets it."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from basinet import __version__
from basinet.cli import app
from basinet.pool import read_records

runner = CliRunner()


def invoke(*words: str):
    return runner.invoke(app, list(words), catch_exceptions=True)


def test_version_and_help():
    assert invoke("--version").output.strip() == __version__
    for command in ("compare", "methods", "check", "study"):
        assert command in invoke("--help").output
        assert invoke(command, "--help").exit_code == 0


def test_compare_prints_a_table_and_leaves_records_and_a_pool(tmp_path):
    out = tmp_path / "run"
    result = invoke("compare", "wine", "--members", "3", "--out", str(out))
    assert result.exit_code == 0, result.output
    for word in (
        "method",
        "members",
        "NLL",
        "Brier",
        "ECE",
        "accuracy",
        "epistemic",
        "seconds",
        "deep ensemble",
        "EMA",
    ):
        assert word in result.output
    records = read_records(out / "records.jsonl")
    assert [(r["method"], r["members"]) for r in records if r["recipe"]["type"] == "method/MAP"] == [
        ("MAP", 1),
        ("deep ensemble", 3),
    ]
    for record in records:
        assert record["data"] == "wine" and record["seed"] == 0 and record["n_test"] == record["scores"]["n"]
        assert record["versions"]["basinet"] == __version__
        assert json.dumps(record)
    assert len(list((out / "pool").glob("map-*/member-*.safetensors"))) == 3


def test_compare_of_regression_has_its_own_columns(tmp_path):
    result = invoke("compare", "diabetes", "--method", "map", "--members", "2", "--out", str(tmp_path / "run"))
    assert result.exit_code == 0, result.output
    assert all(word in result.output for word in ("RMSE", "CRPS", "90% interval"))


def test_the_same_command_again_trains_nothing_and_says_the_same(tmp_path):
    words = ("compare", "wine", "--method", "MAP", "--members", "2", "--out", str(tmp_path))
    assert invoke(*words).exit_code == 0
    files = {p: p.stat().st_mtime_ns for p in (tmp_path / "pool").rglob("*.safetensors")}
    assert invoke(*words).exit_code == 0
    assert files == {p: p.stat().st_mtime_ns for p in (tmp_path / "pool").rglob("*.safetensors")}
    records = read_records(tmp_path / "records.jsonl")
    assert [r["scores"] for r in records[:2]] == [r["scores"] for r in records[2:]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("compare", "digit"), "Did you mean 'digits'?"),
        (("compare", "digits", "--method", "MPA"), "Did you mean 'MAP'?"),
        (("methods", "MPA"), "Did you mean 'MAP'?"),
        (("check", "MPA"), "Did you mean 'MAP'?"),
        (("study", "siz"), "Did you mean 'size'?"),
        (("compare", "fashion_mnist"), "pass folder="),
    ],
)
def test_wrong_words_get_one_line_and_status_2(words, message):
    result = invoke(*words)
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output


def test_a_pool_of_another_problem_is_refused(tmp_path):
    assert invoke("compare", "wine", "--method", "MAP", "--members", "2", "--out", str(tmp_path)).exit_code == 0
    result = invoke("compare", "breast_cancer", "--method", "MAP", "--members", "2", "--out", str(tmp_path))
    assert result.exit_code == 2
    assert "another problem" in result.output and "layers.0.weight" in result.output


def test_methods_lists_all_and_describes_one():
    listed = invoke("methods").output
    assert "MAP" in listed and "EMA" in listed
    one = invoke("methods", "ema").output
    assert "horizon" in one and "5.0" in one and "epochs after which" in one


def test_studies_are_listed():
    assert "How does a deep ensemble improve" in invoke("study").output


def test_check_passes_and_prints_what_theory_says():
    result = invoke("check", "EMA")
    assert result.exit_code == 0, result.output
    assert "theory says" in result.output and "0 failed" in result.output


def test_check_fails_with_status_1_when_a_method_is_wrong(monkeypatch):
    from basinet.methods.ema import EMA

    monkeypatch.setattr(EMA, "absorb", lambda self, state, batch: state._replace(memory=state.params))
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
