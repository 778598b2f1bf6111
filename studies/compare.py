"""Which method wins on which data, and is the difference real?

What `basinet compare` says of eight rows, ensembles of five and two seeds each, with every default as it is: on three
built-in sets, Fashion-MNIST (4,000 training images), nine UCI regression sets (cut 60/20/20 as any file is, not by the
published splits) and two made tables: flats.csv, rents from areas, districts and dates, and weather.csv, three labels.
`--methods` asks for other rows, "tempered deep ensemble,PEP" say. Run folders are kept, one per set, for `basinet
report`. Records are appended to compare.jsonl, one per set and row; those that are there are not made again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from basinet.compare.api import Asking, carry_out
from basinet.tables import uci, write_table

from . import Options, Say, append_record, did_you_mean, read_records

NARROWED_BY = ("sets", "methods", "examples")
ROWS = (
    "MAP",
    "deep ensemble",
    "Laplace",
    "mixture of Laplaces",
    "SWAG",
    "MultiSWAG",
    "anchored ensemble",
    "snapshots",
)
MEMBERS = 5
SEEDS = 2
IMAGES = 4000  # training images
BUILT_IN = ("digits", "breast_cancer", "diabetes")
UCI = tuple(f"uci_{name}" for name in uci.NAMES)
SYNTHETIC = {"flats": "rent [EUR]", "weather": "rain,wind,fog"}  # and their targets
SETS = (*BUILT_IN, "fashion_mnist", *UCI, *SYNTHETIC)
KEPT = ("nll", "accuracy", "ece", "rmse", "coverage_90")  # scores that a record has, where there are such
SYNTHETIC_ROWS = 2000  # of a synthetic table


def run(options: Options, say: Say) -> list[dict[str, Any]]:
    """Makes the records that are missing in `options.out`/compare.jsonl and returns all that were asked for."""
    for name in options.sets:
        if name not in SETS:
            raise ValueError(f"the study compare has no set {name!r}.{did_you_mean(name, SETS)}")
    sets = options.without_folder((*BUILT_IN, *SYNTHETIC), SETS, say)
    path = options.out / "compare.jsonl"
    known = read_records(path) if path.exists() else []
    for name in sets:
        there = {r["method"] for r in known if _is(r, name, options)}
        if not (there >= {*options.methods} if options.methods else there):
            known += [append_record(path, r) for r in _compared(options, name, say) if r["method"] not in there]
    records = [r for name in sets for r in known if _is(r, name, options)]
    for line in table(records):
        say(line)
    return records


def table(records: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each set: its best row, those not significantly different from it, and where one network stands."""
    lines = []
    for name in dict.fromkeys(r["data"] for r in records):
        here = sorted((r for r in records if r["data"] == name and r["nll"] is not None), key=lambda r: r["nll"])
        if not here:
            continue
        best = here[0]
        tied = [r["method"] for r in here[1:] if r["low"] is None or r["low"] <= 0]
        said = f"{name:14} n {best['n']:,}, {best['seeds']} seeds: {best['method']} {best['nll']:.3f}"
        said += f"; not significantly different: {', '.join(tied)}" if tied else "; all others are significantly worse"
        one = next((r for r in here if r["method"] == "MAP"), best)
        lines.append(said + ("" if one is best else f"; MAP {one['nll']:.3f}"))
    return lines


def _compared(options: Options, name: str, say: Say) -> list[dict[str, Any]]:
    """The records of one set."""
    engine = options.engine()
    examples = options.examples or (IMAGES if name == "fashion_mnist" else None)
    data: str | Path = name
    if name in UCI:
        data = Path(str(options.folder)) / f"{name}.npz"
    elif name in SYNTHETIC:
        data = synthetic(name, options.out / f"{name}.csv")
    target = "y" if name in UCI else SYNTHETIC.get(name)
    asking = Asking(target, None, options.folder, None, None, None, MEMBERS, SEEDS, options.seed, engine, examples)
    where = () if options.folder is None else ("--folder", str(options.folder))
    command = ("basinet", "study", "compare", "--sets", name, *where)
    setting, chosen = asking.prepare(data, options.methods or ROWS, say, command)
    comparison = carry_out(setting, chosen, options.out / name, None, None, say)
    return [_record(name, setting.splits.train.n, options.seed, row) for row in comparison.summary]


def _record(name: str, n_train: int, seed: int, row: dict[str, Any]) -> dict[str, Any]:
    """What is kept of a row of the summary."""
    scores = {key: row[key] for k in KEPT for key in (k, f"{k}_se") if key in row}
    costs = {key: row[key] for key in ("fit_seconds", "predict_seconds", "steps", "draws")}
    gap = {key: row[key] for key in ("reference", "difference", "low", "high")}
    about = {"study": "compare", "data": name, "method": row["method"], "members": row["members"], "n": row["n"]}
    return about | {"n_train": n_train, "seeds": row["seeds"], "first_seed": seed} | scores | gap | costs


def _is(record: dict[str, Any], name: str, options: Options) -> bool:
    return record["data"] == name and record["first_seed"] == options.seed


def synthetic(name: str, path: Path) -> Path:
    """A table with dates and categories whose law is known, as a csv file."""
    rng = np.random.default_rng(len(name))
    columns = _flats(rng) if name == "flats" else _weather(rng)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(columns, partial := path.with_suffix(".part"), ".csv")
    partial.replace(path)
    return path


def _days(rng: np.random.Generator) -> tuple[np.ndarray, list[str]]:
    """Days within four years as numbers from 0 on, and as dates."""
    day = rng.integers(0, 1461, SYNTHETIC_ROWS)
    return day, [str(np.datetime64("2020-01-01") + int(d)) for d in day]


def _names(rng: np.random.Generator, *names: str) -> tuple[np.ndarray, list[str]]:
    """Numbers of names, and the names."""
    chosen = rng.integers(0, len(names), SYNTHETIC_ROWS)
    return chosen, [names[k] for k in chosen]


def _flats(rng: np.random.Generator) -> dict[str, Any]:
    """The rent is area x price, where price depends on district, age, heating and the day; noise of 8 % of it."""
    day, dates = _days(rng)
    district, districts = _names(rng, "Altstadt", "Hafen", "Nord", "Süd", "West", "Seeufer")
    heating, heatings = _names(rng, "district heating", "gas", "oil", "heat pump")
    area = rng.gamma(9.0, 8.0, SYNTHETIC_ROWS) + 15
    built = rng.integers(1890, 2021, SYNTHETIC_ROWS)
    price = np.array([15.0, 13.0, 9.5, 11.0, 10.5, 17.0])[district] * (1 + 0.05 * day / 365)
    price *= 1 + 0.00004 * (built - 1960.0) ** 2 / 10 + np.array([0.0, -0.02, -0.06, 0.05])[heating]
    price *= 1 - 0.0012 * (area - 80) + 0.04 * np.sin(2 * np.pi * day / 365.25)
    rent = area * price * (1 + 0.08 * rng.standard_normal(SYNTHETIC_ROWS))
    return {
        "listed": dates,
        "district": districts,
        "heating": heatings,
        "area [m2]": area.round(1),
        "built": built.astype(float),
        "rent [EUR]": rent.round(0),
    }


def _weather(rng: np.random.Generator) -> dict[str, Any]:
    """Rain, wind and fog tomorrow, by logistic laws of what is measured today; fog and wind exclude each other."""
    day, dates = _days(rng)
    station, stations = _names(rng, "coast", "valley", "ridge", "plain")
    pressure = 1013 + 9 * rng.standard_normal(SYNTHETIC_ROWS)
    humidity = rng.uniform(30, 100, SYNTHETIC_ROWS)
    warmth = 10 - 9 * np.cos(2 * np.pi * day / 365.25) + 4 * rng.standard_normal(SYNTHETIC_ROWS)
    odds = {
        "rain": -1.2 - 0.16 * (pressure - 1013) + 0.05 * (humidity - 65),
        "wind": np.array([0.8, -1.5, 1.0, -0.5])[station] - 0.12 * (pressure - 1013),
        "fog": np.array([-1.0, 1.2, -2.0, -0.5])[station] + 0.09 * (humidity - 75) - 0.1 * (warmth - 8),
    }
    there = {k: rng.random(SYNTHETIC_ROWS) < 1 / (1 + np.exp(-v)) for k, v in odds.items()}
    there["fog"] &= ~there["wind"]
    measured = {"pressure": pressure.round(1), "humidity": humidity.round(0), "temperature": warmth.round(1)}
    return {"date": dates, "station": stations, **measured, **{k: v.astype(float) for k, v in there.items()}}
