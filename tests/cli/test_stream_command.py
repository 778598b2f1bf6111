"""`basinet stream`: a file replayed in time, resumed, grown; and what is refused."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from basinet.cli import app, stream
from basinet.core.tree import leaves
from basinet.tables import Table, replay
from basinet.tables.replay import Replay


@pytest.fixture(autouse=True, scope="module")
def quick():
    """Few epochs on the first rows, and no figure but in one test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "EPOCHS", 5)
        patch.setattr(stream, "_draw", lambda replay, where: drawn.append(where))
        yield


drawn = []
draw = stream._draw
FAST = ["--method", "Kalman", "--width", "0", "--forget", "1", "--first", "30", "--batch", "10"]


def written(path, rows=120, missing=(), columns=("a", "b"), seed=0):
    generator = np.random.default_rng(seed)
    x = generator.normal(size=(160, 2))
    y = x @ [1.0, -2.0] + 0.3 * generator.normal(size=160)
    lines = [f"day,{','.join(columns)},y"]
    for i in range(rows):
        cells = [f"{v:.4f}" for v in x[i][: len(columns)]]
        lines.append(f"{i},{','.join(cells)},{'' if i in missing else f'{y[i]:.4f}'}")
    path.write_text("\n".join(lines) + "\n")
    return path


def run(file, out, *options):
    return CliRunner().invoke(app, ["stream", str(file), "--target", "y", "--time", "day", "--out", str(out), *options])


def records(out):
    return [json.loads(line) for line in (out / "records.jsonl").read_text().splitlines()]


def state(out):
    kept = Replay.load(out)
    return kept.counted, leaves(kept.posterior.parts[0].family)


def same(one, other):
    assert records(one) == records(other)
    (a, b), (c, d) = state(one), state(other)
    assert a == c and all(torch.equal(x, y) for x, y in zip(b, d))


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("straight")
    result = run(written(folder / "data.csv", missing={40, 41, 75}), folder / "out", *FAST)
    assert result.exit_code == 0, result.output
    return folder / "out", result.output


def test_each_batch_is_predicted_then_learned_from(straight):
    out, said = straight
    rows = records(out)
    assert [r["row"] for r in rows] == list(range(40, 121, 10))
    assert sum(r["n"] for r in rows) == 87 and sum(r["skipped"] for r in rows) == 3
    last = rows[-1]["running"]
    assert last["rmse"] == pytest.approx(np.sqrt(sum(r["n"] * r["rmse"] ** 2 for r in rows if r["n"]) / 87), rel=1e-6)
    assert last["rmse"] < 0.5 and 0.7 < last["coverage"] <= 1
    assert "3 rows without a target skipped" in said and "All 87 predictions" in said
    assert out in drawn
    draw(Replay.load(out), out)
    assert (out / "stream.png").stat().st_size > 1000
    counted, _ = state(out)
    assert counted["waiting"] == [40, 41, 75] and counted["late"] == 0


def test_the_order_of_the_file_does_not_matter(straight, tmp_path):
    file = written(tmp_path / "data.csv", missing={40, 41, 75})
    head, *lines = file.read_text().splitlines()
    file.write_text("\n".join([head, *reversed(lines)]) + "\n")
    assert run(file, tmp_path / "out", *FAST).exit_code == 0
    same(tmp_path / "out", straight[0])


def test_it_resumes_as_if_it_had_never_stopped(straight, tmp_path):
    out = tmp_path / "out"
    file = written(tmp_path / "data.csv", rows=70, missing={40, 41})
    assert run(file, out, *FAST).exit_code == 0
    with open(out / "records.jsonl", "a") as kept:  # a kill after records were written and before the state was
        kept.write('{"row": 80, "n": 10}\n{"row": 9')
    result = run(written(file, missing={40, 41, 75}), out, *FAST)
    assert result.exit_code == 0 and "Resumes after 70 rows" in result.output
    same(out, straight[0])


def test_targets_that_come_late_are_learned_from_and_counted(tmp_path):
    out, file = tmp_path / "out", tmp_path / "data.csv"
    assert run(written(file, missing={40, 41, 75}), out, *FAST).exit_code == 0
    result = run(written(file, missing={75}), out, *FAST)
    assert "2 targets arrived late" in result.output
    counted, late = state(out)
    assert counted["late"] == 2 and counted["waiting"] == [75]
    assert run(written(file, missing={75}), tmp_path / "all", *FAST).exit_code == 0
    in_time = state(tmp_path / "all")[1]
    for a, b in zip(late, in_time):  # a linear model that does not drift: late or not, to single precision
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_classes_are_streamed(tmp_path):
    from sklearn.datasets import load_wine

    x, y = load_wine(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    names = np.array(["red", "white", "other"])
    lines = ["t,alcohol,flavanoids,hue,y"]
    lines += [f"{i},{x[k, 0]},{x[k, 6]},{x[k, 10]},{names[y[k]]}" for i, k in enumerate(order)]
    (tmp_path / "wine.csv").write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    result = CliRunner().invoke(
        app,
        ["stream", str(tmp_path / "wine.csv"), "--target", "y", "--time", "t", "--out", str(out), "--first", "40"]
        + ["--width", "5", "--set", "structure=diagonal", "--drop", "t"],
    )
    assert result.exit_code == 0, result.output
    last = records(out)[-1]["running"]
    assert last["accuracy"] > 0.85 and 1 <= last["interval_width"] < 3 and last["coverage"] > 0.8


@pytest.mark.parametrize(
    ("change", "options", "says"),
    [
        (lambda f: written(f, columns=("a",)), (), "got none named"),
        (lambda f: written(f, rows=20), (), "are not those of this stream"),
        (lambda f: f.write_text(f.read_text().replace("\n3,", "\n-3,", 1)), (), "are not those of this stream"),
        (lambda f: f.write_text(f.read_text() + "200,word,1.0,2.0\n"), (), "expected numbers"),
        (lambda f: None, ("--level", "0.8"), "stream of another problem"),
        (lambda f: None, ("--set", "batch_size=3"), "stream of another problem"),
    ],
)
def test_options_that_do_not_fit_a_started_stream_are_refused(change, options, says, tmp_path):
    file = written(tmp_path / "data.csv", rows=60)
    assert run(file, tmp_path / "out", *FAST).exit_code == 0
    before = state(tmp_path / "out")
    change(file)
    result = run(file, tmp_path / "out", *FAST, *options)
    assert result.exit_code == 2 and says in result.output.replace("\n", " ")
    assert state(tmp_path / "out")[0] == before[0]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--method", "MAP"), "expected a filter as --method"),
        (("--first", "500"), "expected more rows with a target than the 500 first ones"),
        (("--forget", "fast"), "expected --forget as auto or a number"),
        (("--forget", "1.5"), "expected a rate"),
        (("--level", "2"), "expected a level"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, says, tmp_path):
    result = run(written(tmp_path / "data.csv"), tmp_path / "out", *FAST, *options)
    assert result.exit_code == 2 and says in result.output.replace("\n", " ")
    assert not (tmp_path / "out").exists()


def test_a_file_without_rows_and_a_state_of_another_stream_are_refused(tmp_path):
    empty = tmp_path / "empty.csv"
    empty.write_text("day,a,b,y\n")
    result = run(empty, tmp_path / "out", *FAST)
    assert result.exit_code == 2 and "expected at least one row" in result.output
    for name, seed in (("one", 0), ("two", 1)):
        assert run(written(tmp_path / f"{name}.csv", rows=60, seed=seed), tmp_path / name, *FAST).exit_code == 0
    (tmp_path / "one" / "stream.json").write_bytes((tmp_path / "two" / "stream.json").read_bytes())
    result = run(tmp_path / "one.csv", tmp_path / "one", *FAST)
    assert result.exit_code == 2 and "state of another stream" in result.output.replace("\n", " ")


def test_references_are_those_of_formulas(straight):
    """The constant and the last value know all targets before a row, and look at no inputs."""
    out, said = straight
    generator = np.random.default_rng(0)
    x = generator.normal(size=(160, 2))
    y = np.round((x @ [1.0, -2.0] + 0.3 * generator.normal(size=160))[:120], 4)
    y = np.delete(y, [40, 41, 75])
    squares = {"constant": [], "last value": []}
    nlls = {"constant": [], "last value": []}
    for t in range(30, 117):
        past = y[:t]
        for name, mean, sd in (
            ("constant", past.mean(), past.std()),
            ("last value", past[-1], np.sqrt(np.square(np.diff(past)).mean())),
        ):
            squares[name].append((y[t] - mean) ** 2)
            nlls[name].append(0.5 * ((y[t] - mean) / sd) ** 2 + np.log(sd) + 0.5 * np.log(2 * np.pi))
    kept = Replay.load(out).references()
    for name in kept:
        assert kept[name]["rmse"] == pytest.approx(np.sqrt(np.mean(squares[name])), rel=1e-4)
        assert kept[name]["nll"] == pytest.approx(np.mean(nlls[name]), rel=1e-4)
        assert f"{name}: nll {kept[name]['nll']:.4g}" in said
    assert "predicts better than the model" not in said


def walk(path, rows=150):
    """A random walk, of which a column of noise says nothing."""
    generator = np.random.default_rng(0)
    y = 50 + np.cumsum(generator.normal(size=rows))
    lines = [f"{i},{generator.normal():.4f},{v:.4f}" for i, v in enumerate(y)]
    path.write_text("\n".join(["day,a,y", *lines]) + "\n")
    return path


def test_a_model_that_is_worse_than_the_last_value_says_so_and_lags_help(tmp_path):
    file = walk(tmp_path / "walk.csv")
    plain = run(file, tmp_path / "plain", *FAST)
    assert plain.exit_code == 0
    assert "the last value predicts better than the model" in plain.output and "--lags 3" in plain.output
    lags = run(file, tmp_path / "lags", *FAST, "--lags", "2")
    assert lags.exit_code == 0, lags.output
    scores = [records(tmp_path / name)[-1]["running"]["rmse"] for name in ("plain", "lags")]
    assert scores[1] < 0.6 * scores[0] and "(--lags 3)" not in lags.output
    kept = Replay.load(tmp_path / "lags")
    assert {"y, 1 before", "y, 2 before"} <= {column.name for column in kept.encoder.columns}
    refused = run(file, tmp_path / "lags", *FAST)
    assert refused.exit_code == 2 and "(lags differ)" in refused.output.replace("\n", " ")


def test_rows_that_training_does_not_see_set_the_noise(tmp_path):
    """After 300 steps on all first rows it was too large: an NLL of 1.28 on this stream."""
    result = run(written(tmp_path / "data.csv", rows=160), tmp_path / "out", *FAST[:-4], "--first", "60")
    assert result.exit_code == 0, result.output
    best = 0.5 * np.log(2 * np.pi * np.e * 0.3**2)
    assert records(tmp_path / "out")[-1]["running"]["nll"] < best + 0.3


def test_a_file_with_only_times_and_values_gets_a_hint_about_lags(tmp_path):
    file = tmp_path / "alone.csv"
    file.write_text("\n".join(["day,y", *(f"{i},{np.sin(i):.4f}" for i in range(120))]) + "\n")
    refused = run(file, tmp_path / "out", *FAST)
    line = refused.output.replace("\n", " ")
    assert refused.exit_code == 2 and "Use --lags 3 to predict it from its own past" in line
    assert run(file, tmp_path / "out", *FAST, "--lags", "3").exit_code == 0


def test_lags_are_the_last_known_targets_before_a_row():
    table = Table("t", {"y": np.array([1.0, np.nan, 3.0, 4.0, np.nan, 6.0])})
    columns = replay.lagged(table, "y", 2).columns
    assert columns["y, 1 before"][2:].tolist() == [1, 3, 4, 4] and columns["y, 2 before"][3:].tolist() == [1, 3, 3]
    with pytest.raises(ValueError, match="which --lags would make"):
        replay.lagged(replay.lagged(table, "y", 1), "y", 2)


def test_lags_of_classes_are_streamed_and_resume(tmp_path):
    generator = np.random.default_rng(0)
    names = ["rain" if (i // 4) % 2 else "sun" for i in range(120)]
    lines = [f"{i},{generator.normal():.3f},{'' if i in (50, 51) else name}" for i, name in enumerate(names)]
    file, options = tmp_path / "w.csv", [*FAST[4:], "--lags", "2", "--width", "0", "--method", "EKF"]
    for rows in (82, 120):
        file.write_text("\n".join(["day,a,y", *lines[:rows]]) + "\n")
        result = run(file, tmp_path / "out", *options)
        assert result.exit_code == 0, result.output
    assert run(file, tmp_path / "whole", *options).exit_code == 0
    same(tmp_path / "out", tmp_path / "whole")
    others = Replay.load(tmp_path / "out").references()
    assert 0.7 < others["last value"]["accuracy"] < 0.8 and others["constant"]["accuracy"] < 0.6


def test_rows_that_are_no_longer_waited_for_are_reported(tmp_path, monkeypatch):
    monkeypatch.setattr(replay, "WAITING", 2)
    out, file = tmp_path / "out", tmp_path / "data.csv"
    result = run(written(file, missing={5, 40, 41, 75}), out, *FAST)
    assert "Only the last 2 of these rows are looked at again" in result.output.replace("\n", " ")
    assert "for one of the 2 before is not learned" in result.output.replace("\n", " ")
    assert state(out)[0]["waiting"] == [41, 75]
    assert run(written(file), out, *FAST).exit_code == 0
    assert state(out)[0]["late"] == 2 and state(out)[0]["dropped"] == 2


def test_each_time_is_hashed_once(tmp_path, monkeypatch):
    """All times were hashed again for each batch: of a stream of a million rows, 50 thousand million."""
    file, hashed = written(tmp_path / "data.csv"), []
    real = replay._bytes
    monkeypatch.setattr(replay, "_bytes", lambda times: hashed.append(len(times)) or real(times))
    assert run(file, tmp_path / "out", *FAST).exit_code == 0
    assert sum(hashed) <= 120 + 4 * 30  # and at the start those of the first rows


@pytest.mark.parametrize("broken", ["[]", "{}", '{"row": "x"}', "word", '{"row": 50, "nll": "high"}', "[" * 10_000])
def test_records_that_were_altered_are_refused_and_left_as_they_are(broken, tmp_path):
    file, out = written(tmp_path / "data.csv", rows=60), tmp_path / "out"
    assert run(file, out, *FAST).exit_code == 0
    lines = (out / "records.jsonl").read_text().splitlines()
    altered = "\n".join([lines[0], broken, *lines[1:]]) + "\n"
    (out / "records.jsonl").write_text(altered)
    result = run(written(file, rows=80), out, *FAST)
    assert result.exit_code == 2 and "line 2 is not a record of a stream" in result.output.replace("\n", " ")
    assert (out / "records.jsonl").read_text() == altered
    (out / "records.jsonl").unlink()
    assert run(file, out, *FAST).exit_code == 0
