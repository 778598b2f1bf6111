"""What reaches a terminal: names from files steer nothing, and every encoding can be written."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time

import pytest
from rich.table import Table

from basinet.cli.console import SafeConsole, clear_errors, readable
from basinet.engine.workers import WorkerError


def printed(*lines, encoding="utf-8", **options):
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    console = SafeConsole(file=file, width=200, force_terminal=options.pop("terminal", False))
    for line in lines:
        console.print(line, **options)
    file.flush()
    return raw.getvalue().decode(encoding)


@pytest.mark.parametrize("bad", ["\x1b[2J", "\x1b]0;title\x07", "\x9b31m", "\u202eabc", "\x00", "\u2028"])
def test_control_characters_are_shown_and_not_sent(bad):
    table = Table(f"head {bad}")
    table.add_row(f"cell {bad}")
    text = printed(f"name {bad}", table, markup=False)
    assert not any(c in text for c in "\x1b\x07\x9b\u202e\x00\u2028") and "\\" in text
    assert readable("a\tb\nc ä 日本") == "a\tb\nc ä 日本"


def test_colours_of_our_own_still_work():
    assert "\x1b[31m" in printed("[red]x[/red]", terminal=True)


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_signs_that_an_encoding_lacks_are_written_in_others(encoding):
    table = Table("± se", "日本")
    table.add_row(".528 ± .01", "…")
    text = printed(table, "R² ≥ 1", encoding=encoding)
    assert ".528 +- .01" in text or ".528 ± .01" in text
    assert "\\u65e5\\u672c" in text


def test_a_comparison_is_printed_to_ascii(tmp_path):
    words = [sys.executable, "-m", "basinet", "compare", "wine", "--methods", "MAP", "--members", "2"]
    words += ["--set", "MAP.epochs=1", "--seeds", "2", "--out", str(tmp_path / "ä")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"}
    done = subprocess.run(words, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert "deep ensemble" in done.stdout.decode("ascii")


def test_a_worker_that_was_killed_is_one_line(capsys):
    with pytest.raises(SystemExit) as end, clear_errors("members that were done are kept"):
        raise WorkerError("the process that trained member 3 was ended by SIGKILL")
    told = capsys.readouterr().err
    assert end.value.code == 2 and told.startswith("error: the process that trained member 3")
    assert "Members that were done are kept" in told and "Traceback" not in told


def test_an_error_without_words_says_what_it_is(capsys):
    with pytest.raises(SystemExit), clear_errors():
        raise MemoryError
    assert "error: MemoryError" in capsys.readouterr().err


@pytest.mark.parametrize("delay", [0.05, 0.1, 0.2, 0.4, 0.8, 1.6])
def test_ctrl_c_at_any_time_is_one_line(delay):
    words = [sys.executable, "-c", "import sys; print('up', flush=True); from basinet.__main__ import main; main()"]
    process = subprocess.Popen([*words, "methods"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "up\n"
    time.sleep(delay)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode in (0, 1, 130) and "Traceback" not in told, told
