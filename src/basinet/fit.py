"""`fit`: from a recipe, a problem and data to a posterior."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import fields, replace
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils.data import DataLoader

from .core.noise import Noise
from .core.recipe import cohorts, expand
from .core.tree import Point, leaves, move, stack
from .data import Data, Stream, some
from .engine import Engine, Member, Method
from .engine.checkpoint import Checkpoints
from .engine.falling import falling_line, still_falling
from .engine.memory import SHARE, free_bytes, readable
from .engine.method import chooses_by_val, plan_of
from .engine.progress import Progress
from .engine.room import refuse_what_does_not_fit
from .engine.sweep import Apart, Marked, Together
from .engine.work import Observer, Roster, Trained, Work
from .methods.map import MAP
from .pool import Pool, PoolEntry, behaviour, describe, fingerprint
from .posterior import Part, Posterior, signed
from .predict import kept_inputs
from .problem import Problem
from .saving import describe_problem
from .start import curves_of, going_on, modes
from .trial import by_validation, compared, relabelled

MANY = 10_000  # members for which it is checked beforehand that all of them can be
EACH = 4096  # bytes that a member takes beside its parameters: its key, name and curves


def fit(
    method: Method,
    problem: Problem,
    data: Data | Stream | None = None,
    *,
    val: Data | Stream | None = None,
    members: int | None = None,
    seed: int = 0,
    start: Posterior | None = None,
    pool: Path | str | None = None,
    engine: Engine | None = None,
    observe: Observer | None = None,
) -> Posterior:
    """The posterior that `method` finds for `problem` on `data`.

    `members` trains an ensemble of it (default 1, or as many as `start` has); member k depends on the seed and k
    alone, not on how many there are. Where fields of the recipe, or of recipes inside it, are lists of L values, there
    are L members or a multiple, and member k is the one that the plain recipe with value k mod L gives; its part of
    the posterior has that recipe. `start` gives the points to start from: one for all members, or one each. `val`
    only stops and tunes; it never counts in N. `pool` is a folder in which members are kept: those that are there
    already are read, not trained again. `observe` is called about once an epoch.

    Data may be a stream, `Data.stream`: a step is then a batch as it comes, whatever the method's `batch_size`.
    """
    check_arguments(method, problem, data, val, members, start)
    _check_options(seed, pool, engine, observe)
    data, val = (d.seeded(seed) if isinstance(d, Stream) else d for d in (data, val))
    recipes = expand(method)
    count = len(recipes)
    if method.coupled:
        _check_coupled(method, count, data, members, start)
    members = count if members is None and count > 1 and (start is None or len(start) == 1) else members
    given = _Given(problem, data, val, seed, pool, engine or Engine(), observe)
    if members is not None and members >= MANY:
        _check_many(recipes[0], members, given)
    who = _identities(members, seed, start)
    if len(who) % count:
        raise ValueError(
            f"{method.label} has lists of {count} values, for {len(who)} members: expected a multiple of {count} "
            f"members, of which member k has value k mod {count}"
        )
    each = [recipes[i % count] for i in range(len(who))]
    made = _fit(each, who, start, given)
    planned = 0 if given.data is None else plan_of(each[0], given.data.n).steps
    settles = any(recipe.trials() for recipe in each)  # and compares itself
    around = planned and not settles and any(f.name == "base" for f in fields(method))
    if start is None or given.val is None or not around:
        return made
    return compared(made, who, start, given.val, Progress("", 0, given.engine.progress))


class _Given(NamedTuple):
    """What a fit and the one it starts from share."""

    problem: Problem
    data: Data | Stream | None
    val: Data | Stream | None
    seed: int
    pool: Path | str | None
    engine: Engine
    observe: Observer | None


def _fit(each: list[Method], who: list[Member], start: Posterior | None, given: _Given) -> Posterior:
    """The posterior of members that have a plain recipe each."""
    if isinstance(given.data, Stream):
        each = [in_batches(recipe, given.data) for recipe in each]
    sources: list[Any] = [None if start is None else [describe(p.recipe) for p in start.parts]] * len(each)
    if start is None and any(f.name == "base" for f in fields(each[0])):
        for recipe in _different(each):  # what is missing or does not fit is said before the base is trained
            check_needs(recipe, given.data, given.val)
            adapted = recipe.adapt(given.problem)
            _check_room(recipe, adapted, adapted.init(Noise.seed(given.seed)), len(who), given)
        bases: list[Method] = [getattr(recipe, "base", None) or MAP() for recipe in each]
        start = _fit(bases, who, None, given)
        places = {m: i for i, m in reversed(list(enumerate(who)))}
        there = [places[m] for m in start.members]  # those that diverged are not
        each, who = [each[i] for i in there], [who[i] for i in there]
        sources = [[describe(bases[i])] for i in there]
    if start is not None:
        each = [going_on(recipe, start) for recipe in each]
        learned = [recipe.started(curves_of(start, i)) for i, recipe in enumerate(each)]
        by_trial = given.val is not None and any(recipe.trials() for recipe in each)
        if by_trial or learned != each:
            again = _rerun(who, start, given)
            if not by_trial:
                made = again(learned, list(range(len(who))))
                asked = [each[who.index(m)] for m in made.members]
                return relabelled([made[k].parts[0] for k in range(len(made))], asked)
            assert given.val is not None
            told = Progress("", 0, given.engine.progress)
            return by_validation(each, who, start, given.val, again, told)
    cast = _Cast(each, who, start, sources, given)
    found = cast.read()
    missing = [i for i in range(len(who)) if i not in found]
    with closing(cast.train(missing)) as run:
        for trained in run:
            found[trained.position] = trained
            cast.write(trained)
    return cast.posterior(found, set(missing))


def _rerun(who: list[Member], start: Posterior, given: _Given) -> Callable[[list[Method], list[int]], Posterior]:
    """Fits some of the members by recipes of their own."""

    def run(recipes: list[Method], here: list[int]) -> Posterior:
        own = start if len(start) == 1 else start[here]
        return _fit(recipes, [who[i] for i in here], own, given)

    return run


class _Cast:
    """The members of a fit: who they are, by which recipe, where each starts and where it is kept."""

    def __init__(
        self, each: list[Method], who: list[Member], start: Posterior | None, sources: list[Any], given: _Given
    ) -> None:
        problem, data, val, seed, pool, engine, _ = self.given = given
        self.who = who
        self.kinds = _different(each)
        for recipe in self.kinds:
            check_needs(recipe, data, val)
        self.kind = [self.kinds.index(recipe) for recipe in each]  # by position, as all lists of members here
        self.adapted = [recipe.adapt(problem) for recipe in self.kinds]
        self.plans = [plan_of(recipe, 0 if data is None else data.n) for recipe in self.kinds]
        most = 1 + max(m.k for m in who)
        if data is not None and data.rows is not None and len(data.rows) < most:
            raise ValueError(f"the data have index lists for {len(data.rows)} members and {most} were asked for")
        seeds, numbers = torch.tensor([(signed(m.seed), m.k) for m in who]).unbind(-1)
        self.keys = Noise.seed(seed).split("fit").split(seeds).split(numbers).key  # (M, 2)
        noises = [Noise(key) for key in self.keys]
        self.point = _starting_points([self.adapted[j] for j in self.kind], noises, start, self.kinds[0])
        self.dtype = engine.dtype or leaves(self.point(0, 0).params)[0].dtype
        self._check_data()
        firsts = [self.kind.index(j) for j in range(len(self.kinds))]
        self.entries: list[PoolEntry] = []  # one a kind, where there is a pool
        if pool is not None:
            opened = Pool(pool, describe_problem(problem), behaviour(problem, data or val))
            if opened.note:
                Progress("", 0, engine.progress).say(opened.note)
            self.entries = [_entry(opened, each[i], sources[i], given) for i in firsts]
        self.names = [_file_name(m, None if start is None else self.point(i, 0)) for i, m in enumerate(who)]
        if each[0].coupled:  # a member is what the others made of it
            company = fingerprint(self.names)
            self.names = [f"{name}-of-{company}" for name in self.names]

    def read(self, wanted: Sequence[int] | None = None) -> dict[int, Trained]:
        """Those of the wanted members (by default of all) that are in the pool."""
        found: dict[int, Trained] = {}
        if not self.entries:
            return found
        for i in range(len(self.who)) if wanted is None else wanted:
            entry, name = self.entries[self.kind[i]], self.names[i]
            if entry.has(name):
                found[i] = Trained(i, *entry.read(name, self.given.engine.place))
        return {} if self.kinds[0].coupled and len(found) < len(self.who) else found

    def write(self, trained: Trained) -> None:
        """Keeps a member in the pool."""
        i = trained.position
        if self.entries and trained.family is not None and not self.entries[self.kind[i]].has(self.names[i]):
            self.entries[self.kind[i]].write(self.names[i], trained.family, trained.curves)

    def train(self, missing: list[int]) -> Generator[Trained, None, None]:
        """Trains members: those whose recipes differ in numbers alone side by side, where that can be."""
        for cohort in cohorts(self.kinds, self.plans):
            together = len(cohort) > 1 and self.plans[cohort[0]].steps > 0 and self.given.engine.strategy != "loop"
            left = {self.kind[i] for i in missing} & set(cohort)
            if together and (len(left) > 1 or self._checkpoints(cohort).exist()):
                try:
                    yield from self._train(cohort, missing)
                    continue
                except Apart as reason:
                    told = f"{len(cohort)} recipes of {self.kinds[cohort[0]].label} run one after another: {reason}"
                    Progress("", 0, self.given.engine.progress).say(told)
            for j in cohort:
                yield from self._train([j], missing)

    def _train(self, cohort: list[int], missing: list[int]) -> Iterator[Trained]:
        """Trains the missing members of one kind, or of kinds that run as one method."""
        wanted = [i for i in missing if self.kind[i] in cohort]
        checkpoints = self._checkpoints(cohort)
        if not wanted:
            checkpoints.clear()  # of a run that was killed at its very end
            return
        say = Progress("", 0, self.given.engine.progress).say
        with checkpoints.alone(lambda: say("another process trains these members: waiting for it to end")):
            there = self.read(wanted) if checkpoints.folder is not None else {}  # from that process
            yield from there.values()
            if len(there) < len(wanted):
                yield from self._train_here(cohort, [i for i in wanted if i not in there], checkpoints)

    def _train_here(self, cohort: list[int], wanted: list[int], checkpoints: Checkpoints) -> Iterator[Trained]:
        problem, data, val, _, _, engine, observe = self.given
        method, point = self.kinds[cohort[0]], self.point
        _check_room(method, self.adapted[cohort[0]], self.point(wanted[0], 0), len(self.who), self.given)
        if len(cohort) > 1:
            method = Together.of([self.kinds[j] for j in cohort], problem, engine.place)

            def marked(i: int, attempt: int) -> Any:
                return Marked(*self.point(i, attempt), torch.tensor(cohort.index(self.kind[i])))

            point = marked
        work = Work.of(method, self.adapted[cohort[0]], data, val)
        roster = Roster(self.who, point, self.keys)
        yield from engine.train(work, roster, missing=wanted, observe=observe, checkpoints=checkpoints)

    def _checkpoints(self, cohort: list[int]) -> Checkpoints:
        mine = [i for i, j in enumerate(self.kind) if j in cohort]
        run: list[Any] = [self.names[i] for i in mine]
        if not self.entries:
            return Checkpoints()
        if len(cohort) > 1:
            run = [[self.entries[self.kind[i]].folder.name, self.names[i]] for i in mine]
        return Checkpoints(self.entries[cohort[0]].folder, self.given.engine.checkpoint, fingerprint(run))

    def posterior(self, found: dict[int, Trained], trained: set[int]) -> Posterior:
        """What was found, in the order of members: a part for each run of members of one kind."""
        kept = [i for i in range(len(self.who)) if found[i].family is not None]
        if not kept:
            raise FloatingPointError(
                f"the loss of every member ({len(self.who)}) became NaN or infinite: lower the learning rate, or warm "
                "it up"
            )
        failed = [list(m) for i, m in enumerate(self.who) if found[i].family is None]
        inputs, rows = self._inputs_of_draws(found[kept[0]].family, kept)
        parts = []
        for j, run in groupby(kept, key=lambda i: self.kind[i]):
            here = list(run)
            done = [found[i] for i in here]
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
            falls = [still_falling(t.curves, self.plans[j].steps) for t in done]
            if any(falls) and getattr(self.kinds[j], "epochs", 0) is None:
                info["still_falling"] = falls  # nats per example, where the planned steps were too few
                if trained.intersection(here):
                    Progress("", 0, self.given.engine.progress).say(falling_line(falls, self.plans[j].steps))
            family = stack([t.family for t in done if t.family is not None])
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


def check_arguments(
    method: Method,
    problem: Problem,
    data: Data | Stream | None,
    val: Data | Stream | None,
    members: int | None,
    start: Posterior | None,
) -> None:
    """Refuses what is no recipe, problem, data or start."""
    name = type(method).__name__
    if isinstance(method, type) and issubclass(method, Method):
        raise TypeError(f"expected a recipe such as {method.__name__}(), got the class {method.__name__}")
    if not isinstance(method, Method):
        raise TypeError(f"expected a recipe such as bn.MAP(), got {name}")
    if not isinstance(problem, Problem):
        raise TypeError(f"expected a bn.Problem, got {type(problem).__name__}")
    for what, given in (("data", data), ("val", val)):
        if isinstance(given, DataLoader):
            raise TypeError(
                f"expected {what} as bn.Data(inputs, targets), got a DataLoader: bn.Data.stream(loader, "
                "n=len(loader.dataset)) reads one"
            )
        if given is not None and not isinstance(given, (Data, Stream)):
            raise TypeError(f"expected {what} as bn.Data(inputs, targets), got {type(given).__name__}")
    if members is not None and (isinstance(members, bool) or not isinstance(members, int) or members < 1):
        raise ValueError(f"expected members to be a positive integer, got {members!r}")
    if start is not None and not isinstance(start, Posterior):
        raise TypeError(
            f"expected start as a posterior, got {type(start).__name__}: use bn.Posterior.of(module, problem)"
        )
    if start is not None and members is not None and len(start) not in (1, members):
        raise ValueError(f"start has {len(start)} members and {members} were asked for: expected 1 or {members}")


def _check_options(seed: Any, pool: Any, engine: Any, observe: Any) -> None:
    Noise.seed(seed)  # refuses what is none
    if pool is not None and not isinstance(pool, (str, PathLike)):
        raise TypeError(f"expected pool as the path of a folder, got {type(pool).__name__}")
    if engine is not None and not isinstance(engine, Engine):
        raise TypeError(f"expected engine as bn.Engine(device='cpu'), say, got {type(engine).__name__}")
    if observe is not None and not callable(observe):
        raise TypeError(f"expected observe as a function of an event, got {type(observe).__name__}")


def check_needs(method: Method, data: Data | Stream | None, val: Data | Stream | None) -> None:
    """Refuses to go without data that a recipe needs."""
    name = type(method).__name__
    for what, given in (("data", data), ("val", val)):
        if given is None and what in method.needs:
            raise ValueError(f"{name} needs {what}: pass {'the training data' if what == 'data' else 'val='}")
    if val is None and getattr(method, "patience", None) is not None:
        raise ValueError(f"{name} with patience stops on the validation NLL: pass val=, or patience=None")


def _check_coupled(
    method: Method, recipes: int, data: Data | Stream | None, members: int | None, start: Posterior | None
) -> None:
    name = method.label
    if members is None and start is None:
        raise ValueError(f"the members of {name} see each other, so their number matters: give members=10, say")
    if recipes > 1:
        raise ValueError(f"the members of {name} see each other, so they share one recipe: give no lists in it")
    if isinstance(data, Data) and data.rows is not None:
        raise ValueError(f"the members of {name} see the same batches: give data without index lists a member")


def _different(recipes: Sequence[Method]) -> list[Method]:
    """The recipes, each once."""
    found: list[Method] = []
    last: Method | None = None
    for recipe in recipes:
        if recipe is not last and recipe not in found:
            found.append(recipe)
        last = recipe
    return found


def _check_many(method: Method, members: int, given: _Given) -> None:
    """Refuses more members than can be kept before a list of them is made, and says that starting takes a while."""
    free = int(SHARE * free_bytes(torch.device("cpu")))
    if members * EACH > free:
        raise MemoryError(
            f"{members:,} members take about {readable(members * EACH)} to keep count of alone, and {readable(free)} "
            f"may be used: members={free // EACH:,} fit"
        )
    check_needs(method, given.data, given.val)
    adapted = method.adapt(given.problem)
    _check_room(method, adapted, adapted.init(Noise.seed(given.seed)), members, given)
    Progress("", 0, given.engine.progress).say(f"{members:,} members: each start is drawn before the first step")


def _check_room(method: Method, problem: Problem, point: Point, members: int, given: _Given) -> None:
    """Refuses what would not fit in memory, before anything is computed."""
    engine = given.engine
    point = engine.move(point)
    dtype = leaves(point.params)[0].dtype
    data, val = (None if x is None else x.to(engine.place, dtype) for x in (given.data, given.val))
    refuse_what_does_not_fit(method, problem, point, data, val, members, engine.memory, engine.place)


def _identities(members: int | None, seed: int, start: Posterior | None) -> list[Member]:
    if start is not None and (members is None or members == len(start)):
        return list(start.members)
    return [Member(seed, k) for k in range(members or 1)]


def _starting_points(
    problems: list[Problem], noises: list[Noise], start: Posterior | None, recipe: Method
) -> Callable[[int, int], Point]:
    """Where member i begins its attempt a: as given, or a fresh initialisation from a key of that attempt."""
    if start is not None:
        given = modes(start, recipe)
        expected = {n: tuple(x.shape) for n, x in problems[0].init(noises[0]).params.items()}
        for one in given:
            got = {n: tuple(x.shape) for n, x in one.params.items()}
            if got != expected:
                raise ValueError(f"start has parameters {got}, which are not those of the problem, {expected}")
        return lambda i, attempt: given[i % len(given)]

    def fresh(i: int, attempt: int) -> Point:
        noise = noises[i] if attempt == 0 else noises[i].split("attempt").split(attempt)
        return problems[i].init(noise.split("start"))

    if len(noises) > 1:
        a, b = fresh(0, 0).params, fresh(1, 0).params
        if all(torch.equal(a[n], b[n]) for n in a):
            raise ValueError(
                "members start equal: building the network under another seed gives the same parameters. Pass a "
                "factory () -> nn.Module that initialises at random (a module can only be re-initialised through "
                "layers with reset_parameters), or members=1"
            )
    return fresh


def _entry(pool: Pool, method: Method, source: Any, given: _Given) -> PoolEntry:
    """The place of a recipe's members; `source` are the recipes of what they start from."""
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
    return pool.entry(type(method).__name__, description)


def _file_name(member: Member, start: Point | None) -> str:
    """A member's name in a pool: its seed and number, and where it started if that was given."""
    name = f"{member.seed}-{member.k:05d}"
    return name if start is None else f"{name}-{fingerprint(describe([start.params, start.buffers]))}"


def in_batches(method: Method, stream: Stream) -> Method:
    """The recipe with the stream's batches in place of its own, so that epochs and averages are counted in them."""
    size, planned = len(stream.first().targets), method.schedule(stream.n)
    has = any(f.name == "batch_size" for f in fields(method))
    whole = (getattr(method, "batch_size", None) if has else planned.batch_size) is None
    if planned.steps and whole and size < stream.n:
        advice = "give it a batch_size (of any value: the stream decides)" if has else "use another method"
        raise ValueError(
            f"{type(method).__name__} takes all {stream.n:,} examples at each step, and the stream gives {size} at a "
            f"time: {advice}, or data in memory"
        )
    counted: dict[str, Any] = {} if whole or not has else {"batch_size": size}
    return replace(method, **counted)
