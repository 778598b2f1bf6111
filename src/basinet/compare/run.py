"""Compares recipes on one data set: the same splits, the same network, one pool of members, a record each."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..data import Encoder
from ..data.datasets import Splits
from ..engine import Engine, Method
from ..fit import fit
from ..pool import FileError, Pool, behaviour, describe, fingerprint
from ..posterior import Posterior
from ..problem import Problem
from ..saving import describe_problem
from .budget import Budget, record, spent
from .folder import RunFolder, read_run, write_arrays
from .measure import measure
from .problems import about_inputs, kind_of, parameters_of, test_arrays, unit_of
from .rows import Row, base_of, plan_steps
from .sets import sets
from .units import unit_in

Say = Callable[[str], None]
POINTS, SHOWN = 200, 10  # of a curve in a record, and members that have one there


class Setting(NamedTuple):
    """What all rows of a comparison share."""

    splits: Splits
    problem: Problem
    encoder: Encoder | None = None
    start: Posterior | None = None  # weights that were given
    seeds: tuple[int, ...] = (0,)
    engine: Engine | None = None
    budget: dict[str, Any] | None = None
    warnings: tuple[str, ...] = ()
    command: tuple[str, ...] = ()

    def about(self) -> dict[str, Any]:
        """What run.json says of it."""
        splits, encoder = self.splits, self.encoder
        return {
            "command": list(self.command),
            "data": splits.name,
            "description": splits.description,
            "kind": kind_of(self.problem),
            "classes": None if splits.class_names is None else list(splits.class_names),
            "target": None if encoder is None else encoder.target.name,
            "unit": unit_in(encoder.target.name) if encoder is not None and splits.kind == "real" else None,
            "n_train": splits.train.n,
            "n_val": splits.val.n,
            "n_test": splits.test.n,
            "budget": self.budget,
            "network": self.problem.network.description,
            "computes": self.computes(),
            "parameters": parameters_of(self.problem),
            "warnings": [*self.warnings],
            "inputs": about_inputs(splits, encoder),
        }

    def identity(self) -> str:
        """What stands for data, problem and given weights: records of another are not used."""
        parts = {name: data.fingerprint() for name, data in self._parts().items()}
        start = None if self.start is None else [describe([p.params, p.buffers]) for p in self.start.points()]
        return fingerprint([parts, describe_problem(self.problem), start])

    def computes(self) -> dict[str, Any] | None:
        """What the problem computes, in a few numbers: records of a network that prints alike are not used either."""
        return behaviour(self.problem, self.splits.train)

    def _parts(self) -> dict[str, Any]:
        splits = self.splits
        named = {"train": splits.train, "val": splits.val, "test": splits.test, "ood": splits.ood}
        return {name: data for name, data in named.items() if data is not None}


def records_of(
    setting: Setting, rows: Sequence[Row], out: Path, say: Say = lambda line: None
) -> Iterator[dict[str, Any]]:
    """Fits and scores each row for each seed, and yields its record, which is also in `out`.

    Members are kept in `out/pool`: rows that use the same networks train them once, and a run that was stopped goes on
    where it was. A row that fails is said and left out; where all fail, the first error is raised.
    """
    read_run(out)  # of this version, and below of this problem, or nothing is written
    try:
        Pool(out / "pool", describe_problem(setting.problem), setting.computes())
    except FileError as error:
        raise ValueError(f"{error} Here: another --out") from error
    folder = RunFolder(out, setting.about(), setting.identity(), rows, setting.seeds, say)
    write_arrays(out / "test.npz", test_arrays(setting.splits, setting.encoder))
    errors: list[Exception] = []
    done = 0
    for row in rows:
        for seed in setting.seeds:
            try:
                known = folder.known.get((row.label, seed))
                if known is None:
                    repeat = f", seed {seed}" if len(setting.seeds) > 1 else ""
                    say(f"{row.label}: {row.members} x {_name(row)}{repeat}{row.told and '; ' + row.told}")
                    known = folder.add(*_measured(setting, row, seed, out / "pool"))
                else:
                    say(f"{row.label}: in {out} already, seed {seed}")
            except (ValueError, FloatingPointError) as error:
                say(f"{row.label} is left out: {error}")
                folder.fail(row.label, str(error))
                errors.append(error)
                break
            done += 1
            yield known
    if not done and errors:
        raise errors[0]
    folder.finish()


def within(setting: Setting, rows: list[Row], out: Path, budget: Budget, say: Say) -> tuple[Setting, list[Row]]:
    """The rows scaled to a budget, as an earlier run in `out` decided where there was one, and the setting that says
    so."""
    say(budget.told())
    quiet = setting._replace(engine=replace(setting.engine or Engine(), progress=False))

    def seconds(row: Row) -> float:
        began = time.perf_counter()
        _fitted(quiet, row.recipe, row, setting.seeds[0], None)
        return time.perf_counter() - began

    before = read_run(out)
    known = before.get("budget") if before is not None and before.get("of") == setting.identity() else None
    done = spent(budget, rows, setting.splits.train.n, seconds, known)
    return setting._replace(budget=record(budget, rows, done)), done


def _measured(setting: Setting, row: Row, seed: int, pool: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """A row's record and arrays, for one seed."""
    splits, n = setting.splits, setting.splits.train.n
    began = time.perf_counter()
    posterior, seconds = _fitted(setting, row.recipe, row, seed, pool)
    own = time.perf_counter() - began
    began = time.perf_counter()
    found = measure(posterior, splits, unit_of(splits), seed)
    made = {
        "data": splits.name,
        "method": row.label,
        "recipe": describe(row.recipe),
        "members": len(posterior),
        "asked": row.members,
        "seed": seed,
        "n_train": n,
        "n_test": splits.test.n,
        "scores": found.scores,
        "fit_seconds": seconds,
        "own_seconds": own,
        "score_seconds": time.perf_counter() - began,
        "predict_seconds": found.seconds,
        "steps": len(posterior) * plan_steps(row, n),
        "draws": found.draws,
        "size_curve": found.curve,
        "curves": _thinned(posterior.parts[0].info.get("curves", {})),
    }
    held = sets(posterior, row.recipe, splits, unit_of(splits))
    made |= {"sets": held} if held else {}
    return made | ({"ood": found.ood} if found.ood else {}) | ({"told": row.told} if row.told else {}), found.arrays


def _fitted(setting: Setting, recipe: Method | None, row: Row, seed: int, pool: Path | None) -> tuple[Posterior, float]:
    """The posterior of a row and the seconds that its members took, whenever that was: those of what it starts from
    come first and are found in the pool by every other row that starts there."""
    splits = setting.splits
    if recipe is None:
        assert setting.start is not None
        return setting.start, 0.0
    base, start, before, members = base_of(recipe), None, 0.0, row.members
    if base is not None and row.started:
        start = setting.start
    elif base is not None:
        start, before = _fitted(setting, base, row, seed, pool)
        members = len(start)
    posterior = fit(
        recipe,
        setting.problem,
        splits.train,
        val=splits.val,
        members=members,
        seed=seed,
        start=start,
        pool=pool,
        engine=setting.engine,
    )
    return posterior, before + sum(part.info["seconds"] for part in posterior.parts)


def _thinned(curves: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The curves of the first members, each with POINTS points at most, evenly chosen and with both ends."""

    def thin(values: Any) -> Any:
        if not isinstance(values, list) or len(values) <= POINTS:
            return values
        return [values[i * (len(values) - 1) // (POINTS - 1)] for i in range(POINTS)]

    return {name: [thin(values) for values in members[:SHOWN]] for name, members in curves.items()}


def _name(row: Row) -> str:
    return "as it is" if row.recipe is None else type(row.recipe).__name__
