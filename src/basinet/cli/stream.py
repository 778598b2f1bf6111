"""`basinet stream`: a file replayed in time, row by row predicted, scored and learned from."""

from __future__ import annotations

import json
import os
import time as clock
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .app import app
from .console import clear_errors, tell, warn
from .network import hidden_widths
from .settings import make_filter
from .sharing import Given, with_options
from .words import IN_ORDER

if TYPE_CHECKING:
    from ..report.figure import Figure
    from ..tables.replay import Replay

RECORDS = "records.jsonl"
EVERY = 2.0  # seconds between two times that a stream is saved
LINES = 10  # that are printed along the way
AROUND = 20  # records that the figure averages
EDGES = ("low", "high", "target")  # of a record of numbers
LARGEST = 1e300  # of what a record holds
LITTLE = 0.01  # nats: no more than that is as good
REPAIR = "restore the file, or remove it (the stream continues, and its records start with the next batch)"


@app.command()
@with_options(rules=IN_ORDER)
def stream(
    file: Annotated[Path, typer.Argument(help="A csv, parquet or npz file.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    time: Annotated[str, typer.Option(help="The column that orders the rows: dates or numbers.")],
    method: Annotated[str, typer.Option(help="The filter: EKF, LOFI, RVGA, or Kalman with --width 0.")] = "EKF",
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="NAME=VALUE, a field of the filter, such as structure=diagonal or rank=20; repeat for several.",
        ),
    ] = None,
    forget: Annotated[
        str,
        typer.Option(
            help="auto: forget the past at once when a batch shows an abrupt change; or the factor by which each new "
            "row reduces the weight of the past, such as 0.999; 1 forgets nothing."
        ),
    ] = "auto",
    first: Annotated[int, typer.Option(min=5, help="Rows to train the network on before the stream begins.")] = 100,
    batch: Annotated[int, typer.Option(min=1, help="Rows to predict, then learn, at a time.")] = 10,
    lags: Annotated[
        int,
        typer.Option(
            min=0, help="Use the targets of this many earlier rows as inputs; rows are then predicted one step ahead."
        ),
    ] = 0,
    level: Annotated[float, typer.Option(help="Share of targets that the intervals should contain.")] = 0.9,
    width: Annotated[str, typer.Option(help="Widths of hidden layers, such as 20,20; 0: a linear model.")] = "20",
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder of the stream. Default: runs/FILE-stream.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the network's initialisation.")] = 0,
    *,
    rules: Given,
) -> None:
    """Replay a file in time: predict each batch of rows, score the predictions, then learn from the targets.

    The folder keeps the state of the stream, a record for each batch (records.jsonl) and a figure. The same command
    resumes, after an interruption or when the file has grown: rows that are later than those before are streamed, and
    targets that were missing and have come since are learned from (and reported as late). Rows without a target are
    skipped and counted. Intervals are adapted to the stream (adaptive conformal inference), and an alarm says when
    predictions have become worse than usual. Scores stand beside those of a constant and of the last known value, one
    row ahead.
    """
    from ..filters import Change, Forget
    from ..tables import read_table
    from ..tables.replay import STREAM, Replay, StreamPlan, begin

    where = folder or Path("runs") / f"{file.stem}-stream"
    with clear_errors(f"what was streamed is in {where}; the same command resumes"):
        recipe = make_filter(method, setting or ())
        if recipe.drift is None and forget != "1":
            from dataclasses import replace

            recipe = replace(recipe, drift=Change() if forget == "auto" else Forget(_rate(forget)))
        hidden = () if width.strip() == "0" else hidden_widths(width) or ()
        plan = StreamPlan(
            target=target,
            time=time,
            method=recipe,
            first=first,
            batch=batch,
            level=level,
            hidden=hidden,
            lags=lags,
            seed=seed,
        )
        table = read_table(file, [target, time])
        if (where / STREAM).exists():
            replay = Replay.load(where)
            if replay.plan != plan:
                changed = [n for n in vars(plan) if getattr(plan, n) != getattr(replay.plan, n)]
                raise ValueError(
                    f"{where}: it holds the stream of another problem ({', '.join(changed)} differ): use another --out"
                )
            tell(f"Resumes after {replay.counted['row']:,} rows")
        else:
            replay = begin(table, plan, rules(), warn)
            replay.save(where)
            inputs = f"{len(replay.encoder.features):,} inputs"
            tell(f"{table.name}: {target} from {inputs}, by {time}; {first:,} first rows, then batches of {batch:,}")
        replay = run(replay, table, where)
        _draw(replay, where)
        _summary(replay, where)


def run(replay: Replay, table: Any, where: Path) -> Replay:
    """Streams what the table still has; saves along the way and at the end, whatever happens."""
    _shorten(where / RECORDS, replay.counted["row"])
    pending: list[dict[str, Any]] = []
    late = replay.counted["late"]
    replay = replay.caught_up(table)
    if replay.counted["late"] > late:
        tell(f"{replay.counted['late'] - late:,} targets arrived late and were learned out of order")
    total, printed, saved = table.n - replay.counted["row"], 0, clock.monotonic()
    start = replay.counted["row"]

    def keep() -> None:
        _append(where / RECORDS, pending)
        replay.save(where)
        pending.clear()

    try:
        for after, record in replay.steps(table):
            replay = after
            pending.append(record)
            if record.get("alarm"):
                tell(f"  alarm at {record['at']}: predictions are worse than usual")
            if (replay.counted["row"] - start) * LINES >= (printed + 1) * total and "running" in record:
                printed += 1
                tell(f"  {replay.counted['row']:,} rows, {record['at']}: {_said(record['running'])}")
            if clock.monotonic() - saved > EVERY:
                keep()
                saved = clock.monotonic()
    finally:
        keep()
    return replay


def _rate(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"expected --forget as auto or a number above 0 and at most 1, got {text!r}") from None


def _said(scores: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in scores.items())


def _append(path: Path, records: Sequence[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a", encoding="utf-8") as file:
        file.writelines(json.dumps(record, allow_nan=False) + "\n" for record in records)
        file.flush()
        os.fsync(file.fileno())


def _shorten(path: Path, row: int) -> None:
    """Leaves out records of rows that the state has not seen: a kill came after they were written."""
    from ..pool.files import atomically

    if not path.exists():
        return
    kept = [json.dumps(record) + "\n" for record in _records(path) if record["row"] <= row]
    atomically(path, lambda temporary: Path(temporary).write_text("".join(kept), encoding="utf-8"))


def _records(path: Path) -> list[dict[str, Any]]:
    """What a stream wrote; a last line that a kill cut short does not count."""
    from ..pool import FileError

    records: list[dict[str, Any]] = []
    try:
        whole = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise FileError(path, f"it is not text: {REPAIR}") from error
    *lines, rest = whole.split("\n")
    for number, line in enumerate([*lines, *([rest] if _parsed(rest) is not None else [])], 1):
        record = _parsed(line)
        if record is None:
            raise FileError(path, f"line {number} is not a record of a stream: {REPAIR}")
        records.append(record)
    return records


def _parsed(line: str) -> dict[str, Any] | None:
    """A record; None where the line is none."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or type(record.get("row")) is not int:
        return None
    if "nll" not in record:
        return record
    numbers = ["nll", "coverage", *(["rmse", *EDGES] if "rmse" in record else ["accuracy"])]
    values = [record.get(name) for name in numbers]
    fits = all(isinstance(x, (int, float)) and abs(x) < LARGEST for x in values)
    return record if fits and isinstance(record.get("alarm"), bool) else None


def _summary(replay: Replay, where: Path) -> None:
    counted = replay.counted
    if counted["sums"]["n"]:
        own, others = replay.running(), replay.references()
        tell(f"All {counted['sums']['n']:,} predictions: {_said(own)}")
        tell("Without looking at inputs: " + "; ".join(f"{name}: {_said(one)}" for name, one in others.items()))
        best = min(others, key=lambda name: others[name]["nll"])
        if own["nll"] > others[best]["nll"] + LITTLE:
            lags = "" if replay.plan.lags else "give it the targets of earlier rows (--lags 3), or "
            warn(
                f"the {best} predicts better than the model: NLL {others[best]['nll']:.4g} against {own['nll']:.4g}; "
                f"{lags}try more --first rows, another --width or --forget"
            )
    tell(f"{counted['skipped']:,} rows without a target skipped, {counted['alarms']:,} alarms")
    if counted["dropped"]:
        tell(
            f"Only the last {len(counted['waiting']):,} of these rows are looked at again when the file has grown: a "
            f"late target for one of the {counted['dropped']:,} before is not learned"
        )
    tell(f"State, records and figure: {where}")


def _draw(replay: Replay, where: Path) -> None:
    """Scores over time, and targets in their intervals, where matplotlib is there."""
    from ..report.figure import Axis, Figure, Panel, Series, View

    records = [r for r in _records(where / RECORDS) if "nll" in r]
    if not records:
        return
    rows = [float(r["row"]) for r in records]

    def smooth(name: str) -> list[float]:
        values = [r[name] for r in records]
        return [sum(values[max(0, i - AROUND + 1) : i + 1]) / min(i + 1, AROUND) for i in range(len(values))]

    across = Axis("row", whole=True)
    main = "rmse" if "rmse" in records[0] else "accuracy"
    alarms = [i for i, r in enumerate(records) if r["alarm"]]
    nll, quality, cover = smooth("nll"), smooth(main), smooth("coverage")
    marks = [Series("points", [rows[i] for i in alarms], [nll[i] for i in alarms], "alarm", tone="second")]
    panels = [
        Panel(across, Axis("NLL"), [Series("line", rows, nll, "NLL", tone="first"), *(marks if alarms else [])]),
        Panel(across, Axis(main), [Series("line", rows, quality, main, tone="first")]),
        Panel(
            across,
            Axis("held by intervals", percent=True, span=(0.0, 1.02)),
            [
                Series("line", rows, cover, "held", tone="first"),
                Series("line", [rows[0], rows[-1]], [replay.plan.level] * 2, "wanted", tone="reference"),
            ],
        ),
    ]
    if "low" in records[0]:
        low, high, y = ([r[name] for r in records] for name in EDGES)
        middle = [(a + b) / 2 for a, b in zip(low, high)]
        inside = Series("line", rows, middle, "interval", tone="first", low=low, high=high)
        truth = Series("line", rows, y, "target", tone="second")
        panels.append(Panel(across, Axis(replay.plan.target), [inside, truth]))
    see, read = f"Averages over {AROUND} batches.", "Each batch is predicted before it is learned from."
    _pictured(Figure("stream", f"{replay.plan.target} over time", see, read, [View("", panels)]), where)


def _pictured(figure: Figure, where: Path) -> None:
    from ..report.pictures import write_pictures

    try:
        write_pictures([figure], [], where)
    except ImportError as error:
        warn(str(error))
