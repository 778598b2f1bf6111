"""What reaches a terminal: names from files steer nothing, and every encoding can be written."""

from __future__ import annotations

import io
import os
import subprocess
import sys

import pytest
from rich.table import Table

from basinet.cli.console import SafeConsole, clear_errors, readable, show_table
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


@pytest.mark.parametrize("width", [40, 80, 100, 120])
def test_numbers_in_tables_are_never_cut(width):
    heads = ["method", "members", "NLL ± se", "difference (95 %)", *(f"score {k}" for k in range(8))]
    names = ["tempered deep ensemble", "mixture of Laplaces"]
    numbers = [[f"2.94{k} ± .012", f"+.04{k} (-.067, .141)", *(f"{k}{j},1234" for j in range(8))] for k in (1, 2)]
    rows = [[name, "5", *own] for name, own in zip(names, numbers)]
    file = io.StringIO()
    show_table("Scores", heads, rows, SafeConsole(file=file, width=width))
    text = file.getvalue()
    assert all(text.count(number) == 1 for number in numbers[0] + numbers[1]) and "…" not in text
    assert all(word in text for head in heads for word in head.split()) and text.count("Scores") == 1
    assert max(map(len, text.splitlines())) <= width


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "cp1252"])
def test_characters_that_an_encoding_lacks_are_replaced(encoding):
    table = Table("± se", "日本")
    table.add_row(".528 ± .01", "…")
    text = printed(table, "R² ≥ 1", encoding=encoding)
    assert ".528 +- .01" in text or ".528 ± .01" in text
    assert "\\u65e5\\u672c" in text


def test_a_comparison_is_printed_to_ascii(tmp_path):
    words = [sys.executable, "-m", "basinet", "compare", "wine", "--methods", "MAP", "--members", "2"]
    words += ["--set", "MAP.epochs=1", "--seeds", "2", "--out", str(tmp_path / "ä")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii:strict", "PYTHONUTF8": "0"}
    process = subprocess.run(words, env=environment, capture_output=True, check=False)
    assert process.returncode == 0, process.stderr.decode()
    assert "deep ensemble" in process.stdout.decode("ascii")


def test_a_killed_worker_is_reported_in_one_line(capsys):
    with pytest.raises(SystemExit) as end, clear_errors("members that were done are kept"):
        raise WorkerError("the process that trained member 3 was ended by SIGKILL")
    message = capsys.readouterr().err
    assert end.value.code == 2 and message.startswith("error: the process that trained member 3")
    assert "Members that were done are kept" in message and "Traceback" not in message


def test_an_error_without_words_says_what_it_is(capsys):
    with pytest.raises(SystemExit), clear_errors():
        raise MemoryError
    assert "error: MemoryError" in capsys.readouterr().err


INTERRUPTED = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == MODULE:
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
from basinet.__main__ import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "torch", "basinet.methods"])
def test_ctrl_c_while_packages_are_imported_prints_one_line(module):
    words = [sys.executable, "-c", INTERRUPTED.replace("MODULE", repr(module)), "methods"]
    process = subprocess.run(words, capture_output=True, text=True, check=False)
    assert process.returncode == 130 and "Traceback" not in process.stderr, process.stderr
