"""Compares recipes on one data set: the same splits, the same network, one pool of members, a record each."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from ..calibrate.temper import temper
from ..core.waiting import in_order, in_turn, result_of
from ..data.datasets import Splits
from ..defaults import said
from ..engine import Engine, Method
from ..engine.workers import WorkerLost
from ..families import Delta
from ..methods.map import MAP
from ..pilot import pilot, with_step_of
from ..pool import FileError, Pool, behaviour, describe, fingerprint
from ..pool.arrays import write_arrays
from ..posterior import Posterior
from ..problem import Problem
from ..saving import describe_problem
from ..tables import Encoder
from .budget import Budget, record, spent
from .chains import of_chains
from .fitted import fitted, parts_of
from .folder import RunFolder, read_run
from .measure import Measured, measure, measure_function
from .problems import about_inputs, kind_of, parameters_of, test_arrays, unit_of
from .references import fit_reference
from .rows import Row
from .sets import looks_at_val, sets, validation, why_none
from .shift import Shift
from .turns import Turn, Turns
from .units import unit_in

Say = Callable[[str], None]
AT_ONCE = 32  # rows that are under way at the same time on a cluster
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
    shift: Shift | None = None  # corruptions of the test part, where they were asked for
    candidates: tuple[Problem, ...] = ()  # what validation chooses the problem from, where there are several
    chosen: str = ""  # among them, with the scores that it was chosen by

    @property
    def spread(self) -> bool:
        """Whether members train on a cluster."""
        return self.engine is not None and self.engine.executor is not None

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
            "chosen": self.chosen,
            "inputs": about_inputs(splits, encoder),
        }

    def identity(self) -> str:
        """What stands for data, problem and given weights: records of another are not used."""
        parts = {name: data.fingerprint() for name, data in self._parts().items()}
        start = None if self.start is None else [describe([p.params, p.buffers]) for p in self.start.points()]
        shift = [] if self.shift is None else [[*self.shift.names]]
        return fingerprint([parts, describe_problem(self.problem), start, *shift])

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

    Members are kept in `out/pool`: rows that use the same networks train them once, and a run that was stopped
    resumes where it was. A row that fails is reported and left out; where all fail, the first error is raised.
    """
    try:  # of this problem, or nothing is written
        Pool(out / "pool", describe_problem(setting.problem), setting.computes())
    except FileError as error:
        raise ValueError(f"{error} Here: another --out") from error
    folder = RunFolder(out, setting.about(), setting.identity(), rows, setting.seeds, say)
    write_arrays(out / "test.npz", test_arrays(setting.splits, setting.encoder))
    runs = [(row, seed) for row in rows for seed in setting.seeds]
    turns, failed = Turns(runs), dict[str, int]()  # the run at which a row failed
    errors: list[Exception] = []

    def one(number: int) -> Generator[tuple[int, dict[str, Any] | None] | None, None, None]:
        """A run: its record, or None where there is none; None while it waits for other machines."""
        row, seed = runs[number]
        entry = None
        try:
            if row.label not in failed:
                entry = yield from _record(setting, row, seed, folder, turns.of(number), say)
        except (ValueError, FloatingPointError, WorkerLost) as error:
            say(f"{row.label} is left out: {error}")
            folder.fail(row.label, str(error))
            errors.append(error)
            failed[row.label] = min(number, failed.get(row.label, number))
        finally:
            turns.of(number).leave()
        yield number, entry

    at_once = AT_ONCE if setting.spread else 1
    done = 0
    for number, entry in in_order(in_turn([one(number) for number in range(len(runs))], at_once)):
        if entry is not None and number < failed.get(entry["method"], len(runs)):
            done += 1
            yield entry
    if not done and errors:
        raise errors[0]
    folder.finish()


def _record(
    setting: Setting, row: Row, seed: int, folder: RunFolder, turn: Turn, say: Say
) -> Generator[None, None, dict[str, Any]]:
    """The record of a row for one seed: that of the folder, or a new one in it."""
    known = folder.known.get((row.label, seed))
    if known is not None:
        say(f"{row.label}: already in {folder.path}, seed {seed}")
        return known
    repeat = f", seed {seed}" if len(setting.seeds) > 1 else ""
    what = "" if row.reference else f": {row.members} x {_name(row)}"
    say(f"{row.label}{what}{repeat}{row.spending and '; ' + row.spending}")
    return folder.add(*(yield from _measured(setting, row, seed, folder.path / "pool", turn)))


def piloted(setting: Setting, rows: list[Row], out: Path, say: Say) -> tuple[Setting, list[Row]]:
    """The setting with the problem that validation chooses among its candidates, and a line that says so; the rows
    with the step size that it chooses."""
    if len(setting.candidates) < 2:
        return setting, rows
    splits, plain = setting.splits, [row.recipe for row in rows if isinstance(row.recipe, MAP)]
    problem, tried, line = pilot(
        setting.candidates,
        splits.train,
        validation(splits)[0],
        recipe=plain[0] if plain else None,
        seed=setting.seeds[0],
        engine=setting.engine,
        pool=out / "pilot",
    )
    if line:
        say(line)
    say(said(problem))
    rows = [row if row.recipe is None else row._replace(recipe=with_step_of(row.recipe, tried)) for row in rows]
    return setting._replace(problem=problem, candidates=(), chosen=line), rows


def within(setting: Setting, rows: list[Row], out: Path, budget: Budget, say: Say) -> tuple[Setting, list[Row]]:
    """The rows scaled to a budget, as an earlier run in `out` decided where there was one, and the setting that says
    so."""
    say(budget.in_words())
    quiet = setting._replace(engine=replace(setting.engine or Engine(), progress=False))

    def seconds(row: Row) -> float:
        began = time.perf_counter()
        result_of(fitted(quiet, row.recipe, row, setting.seeds[0], None, Turns([(row, setting.seeds[0])]).of(0)))
        return time.perf_counter() - began

    before = read_run(out)
    known = before.get("budget") if before is not None and before.get("of") == setting.identity() else None
    done = spent(budget, rows, setting.splits.train.n, seconds, known)
    return setting._replace(budget=record(budget, rows, done)), done


def _measured(
    setting: Setting, row: Row, seed: int, pool: Path, turn: Turn
) -> Generator[None, None, tuple[dict[str, Any], dict[str, Any]]]:
    """A row's record and arrays, for one seed."""
    splits, n = setting.splits, setting.splits.train.n
    if row.reference:
        return _referred(setting, row, seed)
    began = time.perf_counter()
    trained = yield from fitted(setting, row.recipe, row, seed, pool, turn)
    posterior, tempering = trained.posterior, 0.0
    own = trained.own if setting.spread else time.perf_counter() - began  # on a cluster other rows take time meanwhile
    if row.tempered:
        began = time.perf_counter()
        posterior = temper(posterior, parts_of(row, splits, seed)[1], seed=seed)
        tempering = time.perf_counter() - began
    began = time.perf_counter()
    measured = measure(posterior, splits, unit_of(splits), seed, setting.shift)
    content = {
        "data": splits.name,
        "method": row.label,
        "recipe": describe(row.recipe),
        "members": len(posterior),
        "asked": row.members,
        "tempered": row.tempered,
        "crossed": row.crossed,
        **_temperature(posterior),
        "seed": seed,
        "n_train": n,
        "n_test": splits.test.n,
        "scores": measured.scores,
        "fit_seconds": trained.seconds + tempering,
        "own_seconds": own + tempering,
        "score_seconds": time.perf_counter() - began,
        "predict_seconds": measured.seconds,
        "steps": trained.steps,
        "draws": measured.draws,
        "size_curve": measured.curve,
        "spread": spread_of(posterior, row.recipe),
        "training": trained.training,
        "curves": _thinned(posterior.parts[0].info.get("curves", {})),
    }
    if (seen := of_chains(posterior, splits.train)) is not None:
        content["chains"] = seen
    kept = validation(splits)[1]
    looked = kept is None and (row.tempered or looks_at_val(row.recipe, row.started))
    calibrating = splits if kept is None else replace(splits, val=kept)
    unset = why_none(looked, posterior, calibrating)
    content |= {"unset": unset} if unset else {"sets": sets(posterior, calibrating, unit_of(splits))}
    return content | _elsewhere(measured) | ({"told": row.spending} if row.spending else {}), measured.arrays


def _referred(setting: Setting, row: Row, seed: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The record and arrays of a reference, which is not a posterior."""
    splits = setting.splits
    began = time.perf_counter()
    predict = fit_reference(row.reference, splits, kind_of(setting.problem), seed)
    seconds = time.perf_counter() - began
    measured = measure_function(predict, splits, unit_of(splits), seed, setting.shift)
    content = {
        "data": splits.name,
        "method": row.label,
        "recipe": None,
        "reference": True,
        "members": 1,
        "asked": 1,
        "tempered": False,
        "seed": seed,
        "n_train": splits.train.n,
        "n_test": splits.test.n,
        "scores": measured.scores,
        "fit_seconds": seconds,
        "own_seconds": seconds,
        "predict_seconds": measured.seconds,
        "steps": 0,
        "draws": 0,
        "unset": "it is not a posterior",
    }
    return content | _elsewhere(measured), measured.arrays


def _elsewhere(measured: Measured) -> dict[str, Any]:
    """What a record says of other inputs and of corrupted ones."""
    return {name: value for name, value in (("ood", measured.ood), ("shift", measured.shift)) if value is not None}


def _temperature(posterior: Posterior) -> dict[str, Any]:
    """What its predictions were tempered with: one number for each member, or one for all."""
    temperature = posterior.temperature
    return {} if temperature is None else {"temperature": temperature.values.flatten().tolist()}


def spread_of(posterior: Posterior, recipe: Method | None) -> str:
    """What the spread of a posterior's weights is: none, that of a `point`; the disagreement of `members`; of a size
    that was `tuned` on validation examples; or that of an approximate `posterior`."""
    family = posterior.parts[0].family
    if isinstance(family, Delta):
        return "point" if len(posterior) == 1 else "members"
    return "tuned" if recipe is not None and "val" in recipe.needs else "posterior"


def _thinned(curves: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """The curves of the first members, each with POINTS points at most, evenly chosen and with both ends."""

    def thin(values: Any) -> Any:
        if not isinstance(values, list) or len(values) <= POINTS:
            return values
        return [values[i * (len(values) - 1) // (POINTS - 1)] for i in range(POINTS)]

    return {name: [thin(values) for values in members[:SHOWN]] for name, members in curves.items()}


def _name(row: Row) -> str:
    return "as it is" if row.recipe is None else type(row.recipe).__name__
