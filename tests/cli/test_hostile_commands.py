"""Whatever is asked of whatever file, a command ends in a result or in one clean line."""

from __future__ import annotations

import json
import random
import shutil

import pytest
from hostile import NAMES, Outcome, compare_words, fit_words, later_words, stream_words, write_file
from typer.testing import CliRunner

from basinet.cli import app, stream
from basinet.pool import read_json, write_json
from basinet.tables import replay

runner = CliRunner()


def outcome(words):
    result = runner.invoke(app, words, catch_exceptions=True)
    return Outcome(words, result.exit_code, result.exception, result.output)


def chain(seed, folder):
    """A fit to a random file, and predictions and scores from what it left, for the same file and for another."""
    r = random.Random(seed)
    columns = r.sample(NAMES, r.choice((2, 3, 3, 4, 6)))
    rows = r.choice((3, 5, 8, 20, 40))
    first, second = (write_file(r, folder, columns, rows) for _ in range(2))
    fitted = folder / "fitted"
    if r.random() < 0.2:
        yield outcome(compare_words(r, first, columns, folder / "run"))
    yield outcome(fit_words(r, first, columns, fitted))
    if not (fitted / "table.json").exists():
        return
    for file in (first, second):
        yield outcome(later_words(r, "predict", fitted, file, folder / f"p.{r.choice(('csv', 'csv', 'parquet'))}"))
        yield outcome(later_words(r, "evaluate", fitted, file, folder / "scores.jsonl"))


def check(seed, folder):
    for one in chain(seed, folder):
        assert one.clean, f"seed {seed}: {one.words}\n{one.error!r}\n{one.output[-2000:]}"
        assert not any(c in one.output for c in "\x1b\x07\x9b\u202e"), f"seed {seed}: {one.words}: {one.output!r}"


@pytest.mark.parametrize("seed", range(60))
def test_random_commands_on_random_files(seed, tmp_path):
    check(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1600))
def test_more_random_commands_on_random_files(seed, tmp_path):
    check(seed, tmp_path)


def streams(seed, folder):
    """A stream of part of a file, then of all of it: as it was, with other options, or altered in between."""
    r = random.Random(seed)
    columns = r.sample(NAMES, r.choice((3, 3, 4)))
    file = write_file(r, folder, columns, r.choice((8, 20, 40, 60)), ["counts"] if r.random() < 0.8 else [])
    words, out = stream_words(r, file, columns, folder / "streamed"), folder / "streamed"
    whole = file.read_bytes()
    if file.suffix == ".csv":
        file.write_bytes(b"".join(whole.splitlines(keepends=True)[: r.choice((8, 15, 30, 100))]))
    yield outcome(words)
    file.write_bytes(whole)
    if (out / "stream.json").exists() and r.random() < 0.3:
        alter(r, out / r.choice(("stream.json", "records.jsonl", "state/posterior.json")))
    if r.random() < 0.3:
        second = stream_words(r, file, columns, out)
        words = second if r.random() < 0.5 else [*words, *second[second.index("--out") + 2 :]]
    yield outcome(words)
    yield outcome(words)


def alter(r, path):
    """Changes something in a file of JSON, a line of it, or some bytes."""
    if not path.exists() or r.random() < 0.3:
        content = path.read_bytes() if path.exists() else b""
        place = r.randrange(len(content) + 1)
        path.write_bytes(content[:place] + r.choice((b"", b"\xff\x00", b"{", b"\n\n", b"x")) + content[place + 1 :])
        return
    lines = path.read_text().splitlines() if path.suffix == ".jsonl" else [path.read_text()]
    if lines:
        place = r.randrange(len(lines))
        lines[place] = json.dumps(changed(r, json.loads(lines[place])))
    path.write_text("\n".join(lines) + "\n")


def check_streams(seed, folder):
    for one in streams(seed, folder):
        assert one.clean, f"seed {seed}: {one.words}\n{one.error!r}\n{one.output[-2000:]}"
        assert not any(c in one.output for c in "\x1b\x07\x9b\u202e"), f"seed {seed}: {one.words}: {one.output!r}"


@pytest.fixture
def short(monkeypatch):
    """Few epochs on the first rows, and no figures."""
    monkeypatch.setattr(replay, "EPOCHS", 3)
    monkeypatch.setattr(stream, "_pictured", lambda figure, where: None)


@pytest.mark.parametrize("seed", range(24))
def test_random_streams_of_random_files(seed, tmp_path, short):
    check_streams(seed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1000, 1400))
def test_more_random_streams_of_random_files(seed, tmp_path, short):
    check_streams(seed, tmp_path)


def changed(r, value):
    """A JSON value with one thing in it changed, removed or added."""
    if isinstance(value, dict) and value and r.random() < 0.95:
        key = r.choice(list(value))
        kept = {k: v for k, v in value.items() if k != key}
        return kept if r.random() < 0.1 else {**kept, key: changed(r, value[key])}
    if isinstance(value, list) and value and r.random() < 0.9:
        place = r.randrange(len(value))
        return [*value[:place], *([] if r.random() < 0.1 else [changed(r, value[place])]), *value[place + 1 :]]
    return r.choice((None, 0, -1, 1e400, -1e-320, 10**400, "", "x", [], {}, True, [[[]]], {"a": 1}, "column/Number"))


def test_a_table_file_with_anything_changed_gives_a_result_or_one_line(tmp_path):
    r = random.Random(0)
    lines = [f"{r.gauss(0, 1)!r},{r.choice('abc')},2024-01-{i % 28 + 1:02},{r.gauss(0, 1)!r}" for i in range(40)]
    file, fitted = tmp_path / "t.csv", tmp_path / "fitted"
    file.write_text("\n".join(["number,name,day,y", *lines]))
    first = outcome(["fit", str(file), "--target", "y", "--members", "1", "--set", "epochs=1", "--out", str(fitted)])
    assert first.status == 0, first.output
    whole = read_json(fitted / "table.json")
    for attempt in range(100):
        write_json(fitted / "table.json", changed(r, whole))
        one = outcome(["predict", str(fitted), str(file), "--out", str(tmp_path / "p.csv")])
        assert one.clean, f"attempt {attempt}: {one.error!r}\n{(fitted / 'table.json').read_text()[:3000]}"


@pytest.mark.parametrize("name", ["stream.json", "records.jsonl", "state/posterior.json"])
def test_a_stream_with_anything_changed_resumes_or_says_why_not(name, tmp_path, short):
    r = random.Random(1)
    lines = [f"{i},{r.gauss(0, 1)!r},{r.choice('abc')},{r.gauss(0, 1)!r}" for i in range(40)]
    file, out = tmp_path / "t.csv", tmp_path / "out"
    words = ["stream", str(file), "--target", "y", "--time", "day", "--out", str(out), "--first", "10", "--batch", "5"]
    file.write_text("\n".join(["day,number,name,y", *lines[:30]]) + "\n")
    first = outcome(words)
    assert first.status == 0, first.output
    kept, grown = tmp_path / "kept", "\n".join(["day,number,name,y", *lines]) + "\n"
    out.rename(kept)
    for attempt in range(12):
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(kept, out)
        file.write_text(grown)
        alter(r, out / name)
        one = outcome(words)
        assert one.clean, f"attempt {attempt}: {one.error!r}\n{(out / name).read_bytes()[:3000]!r}"
