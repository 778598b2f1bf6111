"""`fit`: from a recipe, a problem and data to a posterior."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import torch

from .arguments import check_arguments, check_coupled, check_needs, check_options, in_batches
from .cast import Cast, Given, check_room, different
from .core.noise import Noise
from .core.recipe import expand
from .data import Data, Stream
from .engine import Based, Engine, Member, Method
from .engine.memory import SHARE, free_bytes, readable
from .engine.progress import Progress
from .engine.work import Observer
from .methods.map import MAP
from .pool import describe
from .posterior import Posterior
from .problem import Problem
from .start import curves_of, going_on
from .trial import by_validation, compared, relabelled

MANY = 10_000  # members for which it is checked beforehand that all of them can be
EACH = 8192  # bytes that a member takes beside its parameters: its key, name, curves and place in the engine


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
    check_options(seed, pool, engine, observe)
    data, val = (d.seeded(seed) if isinstance(d, Stream) else d for d in (data, val))
    recipes = expand(method)
    count = len(recipes)
    if method.coupled:
        check_coupled(method, count, data, members, start)
    members = count if members is None and count > 1 and (start is None or len(start) == 1) else members
    given = Given(problem, data, val, seed, pool, engine or Engine(), observe)
    if members is not None and members >= MANY:
        _check_many(recipes[0], members, given)
    who = _identities(members, seed, start)
    if len(who) % count:
        raise ValueError(
            f"{method.label} has lists of {count} values, for {len(who)} members: expected a multiple of {count} "
            f"members, of which member k has value k mod {count}"
        )
    each = [recipes[i % count] for i in range(len(who))]
    return _fit(each, who, start, given)


def _fit(
    each: list[Method], who: list[Member], start: Posterior | None, given: Given, trial: bool = False
) -> Posterior:
    """The posterior of members that have a plain recipe each. What goes on from a start is compared with it, unless it
    is a `trial`."""
    if isinstance(given.data, Stream):
        each = [in_batches(recipe, given.data) for recipe in each]
    sources: list[Any] = [None if start is None else [describe(p.recipe) for p in start.parts]] * len(each)
    based = [recipe for recipe in each if isinstance(recipe, Based)]
    if start is None and based:
        for recipe in different(each):  # what is missing or does not fit is said before the base is trained
            check_needs(recipe, given.problem, given.data, given.val)
            adapted = recipe.adapt(given.problem)
            check_room(recipe, adapted, adapted.init(Noise.seed(given.seed)), len(who), given)
        bases: list[Method] = [recipe.base or MAP() for recipe in based]
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
    cast = Cast(each, who, start, sources, given)
    found = cast.read()
    missing = [i for i in range(len(who)) if i not in found]
    with closing(cast.train(missing)) as run:
        for trained in run:
            found[trained.position] = trained
            cast.write(trained)
    made = cast.posterior(found, set(missing))
    goes_on = isinstance(each[0], Based) and bool(cast.plans[0].steps)
    if trial or start is None or given.data is None or not goes_on:
        return made
    return compared(made, who, start, given.data, given.val, Progress("", 0, given.engine.progress))


def _rerun(who: list[Member], start: Posterior, given: Given) -> Callable[[list[Method], list[int]], Posterior]:
    """Fits some of the members by recipes of their own."""

    def run(recipes: list[Method], here: list[int]) -> Posterior:
        own = start if len(start) == 1 else start[here]
        return _fit(recipes, [who[i] for i in here], own, given, trial=True)

    return run


def _check_many(method: Method, members: int, given: Given) -> None:
    """Refuses more members than can be kept before a list of them is made, and says that starting takes a while."""
    free = int(SHARE * free_bytes(torch.device("cpu")))
    if members * EACH > free:
        raise MemoryError(
            f"{members:,} members take about {readable(members * EACH)} to keep count of alone, and {readable(free)} "
            f"may be used: members={free // EACH:,} fit"
        )
    check_needs(method, given.problem, given.data, given.val)
    adapted = method.adapt(given.problem)
    check_room(method, adapted, adapted.init(Noise.seed(given.seed)), members, given)
    Progress("", 0, given.engine.progress).say(f"{members:,} members: each start is drawn before the first step")


def _identities(members: int | None, seed: int, start: Posterior | None) -> list[Member]:
    if start is not None and (members is None or members == len(start)):
        return list(start.members)
    return [Member(seed, k) for k in range(members or 1)]
