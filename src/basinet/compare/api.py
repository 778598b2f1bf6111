"""`bn.compare`: methods side by side on data, as a frame; the command `basinet compare` is the same."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from ..calibrate.temper import ways_of
from ..core.nearest import did_you_mean
from ..data import datasets
from ..data.datasets import Splits
from ..defaults import Design, Maker
from ..engine import Engine
from ..pool.files import atomically
from ..posterior import Posterior
from ..problem import Problem
from ..problem.likelihoods import ClassLikelihood, Likelihood, RealLikelihood
from ..problem.priors import Prior
from ..tables import Encoder, Rules, load_table, read_table
from ..tables.crossed import why_not_crossed
from ..tables.table import READ
from ..tables.values import listed
from .budget import Budget
from .chains import unmixed
from .folder import finite, read_run
from .frame import Frame
from .problems import default_problems, given_weights, kind_of, settled, suspicions
from .references import offered
from .rows import Asked, Row, choose
from .run import Setting, piloted, records_of, within
from .shift import Shift, shift_legend, shift_table, with_ood
from .table import legend, summarise, table, tidy, unfinished

Say = Callable[[str], None]
REFERRED = (ClassLikelihood, RealLikelihood)  # what references predict, too: not counts, nor labels
_LOG: Say = logging.getLogger("basinet").info
_WARN: Say = logging.getLogger("basinet").warning


class Comparison(Frame):
    """What `bn.compare` returns: a tidy frame, one row per method and seed.

    `summary` has one row per method: means and standard errors over seeds, differences to the reference, fronts.
    Printing shows it as a table.
    """

    def __init__(self, records: Sequence[dict[str, Any]], folder: Path, against: str | None) -> None:
        super().__init__(tidy(records))
        self.summary = summarise(records, folder, against)
        lines = (unfinished(records), unmixed(records))  # that training or sampling had not ended; empty where they had
        self.warning = "\n".join(line for line in lines if line)
        self.shift = shift_table(records)  # heads and rows: how they hold up under corruptions, where that was asked
        self.shift_legend = shift_legend(records) if self.shift else ""

    def __str__(self) -> str:
        heads, rows = table(self.summary)
        shown = f"{Frame([dict(zip(heads, row)) for row in rows])}\n{legend(self.summary)}"
        if self.shift is not None:
            heads, rows = self.shift
            shown += f"\n\n{Frame([dict(zip(heads, row)) for row in rows])}\n{self.shift_legend}"
        return f"{shown}\n{self.warning}" if self.warning else shown

    __repr__ = __str__


def compare(
    data: str | Path | Splits,
    methods: str | Sequence[Asked] | None = None,
    *,
    target: str | None = None,
    rules: Rules | None = None,
    folder: Path | str | None = None,
    model: Maker | None = None,
    problem: Problem | None = None,
    start: Posterior | Path | str | None = None,
    members: int | None = None,
    budget: str | None = None,
    seeds: int | Sequence[int] = 1,
    seed: int = 0,
    against: str | None = None,
    examples: int | None = None,
    out: Path | str | None = None,
    engine: Engine | None = None,
    likelihood: Likelihood | None = None,
    prior: Prior | None = None,
    ood: str | Path | None = None,
    corrupt: str | Sequence[str] | None = None,
    say: Say = _LOG,
) -> Comparison:
    """Fits methods to one data set and compares them on its test part.

    `data` is a built-in set by name, an image set in a `folder`, a csv, parquet or npz file with the column `target`
    (read by `rules`), or `Splits`. `methods` are names, labels of rows, recipes or entries; None stands for the usual
    ones that do not take long, and simple models as references ("constant", "linear" and "boosting"); "all" takes all.
    The network is the default one for such data, or what `model(inputs, outputs)` returns, or that of a `problem`;
    `likelihood` and `prior` take the place of the default ones. `start` are weights trained elsewhere, a posterior of
    one member or a file of them: methods that start from trained weights use them, and methods that train from scratch
    run only if they are named.

    `members` replaces the size of the ensembles. `budget`, "60s" or "20000steps", gives every row the same compute:
    seconds of fitting, or training steps of one network; members and epochs are scaled to it. Each row is trained from
    each of the `seeds` (a number of them, counted from `seed`, or a list), on one split of the data by `seed`.
    Differences are to the row of the lowest NLL, or to `against`. `examples` is the most that are trained on, for a
    quick look at a large set; the test part stays whole. `ood` is another set by name (of the same `folder`), or for a
    file another file with its columns: how well uncertainty tells those inputs from test examples. `corrupt` scores
    corrupted test examples too: "all", or names of `bn.corruptions` (of images `NAMES` and `GROUPS`, of tables
    `ROW_NAMES`), at severities 1 to 5. With `out` the run folder stays: `basinet report` reads it, and the same call
    again resumes it.
    """
    of = (target, rules, folder, model, problem, start, members, seeds, seed, engine, examples, likelihood, prior)
    asked = Asking(*of, ood=ood, corrupt=corrupt)
    setting, rows = asked.prepare(data, methods, warn=_WARN if say is _LOG else say)
    if out is not None:
        return carry_out(setting, rows, Path(out), budget, against, say)
    with TemporaryDirectory() as temporary:
        return carry_out(setting, rows, Path(temporary), budget, against, say)


class Asking(NamedTuple):
    """The arguments of `compare` that say on what, as it explains them."""

    target: str | None = None
    rules: Rules | None = None
    folder: Path | str | None = None
    model: Maker | None = None
    problem: Problem | None = None
    start: Posterior | Path | str | None = None
    members: int | None = None
    seeds: int | Sequence[int] = 1
    seed: int = 0
    engine: Engine | None = None
    examples: int | None = None
    likelihood: Likelihood | None = None
    prior: Prior | None = None
    hidden: tuple[int, ...] | None = None
    ood: str | Path | None = None
    corrupt: str | Sequence[str] | None = None

    def prepare(
        self, data: str | Path | Splits, methods: str | Sequence[Asked] | None, warn: Say, command: Sequence[str] = ()
    ) -> tuple[Setting, list[Row]]:
        """Reads the data and decides on the rows; what a person should know is said and kept."""
        self._check(data)
        warnings: list[str] = []

        def both(line: str) -> None:
            warnings.append(line)
            warn(line)

        splits, encoder = self._read(data, both)
        splits = self._cut(splits)
        splits = splits if self.ood is None else with_ood(splits, encoder, self.ood, self.folder, self.seed)
        shift = None if self.corrupt is None else Shift.of(splits, encoder, self.corrupt)
        design = Design(self.model, self.likelihood, self.prior, self.hidden)
        problems = (self.problem,) if self.problem else default_problems(splits, design)
        problem = problems[0]
        for line in suspicions(splits):
            both(line)
        start = None
        if self.start is not None:
            given = self.start
            here = given if isinstance(given, Posterior) else given_weights(Path(given), problem)
            start = settled(here, splits.val)
            both("the given weights may have been trained on the test part: if so, all scores are too good")
        kind = kind_of(problem)
        able, waiting = offered(splits, kind) if isinstance(problem.likelihood, REFERRED) else ([], [])
        temperable = kind if ways_of(problem.likelihood) else "counts"
        chosen = choose(methods, self.members, start is not None, temperable, able)
        for line in chosen.lines:
            both(line)
        rows = chosen.rows
        if any(row.crossed for row in rows) and (reason := why_not_crossed(splits)):
            rows = [row for row in rows if not row.crossed]
            if methods not in (None, "all") or not splits.exchangeable:
                both(f"crossed rows are left out: {reason}")
        if methods is None and start is None and waiting:
            warn(
                f"left out, since they take long here or need scikit-learn (--methods NAME adds one): "
                f"{', '.join(waiting)}"
            )
        seeds = range(self.seed, self.seed + self.seeds) if isinstance(self.seeds, int) else self.seeds
        shared = (encoder, start, tuple(seeds), self.engine, None, tuple(warnings), tuple(command), shift)
        return Setting(splits, problem, *shared, candidates=problems if start is None else ()), rows

    def _check(self, data: Any) -> None:
        """Refuses arguments of other types than they should be, before anything is read."""
        if not isinstance(data, (str, Path, Splits)):
            raise ValueError(f"expected data as a name, a file or bn.datasets.Splits, got {type(data).__name__}")
        for name, count in (("member", self.members), ("training example", self.examples)):
            if count is not None and not (type(count) is int and count >= 1):
                raise ValueError(f"expected at least 1 {name}, got {count!r}")
        if type(self.seed) is not int:
            raise ValueError(f"expected seed as a whole number, got {self.seed!r}")
        seeds = [self.seeds] if isinstance(self.seeds, int) else self.seeds
        several = isinstance(seeds, (list, tuple, range)) and all(type(s) is int for s in seeds)
        if not several or not seeds or (isinstance(self.seeds, int) and self.seeds < 1):
            raise ValueError(f"expected at least one seed, a number of them or a list, got {self.seeds!r}")
        if not isinstance(self.problem, Problem | None):
            raise ValueError(f"expected problem=bn.Problem(...), got {type(self.problem).__name__}")
        if not isinstance(self.engine, Engine | None):
            raise ValueError(f"expected engine=bn.Engine(...), got {type(self.engine).__name__}")
        if self.model is not None and not callable(self.model):
            raise ValueError(f"expected model as a function of (inputs, outputs), got {type(self.model).__name__}")

    def _cut(self, splits: Splits) -> Splits:
        """The splits with no more training examples than were asked for."""
        if self.examples is None or self.examples >= splits.train.n:
            return splits
        description = f"{splits.description} Trained on {self.examples:,} of {splits.train.n:,} examples.".strip()
        return replace(splits, train=splits.train.take(slice(0, self.examples)), description=description)

    def _read(self, data: str | Path | Splits, say: Say) -> tuple[Splits, Encoder | None]:
        if isinstance(data, Splits):
            return data, None
        if is_file(data, self.target):
            goal = target_name(Path(data), self.target)
            return load_table(data, goal, self.rules or Rules(), seed=self.seed, say=say)
        return datasets.load(str(data), seed=self.seed, folder=self.folder), None


def carry_out(
    setting: Setting, rows: list[Row], out: Path, budget: str | None, against: str | None, say: Say
) -> Comparison:
    """Makes the records that are missing, and their summary, which is also in `out`."""
    if against is not None and str(against).lower() not in (labels := [row.label.lower() for row in rows]):
        raise ValueError(f"expected --against one of the rows, got {against!r}.{did_you_mean(str(against), labels)}")
    read_run(out)  # of this version, or nothing is trained or written
    if budget is None:
        setting, rows = piloted(setting, rows, out, say)
    else:
        setting, rows = within(setting, rows, out, Budget.read(budget), say)
    records = list(records_of(setting, rows, out, say))
    comparison = Comparison(records, out, against)
    text = json.dumps(finite({"format": 1, "rows": comparison.summary.rows}), indent=1) + "\n"
    atomically(out / "summary.json", lambda temporary: Path(temporary).write_text(text))
    return comparison


def is_file(data: str | Path, target: str | None) -> bool:
    """Whether data are a file, and not the name of a set."""
    return target is not None or Path(data).suffix.lower() in READ


def target_name(file: Path, target: str | None) -> str:
    """The target's name; without one, an error that says which columns there are."""
    if target is None:
        columns = listed(read_table(file).columns)
        raise ValueError(f"{file}: expected --target with the column to predict, one of {columns}")
    return target
