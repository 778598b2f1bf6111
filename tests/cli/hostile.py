"""Random files and random commands, by a seed: what a person, a broken export or a bad joke may hand to the command."""

from __future__ import annotations

import csv
import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

Cells = list[str]


class Outcome(NamedTuple):
    """What a command did."""

    words: list[str]
    status: int
    error: BaseException | None
    output: str

    @property
    def clean(self) -> bool:
        """A result, or a status of 2 and one line that says why."""
        ended = self.error is None or isinstance(self.error, SystemExit)
        said = "error:" in self.output or "Error" in self.output or "Usage" in self.output  # the last two of options
        return ended and "Traceback" not in self.output and (self.status == 0 or (self.status == 2 and said))


def _scaled(scale: float) -> Callable[[random.Random, int], Cells]:
    return lambda r, n: [repr(scale * r.gauss(0, 1)) for _ in range(n)]


def _choice(*words: str) -> Callable[[random.Random, int], Cells]:
    return lambda r, n: [r.choice(words) for _ in range(n)]


def _dates(r: random.Random, n: int) -> Cells:
    return [f"{r.choice((1, 1600, 1999, 2024, 9999)):04}-{r.randint(1, 12):02}-{r.randint(1, 28):02}" for _ in range(n)]


def _mixed(r: random.Random, n: int) -> Cells:
    return [repr(r.gauss(0, 1) * 10.0 ** r.randint(-320, 300)) for _ in range(n)]


COLUMNS: dict[str, Callable[[random.Random, int], Cells]] = {
    **{f"times {scale:g}": _scaled(scale) for scale in (1, 1, 1, 1e-12, 1e9, 1e18, 1e40, 1e-40, 1e155, 1e308, 1e-300)},
    "subnormal": _scaled(5e-324),
    "all sizes": _mixed,
    "offset": lambda r, n: [repr(1e17 + 20 * r.randint(0, 9)) for _ in range(n)],
    "digits": lambda r, n: [str(r.randint(0, 9)) for _ in range(n)],
    "counts": lambda r, n: [str(i) for i in range(n)],
    "huge whole": lambda r, n: [str(r.randint(-(10**25), 10**25)) for _ in range(n)],
    "at the edge": lambda r, n: [str(r.choice((2**63 - 1, -(2**63), 2**63, 0))) for _ in range(n)],
    "names": _choice("a", "b", "c"),
    "flags": _choice("true", "false"),
    "zero and one": _choice("0", "1"),
    "own names": lambda r, n: [f"row {i}" for i in range(n)],
    "gaps": _choice("", "NA", "?", "1", "2.5"),
    "empty": _choice(""),
    "constant": _choice("7"),
    "infinite": _choice("inf", "-inf", "1", "2"),
    "dates": _dates,
    "no dates": _choice("2024-02-30", "2024-13-01", "2024-01-01"),
    "offsets": _choice("2024-01-01 10:00+05:00", "0001-01-01 00:00+14:00", "2024-01-01T00:00:00.123456789Z"),
    "decimal commas": lambda r, n: [f"{r.randint(0, 9)},{r.randint(10, 99)}" for _ in range(n)],
    "thousands": lambda r, n: [f"{r.randint(1, 9)},{r.randint(100, 999)}" for _ in range(n)],
    "nearly numbers": lambda r, n: [r.choice(("1", "2", "3", "1_000", "0x10", "1e", "٣", "½")) for _ in range(n)],
    "formulas": _choice("=1+1", "@SUM(A1)", "-x", "+y"),
    "escapes": _choice("\x1b[31mred", "a\x07b", "\u202eback", "\x9b2J"),
    "other scripts": _choice("日本", "Ünï", "🙂", "a\u0301"),
    "markup": _choice("[bold]x[/bold]", "[/x]", "[link=file:///]y", "\\[z"),
    "long": _choice("x" * 3000, "y" * 3000),
}
NAMES = ["a", "b", "size", "y", "x.0", "x.1", "\x1b[2Jname", "[/red]", "=cmd()", "a b", "ä", "p_a", "mean", "-1"]
NAMES += ["n" * 300, "a,b"]
QUICK = {  # methods, and how each is over soon
    "MAP": "epochs=1",
    "EMA": "epochs=1",
    "Anchored": "epochs=1",
    "Snapshot": "epochs=2",
    "Laplace": "base.epochs=1",
    "PEP": "base.epochs=1",
    "SWAG": "base.epochs=1",
}
SETTINGS = [
    "epochs=1",
    "epochs=0",
    "epochs=-3",
    "epochs=1.5",
    "epochs=999999999999999999999999",
    "batch_size=1",
    "batch_size=0",
    "batch_size=None",
    "optimizer.lr=1e9",
    "optimizer.lr=0",
    "optimizer.lr=-1",
    "optimizer=SGD",
    "optimizer=SGD:lr=1e30",
    "patience=1",
    "patience=0",
    "prior_precision=marglik",
    "structure=full",
    "base.epochs=2",
    "nothing",
    "=",
    "epochs=" + "(" * 500,
    "epochs=" + "9" * 5000,
]
OPTIONS: dict[str, list[str]] = {
    "--members": ["1", "2", "3", "0", "-1", "1e5", "100000", "99999999999999999999"],
    "--seed": ["0", "7", "-1", str(2**63), str(2**64), "9" * 30],
    "--val": ["0", "0.1", "0.5", "0.9", "1", "nan", "1e-9"],
    "--conformal": ["0.5", "0.9", "0", "1", "nan", "-inf"],
    "--kind": ["classes", "real", "labels", "numbers"],
    "--missing": ["refuse", "impute", "impute", "guess"],
    "--unseen": ["refuse", "other", "other", "new"],
    "--keep": ["COLUMN", "COLUMN", "none"],
    "--drop": ["COLUMN", "COLUMN", "none"],
    "--category": ["COLUMN", "COLUMN", "none"],
    "--split": ["group:COLUMN", "time:COLUMN", "random", "time", "column:COLUMN", "by"],
    "--width": ["3", "3,3", "0", "x", "9" * 20],
    "--prior": ["0.5", "lecun", "Laplace", "StudentT:df=3", "LogUniform", "ScaleMixture", "1e-30", "1e30", "Nrmal"],
    "--likelihood": ["Gaussian", "StudentT:df=3", "Heteroscedastic", "Categorical", "NoisyDirichlet", "Poisson"],
    "--device": ["cpu", "cpu", "abacus"],
    "--model": ["none.py:net", "net"],
}
STREAMED: dict[str, list[str]] = {
    "--method": ["EKF", "LOFI", "Kalman", "RVGA", "MAP", "no such"],
    "--set": ["structure=diagonal", "batch_size=3", "structure=decoupled", "rank=2", "rank=0", "iterations=0", "="],
    "--forget": ["auto", "0.95", "0.5", "1", "1e-300", "0", "2", "nan", "soon"],
    "--first": ["5", "6", "20", "0", "9" * 30],
    "--batch": ["1", "3", "100", "0", "x"],
    "--level": ["0.5", "0.9", "0.999999999", "1e-300", "0", "1", "nan"],
    "--width": ["0", "3", "2,2", "x", "-1", "9" * 20],
    "--lags": ["1", "2", "30", "-1", "9" * 20],
    "--seed": ["0", "7", "-1", str(2**64)],
    **{name: OPTIONS[name] for name in ("--kind", "--missing", "--unseen", "--keep", "--drop", "--category")},
}
LATER: dict[str, list[str]] = {  # of predict and evaluate
    "--samples": ["1", "3", "0", "-1", "1e9"],
    "--seed": ["0", "5", "9" * 30],
    "--level": ["0.5", "0.999999999999", "1e-300", "0", "1", "nan"],
}


def write_file(r: random.Random, folder: Path, columns: list[str], rows: int, first: Cells | None = None) -> Path:
    """A table of random columns under these names, as csv mostly; the first ones of given kinds."""
    kinds = r.sample(list(COLUMNS), len(columns)) if r.random() < 0.5 else ["times 1"] * len(columns)
    kinds = [*(first or []), *kinds][: len(columns)]
    cells = {name: COLUMNS[kind](r, rows) for name, kind in zip(columns, kinds)}
    if r.random() < 0.15:
        copied = [r.randrange(rows) for _ in range(rows)]
        cells = {name: [column[i] for i in copied] for name, column in cells.items()}
    if r.random() < 0.15:
        path = folder / f"{r.randrange(10**9)}.npz"
        np.savez(path, **{name.replace("/", "_"): _array(column) for name, column in cells.items()})  # type: ignore[arg-type]
        return path
    path = folder / f"{r.randrange(10**9)}.csv"
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter=r.choice(",,,;\t"))
        writer.writerow(cells)
        writer.writerows(zip(*cells.values()))
    return path


def fit_words(r: random.Random, file: Path, columns: list[str], out: Path) -> list[str]:
    """A command that fits something to a file, with a few options, some of which are nonsense."""
    method = r.choice(["MAP", "MAP", *QUICK]) if r.random() < 0.95 else "no such"
    words = ["fit", str(file), *_target(r, columns), "--out", str(out), "--method", method]
    words += _options(r, OPTIONS, columns)
    settings = r.sample(SETTINGS, r.choice((0, 0, 0, 0, 1, 2)))
    for setting in [QUICK.get(method, "epochs=1"), *settings]:
        words += ["--set", setting]
    return words if any(word.startswith("--members") for word in words) else [*words, "--members", "2"]


def compare_words(r: random.Random, file: Path, columns: list[str], out: Path) -> list[str]:
    """A command that compares two rows on a file, or tells what they would cost."""
    known = {name: OPTIONS[name] for name in ("--kind", "--unseen", "--split", "--drop", "--prior", "--likelihood")}
    options = [*_target(r, columns), *_options(r, known, columns)]
    if r.random() < 0.3:
        return ["cost", str(file), *options, "--method", "MAP", "--members", "2"]
    quick = ["--methods", "MAP", "--members", "2", "--set", "MAP.epochs=1"]
    return ["compare", str(file), *options, *quick, "--out", str(out)]


def stream_words(r: random.Random, file: Path, columns: list[str], out: Path) -> list[str]:
    """A command that streams a file; mostly of few first rows, so that something is left to stream."""
    time, others = columns[0], columns[1:]
    time = time if r.random() < 0.9 else r.choice(("none", *columns))
    words = ["stream", str(file), *_target(r, others if r.random() < 0.9 else columns), f"--time={time}"]
    words += ["--out", str(out)]
    words += _options(r, STREAMED, columns)
    words += [] if any(word.startswith("--first") for word in words) else ["--first", "5"]
    return words if any(word.startswith("--width") for word in words) else [*words, "--width", r.choice(("0", "3"))]


def _target(r: random.Random, columns: list[str]) -> list[str]:
    odd = r.choice(("none", ",".join(columns[:2])))
    target = odd if r.random() < 0.1 else r.choice(columns)
    return [f"--target={target}", *(["--missing", "impute"] if r.random() < 0.7 else [])]


def _options(r: random.Random, known: dict[str, list[str]], columns: list[str]) -> list[str]:
    """Some options: mostly with one of their first values, which make sense."""
    words = []
    for option in r.sample(list(known), r.choice((0, 0, 1, 1, 2))):
        values = known[option][:2] if r.random() < 0.7 else known[option]
        words.append(f"{option}={r.choice(values)}".replace("COLUMN", r.choice(columns)))
    return words


def later_words(r: random.Random, command: str, folder: Path, file: Path, out: Path) -> list[str]:
    """A command that predicts or evaluates."""
    known = LATER if command == "predict" else {name: LATER[name] for name in ("--samples", "--seed")}
    return [command, str(folder), str(file), "--out", str(out), *_options(r, known, ["a"])]


def _array(cells: Cells) -> np.ndarray:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return np.array(cells)
