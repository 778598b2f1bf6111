"""The members of a fit: who they are, where each starts, where it is kept, and how they are trained."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch

from .arguments import check_needs
from .constant import constant_line, nll_of_constant, worse_than_constant
from .core.noise import Noise
from .core.recipe import cohorts
from .core.tree import Point, leaves, move
from .core.waiting import in_turn
from .cost.recipe import refuse_what_does_not_fit
from .data import Data, Stream, some
from .ended import fall_of, falling_line, stopped_line
from .engine import Engine, Member, Method
from .engine.checkpoint import Checkpoints
from .engine.method import chooses_by_val, plan_of
from .engine.progress import Progress
from .engine.sweep import Apart, Marked, Together
from .engine.work import Observer, Roster, Trained, Work
from .longer import go_on
from .pool import Pool, PoolEntry, behaviour, describe, fingerprint
from .pool.mapped import side_by_side
from .pool.pool import Shelf
from .posterior import Part, Posterior, signed
from .predict import kept_inputs
from .problem import Problem
from .saving import describe_problem
from .start import modes

KINDS = 32  # recipes of a sweep that train at the same time on a cluster


class Given(NamedTuple):
    """What a fit and the one it starts from share."""

    problem: Problem
    data: Data | Stream | None
    val: Data | Stream | None
    seed: int
    pool: Path | str | None
    engine: Engine
    observe: Observer | None
    blocks: dict[Member, int] | None = None  # who may train side by side; None: all


class Cast:
    """The members of a fit: who they are, by which recipe, where each starts and where it is kept."""

    def __init__(
        self, each: list[Method], who: list[Member], start: Posterior | None, sources: list[Any], given: Given
    ) -> None:
        problem, data, val, seed, pool, engine, *_ = self.given = given
        self.who = who
        self.kinds = different(each)
        for recipe in self.kinds:
            check_needs(recipe, problem, data, val)
        self.kind = [self.kinds.index(recipe) for recipe in each]  # by position, as all lists of members here
        self.adapted = [recipe.adapt(problem) for recipe in self.kinds]
        self.plans = [plan_of(recipe, 0 if data is None else data.n) for recipe in self.kinds]
        most = 1 + max(m.k for m in who)
        for what, part in (("data", data), ("validation data", val)):
            if isinstance(part, Data) and part.rows is not None and len(part.rows) < most:
                raise ValueError(
                    f"the {what} have index lists for {len(part.rows)} members and {most} were asked for: draw lists "
                    "for all, or ask for fewer"
                )
        seeds, numbers = torch.tensor([(signed(m.seed), m.k) for m in who]).unbind(-1)
        self.keys = Noise.seed(seed).split("fit").split(seeds).split(numbers).key  # (M, 2)
        self.point = _starting_points([self.adapted[j] for j in self.kind], Noise(self.keys), start, self.kinds[0])
        self.starts_given = start is not None
        self.dtype = engine.dtype or leaves(self.point(0, 0).params)[0].dtype
        self._check_data()
        firsts = [self.kind.index(j) for j in range(len(self.kinds))]
        self.entries: list[PoolEntry] = []  # one for each kind, where there is a pool
        if pool is not None:
            opened = Pool(pool, describe_problem(problem), behaviour(problem, data or val))
            if opened.note:
                self._say(opened.note)
            self.pool = opened
            self.origins = [_description(each[i], sources[i], given) for i in firsts]
            names = [type(each[i]).__name__ for i in firsts]
            self.entries = [opened.entry(name, by) for name, by in zip(names, self.origins)]
        self.names = [_file_name(m, None if start is None else self.point(i, 0)) for i, m in enumerate(who)]
        if each[0].coupled:  # a member is what the others of its recipe made of it
            mates = [[n for n, k in zip(self.names, self.kind) if k == j] for j in range(len(self.kinds))]
            self.names = [f"{name}-of-{fingerprint(mates[j])}" for name, j in zip(self.names, self.kind)]
        self.shelf = Shelf(self.entries, self.kind, self.names)

    def read(self, wanted: Sequence[int] | None = None) -> dict[int, Trained]:
        """Those of the wanted members (by default of all) that are in the pool."""
        there: dict[int, Trained] = {}
        if not self.entries:
            return there
        for i in range(len(self.who)) if wanted is None else wanted:
            if self.shelf.has(i):
                there[i] = Trained(i, *self.shelf.read(i, self.given.engine.place))
        if self.kinds[0].coupled:
            lacking = {j for i, j in enumerate(self.kind) if i not in there}
            there = {i: trained for i, trained in there.items() if self.kind[i] not in lacking}
        return there

    def write(self, trained: Trained) -> None:
        """Keeps a member in the pool."""
        if self.entries and trained.family is not None:
            self.shelf.write(trained.position, trained.family, trained.curves)

    def train(self, missing: list[int]) -> Generator[Trained | None, None, None]:
        """Trains members: those whose recipes differ only in numbers side by side, where that can be, and on a
        cluster all kinds at the same time. Yields None while it waits for other machines."""
        if self.given.engine.executor is None:
            yield from in_turn([self._cohort(cohort, missing) for cohort in cohorts(self.kinds, self.plans)], 1)
        else:
            yield from in_turn([self._train([j], missing) for j in range(len(self.kinds))], KINDS)

    def _cohort(self, cohort: list[int], missing: list[int]) -> Generator[Trained | None, None, None]:
        """Trains the members of kinds that differ only in numbers."""
        together = len(cohort) > 1 and self.plans[cohort[0]].steps > 0 and self.given.engine.strategy != "loop"
        together = together and not self.kinds[cohort[0]].coupled  # those of one recipe see each other
        together = together and self.given.blocks is None  # which are of one recipe each
        left = {self.kind[i] for i in missing} & set(cohort)
        if together and (len(left) > 1 or self._checkpoints(cohort).exist()):
            try:
                yield from self._train(cohort, missing)
                return
            except Apart as reason:
                label = self.kinds[cohort[0]].label
                self._say(f"{len(cohort)} recipes of {label} run one after another: {reason}")
        for j in cohort:
            yield from self._train([j], missing)

    def _train(self, cohort: list[int], missing: list[int]) -> Generator[Trained | None, None, None]:
        """Trains the missing members of one kind, or of kinds that run as one method."""
        wanted = [i for i in missing if self.kind[i] in cohort]
        checkpoints = self._checkpoints(cohort)
        if not wanted:
            checkpoints.clear()  # of a run that was killed at its very end
            return
        with checkpoints.alone(
            lambda: self._say("another process is training these members: waiting for it to finish")
        ):
            there = self.read(wanted) if checkpoints.folder is not None else {}  # from that process
            yield from there.values()
            wanted = [i for i in wanted if i not in there]
            if not wanted:
                return
            kind, adapted, given = self.kinds[cohort[0]], self.adapted[cohort[0]], self.given
            check_room(kind, adapted, self.point(wanted[0], 0), len(self.who), given)
            work, roster = self._work(cohort)
            if not checkpoints.exist():
                self._sweep(cohort, checkpoints.run)  # of runs that were killed before their first checkpoint
                if self.entries and len(cohort) == 1 and kind.grows:
                    go_on(self.pool, kind, self.origins[cohort[0]], checkpoints, self.plans[cohort[0]].bank)
            shelf = self.shelf if self.entries else None
            yield from given.engine.train(
                work, roster, missing=wanted, observe=given.observe, checkpoints=checkpoints, shelf=shelf
            )
            self._sweep(cohort, checkpoints.run)

    def _work(self, cohort: list[int]) -> tuple[Work, Roster]:
        """What members of these kinds train on, and from where."""
        problem, data, val, _, _, engine, *_ = self.given
        method, point = self.kinds[cohort[0]], self.point
        if len(cohort) > 1:
            method = Together.of([self.kinds[j] for j in cohort], problem.to(engine.place, self.dtype), engine.place)

            start, kind = self.point, self.kind  # not self: what is called here may travel to other machines

            def marked(i: int, attempt: int) -> Any:
                return Marked(*start(i, attempt), torch.tensor(cohort.index(kind[i])))

            point = marked
        blocks = None if self.given.blocks is None else [self.given.blocks[m] for m in self.who]
        roster = Roster(self.who, point, self.keys, blocks, self.starts_given)
        return Work.of(method, self.adapted[cohort[0]], data, val), roster

    def _sweep(self, cohort: list[int], run: str) -> None:
        if self.entries:
            self.entries[cohort[0]].sweep(run)

    def _say(self, line: str) -> None:
        Progress("", 0, self.given.engine.progress).say(line)

    def _checkpoints(self, cohort: list[int]) -> Checkpoints:
        mine = [i for i, j in enumerate(self.kind) if j in cohort]
        run: list[Any] = [self.names[i] for i in mine]
        if not self.entries:
            return Checkpoints()
        if len(cohort) > 1:
            run = [[self.entries[self.kind[i]].folder.name, self.names[i]] for i in mine]
        return Checkpoints(self.entries[cohort[0]].folder, self.given.engine.checkpoint, fingerprint(run))

    def posterior(self, results: dict[int, Trained], trained: set[int]) -> Posterior:
        """Trained members in their order: a part for each run of members of one kind."""
        kept = [i for i in range(len(self.who)) if results[i].family is not None]
        if not kept:
            faults = dict.fromkeys(fault for t in results.values() for fault in t.curves.get("fault", []) if fault)
            why = f" ({'; '.join(faults)})" if faults else ""
            raise FloatingPointError(
                f"the loss of every member ({len(self.who)}) became NaN or infinite{why}: lower the learning "
                "rate, or warm it up"
            )
        failed = [list(m) for i, m in enumerate(self.who) if results[i].family is None]
        inputs, rows = self._inputs_of_draws(results[kept[0]].family, kept)
        constant = nll_of_constant(self.given.problem.likelihood, self.given.data, self.given.val)
        parts = []
        for j, run in groupby(kept, key=lambda i: self.kind[i]):
            here = list(run)
            done = [results[i] for i in here]
            common = [n for n in done[0].curves if n != "notes" and all(n in t.curves for t in done)]  # a pool may lack
            info: dict[str, Any] = {
                "curves": {n: [t.curves[n] for t in done] for n in common},
                "seconds": sum(t.curves["seconds"][0] for t in done),
                "trained": len(trained.intersection(here)),
            }
            if any("notes" in t.curves for t in done):
                info["notes"] = [t.curves.get("notes", []) for t in done]  # lines, of each member
            if failed:
                info["failed"] = failed  # members that diverged at every attempt are not in the posterior
            stopped = stopped_line([t.curves for t in done], self.plans[j].steps) if self.kinds[j].best else ""
            if stopped and trained.intersection(here):
                self._say(stopped)
            falls = [fall_of(t.curves, self.kinds[j], self.plans[j].steps) for t in done]
            if any(falls) and getattr(self.kinds[j], "epochs", 0) is None:
                info["still_falling"] = falls  # nats per example, where the planned steps were too few
                if trained.intersection(here):
                    self._say(falling_line(falls, self.plans[j].steps))
            excess = worse_than_constant([t.curves for t in done], constant)
            if any(excess) and getattr(self.kinds[j], "epochs", 0) is None:
                info["worse_than_constant"] = excess  # nats per example, of validation data
                if trained.intersection(here):
                    self._say(constant_line(excess))
            family = side_by_side([t.family for t in done if t.family is not None])
            members = tuple(self.who[i] for i in here)
            own = None if rows is None else rows[[kept.index(i) for i in here]]
            parts.append(Part(self.given.problem, family, members, self.kinds[j], inputs, info, own))
        return Posterior(tuple(parts))

    def _inputs_of_draws(self, family: Any, kept: list[int]) -> tuple[Any, Any]:
        """The training inputs on which norm statistics of draws are recomputed, where draws need that, and which of
        them are whose. The points of finite families have theirs."""
        data = self.given.data
        if self.kinds[0].norm != "refresh" or not self.adapted[0].network.norms or data is None:
            return None, None
        if family.points is not None:
            return None, None
        return move(kept_inputs(data, [self.who[i].k for i in kept]), self.given.engine.place, self.dtype)

    def _check_data(self) -> None:
        data, val = self.given.data, self.given.val
        for given in (data, val):
            seen = None if given is None else some(given)
            if seen is None or (seen is not data and len(seen.targets.unique()) == 1):
                continue  # one class is enough for a part
            moved = seen.to(dtype=self.dtype)
            for j, adapted in enumerate(self.adapted):
                adapted.check(moved, move(self.point(self.kind.index(j), 0), dtype=self.dtype))


def check_room(method: Method, problem: Problem, point: Point, members: int, given: Given) -> None:
    """Refuses what would not fit in memory, before anything is computed."""
    engine = given.engine
    point = engine.move(point)
    dtype = leaves(point.params)[0].dtype
    data, val = (None if x is None else x.to(engine.place, dtype) for x in (given.data, given.val))
    refuse_what_does_not_fit(method, problem, point, data, val, members, engine.memory, engine.place)


def different(recipes: Sequence[Method]) -> list[Method]:
    """The recipes, each once."""
    recipes_seen: list[Method] = []
    last: Method | None = None
    for recipe in recipes:
        if recipe is not last and recipe not in recipes_seen:
            recipes_seen.append(recipe)
        last = recipe
    return recipes_seen


def _starting_points(
    problems: list[Problem], noise: Noise, start: Posterior | None, recipe: Method
) -> Callable[[int, int], Point]:
    """Where member i begins its attempt a: as given, or a fresh initialisation from a key of that attempt. `noise` has
    the keys of all members, (M, 2)."""
    if start is not None:
        given = modes(start, recipe)
        expected = {n: tuple(x.shape) for n, x in problems[0].init(Noise(noise.key[0])).params.items()}
        for one in given:
            got = {n: tuple(x.shape) for n, x in one.params.items()}
            if got != expected:
                raise ValueError(f"start has parameters {got}, but the problem has {expected}")
        return lambda i, attempt: given[i % len(given)]

    first = noise.split("start").key

    def fresh(i: int, attempt: int) -> Point:
        if attempt == 0:
            return problems[i].init(Noise(first[i]))
        return problems[i].init(Noise(noise.key[i]).split("attempt").split(attempt).split("start"))

    if len(first) > 1:
        a, b = fresh(0, 0).params, fresh(1, 0).params
        if all(torch.equal(a[n], b[n]) for n in a):
            raise ValueError(
                "members start equal: building the network under another seed gives the same parameters. Pass a "
                "factory () -> nn.Module that initialises at random (a module can only be re-initialised through "
                "layers with reset_parameters), or members=1"
            )
    return fresh


def _description(method: Method, source: Any, given: Given) -> dict[str, Any]:
    """What makes a recipe's members, by which a pool knows them; `source` are the recipes of what they start from."""
    data, val = given.data, given.val
    noisy = given.problem.likelihood.spread is not None  # its noise is set by validation
    description = {
        "method": describe(method),
        "data": None if data is None else data.fingerprint(),
        "val": val.fingerprint() if val is not None and (noisy or chooses_by_val(method)) else None,
        "seed": given.seed,
        "start": source,
        "dtype": str(given.engine.dtype),
    }
    if given.engine.autocast is not None:
        description["autocast"] = str(given.engine.autocast)
    return description


def _file_name(member: Member, start: Point | None) -> str:
    """A member's name in a pool: its seed and number, and where it started if that was given."""
    name = f"{member.seed}-{member.k:05d}"
    return name if start is None else f"{name}-{fingerprint(describe([start.params, start.buffers]))}"
