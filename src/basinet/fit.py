"""`fit`: from a recipe, a problem and data to a posterior."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from .arguments import check_arguments, check_coupled, check_needs, check_options, in_batches
from .cast import Cast, Given, check_room, different
from .core.noise import Noise
from .core.recipe import expand
from .core.waiting import result_of
from .data import Data, Stream
from .engine import Based, Engine, Member, Method
from .engine.memory import SHARE, free_bytes, readable
from .engine.progress import Progress
from .engine.work import Observer
from .methods.map import MAP
from .pool import describe
from .posterior import Posterior
from .problem import Problem
from .shares import share_of
from .start import curves_of, going_on
from .trial import Run, by_validation, compared, relabelled

MANY = 10_000  # members for which it is checked beforehand that all of them can be
EACH = 8192  # bytes that a member takes beside its parameters: its key, name, curves and place in the engine

Fitting = Generator[None, None, Posterior]
"""A fit that is under way: yields None while it waits for other machines, and returns its posterior."""


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
    only: Sequence[int] | str | None = None,
    engine: Engine | None = None,
    observe: Observer | None = None,
) -> Posterior:
    """The posterior of `problem` given `data`, as `method` approximates it.

    `members` is the size of the ensemble (default 1, or that of `start`). Member k depends only on the seed and on k,
    not on the number of members. A field of the recipe, or of a recipe inside it, may be a list of L values: then
    there are L members or a multiple of L, and member k gets value k mod L. `start` is a posterior to start from, with
    one member for all or one for each. `val` is used to stop and to tune; it does not count in N. `pool` is a folder
    in which members are stored: members found there are read instead of being trained again. `only` selects the
    members that this call trains and returns, by number or as a share such as "0/4", the first of four, so that
    several machines with one pool can train an ensemble together. `observe` is called about once per epoch.

    Data may be a stream, `Data.stream`: each step then takes one batch of it, and the method's `batch_size` is ignored.
    """
    return result_of(fitting(method, problem, data, val, members, seed, start, pool, only, engine, observe))


def fitting(
    method: Method,
    problem: Problem,
    data: Data | Stream | None = None,
    val: Data | Stream | None = None,
    members: int | None = None,
    seed: int = 0,
    start: Posterior | None = None,
    pool: Path | str | None = None,
    only: Sequence[int] | str | None = None,
    engine: Engine | None = None,
    observe: Observer | None = None,
) -> Fitting:
    """`fit` for those who have something else to do meanwhile: yields None while it waits for other machines, and
    returns the posterior."""
    check_arguments(method, problem, data, val, members, start)
    check_options(seed, pool, engine, observe)
    data, val = (d.seeded(seed) if isinstance(d, Stream) else d for d in (data, val))
    recipes = expand(method)
    count = len(recipes)
    if method.coupled:
        check_coupled(method, count, (data, val), members, start)
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
    share = share_of(only, len(who), count, method, given.engine)
    blocks = None if share.blocks is None else {who[i]: b for b, block in enumerate(share.blocks) for i in block}
    given = given._replace(engine=share.engine, blocks=blocks)
    if share.chosen is not None:
        start = start if start is None or len(start) == 1 else start[share.chosen]
        each, who = [each[i] for i in share.chosen], [who[i] for i in share.chosen]
    return (yield from _fit(each, who, start, given))


def _fit(each: list[Method], who: list[Member], start: Posterior | None, given: Given, trial: bool = False) -> Fitting:
    """The posterior of members that have a plain recipe each. What continues from a start is compared with it, unless
    it is a `trial`."""
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
        start = yield from _fit(bases, who, None, given)
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
                refitted = yield from again(learned, list(range(len(who))), False)
                asked = [each[who.index(m)] for m in refitted.members]
                return relabelled([refitted[k].parts[0] for k in range(len(refitted))], asked)
            assert given.val is not None
            progress = Progress("", 0, given.engine.progress)
            return (yield from by_validation(each, who, start, given.val, again, progress))
    cast = Cast(each, who, start, sources, given)
    results = cast.read()
    missing = [i for i in range(len(who)) if i not in results]
    with closing(cast.train(missing)) as run:
        for trained in run:
            if trained is None:
                yield
                continue
            results[trained.position] = trained
            cast.write(trained)
    posterior = cast.posterior(results, set(missing))
    goes_on = isinstance(each[0], Based) and bool(cast.plans[0].steps)
    if trial or start is None or given.data is None or not goes_on:
        return posterior
    return compared(posterior, who, start, given.data, given.val, Progress("", 0, given.engine.progress))


def _rerun(who: list[Member], start: Posterior, given: Given) -> Run:
    """Fits some of the members by recipes of their own."""

    def run(recipes: list[Method], here: list[int], quietly: bool) -> Fitting:
        own = start if len(start) == 1 else start[here]
        engine = replace(given.engine, progress=False) if quietly else given.engine
        return _fit(recipes, [who[i] for i in here], own, given._replace(engine=engine), trial=True)

    return run


def _check_many(method: Method, members: int, given: Given) -> None:
    """Refuses more members than can be kept before a list of them is made, and says that starting takes a while."""
    free = int(SHARE * free_bytes(torch.device("cpu")))
    if members * EACH > free:
        raise MemoryError(
            f"just keeping track of {members:,} members takes about {readable(members * EACH)}, and {readable(free)} "
            f"of memory may be used: use at most members={free // EACH:,}"
        )
    check_needs(method, given.problem, given.data, given.val)
    adapted = method.adapt(given.problem)
    check_room(method, adapted, adapted.init(Noise.seed(given.seed)), members, given)
    Progress("", 0, given.engine.progress).say(
        f"{members:,} members: all of their starts are drawn before the first step"
    )


def _identities(members: int | None, seed: int, start: Posterior | None) -> list[Member]:
    if start is not None and (members is None or members == len(start)):
        return list(start.members)
    return [Member(seed, k) for k in range(members or 1)]
