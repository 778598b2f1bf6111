"""Compares recipes on one data set: the same splits, the same network, one pool of members, a record each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .core.tree import leaves
from .data import Encoder
from .data.datasets import Splits
from .engine import Engine
from .engine.method import Entry
from .fit import fit
from .fitted import Maker, problem_for
from .methods import discover, find
from .pool import append_record, describe
from .problem import Problem
from .scoring import score

Say = Callable[[str], None]


def compare(
    splits: Splits,
    entries: Iterable[Entry],
    *,
    out: Path,
    problem: Problem | None = None,
    encoder: Encoder | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    say: Say = lambda line: None,
) -> Iterator[dict[str, Any]]:
    """Fits and scores each entry on the test part; yields its record and appends it to `out/records.jsonl`.

    Members are kept in `out/pool`: an ensemble takes those that a smaller one trained, and a run that was stopped
    goes on where it was. With the `encoder` of a file, scores are in units of its target.
    """
    problem = problem or default_problem(splits)
    for entry in entries:
        say(f"{entry.label}: {entry.members} x {type(entry.recipe).__name__}")
        posterior = fit(
            entry.recipe,
            problem,
            splits.train,
            val=splits.val,
            members=entry.members,
            seed=seed,
            pool=out / "pool",
            engine=engine,
        )
        began = time.perf_counter()
        scores = score(posterior, splits.test)
        record = {
            "data": splits.name,
            "method": entry.label,
            "recipe": describe(entry.recipe),
            "members": entry.members,
            "seed": seed,
            "n_train": splits.train.n,
            "n_test": splits.test.n,
            "scores": scores if encoder is None else encoder.scores(scores),
            "fit_seconds": sum(part.info["seconds"] for part in posterior.parts),
            "score_seconds": time.perf_counter() - began,
        }
        yield append_record(out / "records.jsonl", record)


def default_problem(splits: Splits, make: Maker | None = None) -> Problem:
    """A network, likelihood and prior that fit the data: an MLP, unless `make` makes another network; classes, or
    real numbers with learned noise."""
    first = leaves(splits.train.inputs)
    if len(first) != 1:
        raise ValueError(f"expected inputs of one tensor for the built-in network, got {len(first)}: pass a problem")
    outputs = splits.classes or splits.train.targets[0].numel()
    return problem_for(first[0][0].numel(), outputs, splits.classes is not None, make)


def entries_of(names: Sequence[str] = (), members: int | None = None) -> list[Entry]:
    """The rows to compare: those of the named methods, or of all; `members` replaces the size of the ensembles."""
    methods = [find(name) for name in names] if names else list(discover().values())
    found = [entry for method in methods for entry in method.lineup()]
    return [e if members is None or e.members == 1 else e._replace(members=members) for e in found]


COLUMNS: dict[str, tuple[tuple[str, Callable[[dict[str, float]], float], str], ...]] = {
    "classes": (
        ("NLL", lambda s: s["nll"], ".4f"),
        ("Brier", lambda s: s["brier"], ".4f"),
        ("ECE", lambda s: s["ece"], ".4f"),
        ("accuracy", lambda s: s["accuracy"], ".2%"),
        ("epistemic", lambda s: s.get("epistemic", math.nan) / max(s["entropy"], 1e-12), ".1%"),
    ),
    "real": (
        ("NLL", lambda s: s["nll"], ".4f"),
        ("RMSE", lambda s: s["rmse"], ".4f"),
        ("CRPS", lambda s: s["crps"], ".4f"),
        ("90% interval", lambda s: s["coverage_90"], ".1%"),
        ("epistemic", lambda s: s["epistemic"] / max(s["variance"], 1e-12), ".1%"),
    ),
}


def table(records: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Headings and rows that a person reads, from records of one kind of target."""
    columns = COLUMNS["classes" if "brier" in records[0]["scores"] else "real"]
    heads = ["method", "members", *(name for name, _, _ in columns), "seconds"]
    rows = []
    for r in records:
        values = [_short(value(r["scores"]), style) for _, value, style in columns]
        rows.append([r["method"], str(r["members"]), *values, f"{r['fit_seconds'] + r['score_seconds']:.1f}"])
    return heads, rows


def _short(value: float, style: str) -> str:
    """A number in its column's style; in digits that count where units make it large or small."""
    if math.isnan(value):
        return "-"
    plain = style != ".4f" or value == 0 or 1e-3 <= abs(value) < 1e3
    return format(value, style if plain else ".4g" if abs(value) < 1 else ",.6g")


def legend(splits: Splits) -> str:
    """What the columns mean, in two sentences."""
    if splits.classes is not None:
        return (
            "NLL, Brier (summed over classes) and ECE (15 bins): lower is better. "
            "Epistemic: the share of uncertainty that is about the weights."
        )
    return (
        "NLL, RMSE and CRPS: lower is better; 90% interval: the share of targets inside it. "
        "Epistemic: the share of variance that is about the weights."
    )
