"""`fit`: from a recipe, a problem and data to a posterior."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch

from .core.noise import Noise
from .core.tree import Point, leaves, move, stack, tree_map
from .data import Data, Stream, some
from .engine import Engine, Member, Method
from .engine.checkpoint import Checkpoints
from .engine.group import Observer, Trained
from .engine.method import patience_of
from .methods.map import MAP
from .pool import Pool, PoolEntry, describe, fingerprint
from .posterior import Part, Posterior
from .problem import Problem
from .saving import describe_problem

KEEP = 2048  # training inputs kept for methods that refresh norm statistics


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
    alone, not on how many there are. `start` gives the points to start from: one for all members, or one each. `val`
    only stops and tunes; it never counts in N. `pool` is a folder in which members are kept: those that are there
    already are read, not trained again. `observe` is called about once an epoch.

    Data may be a stream, `Data.stream`: a step is then a batch as it comes, whatever the method's `batch_size`.
    """
    _check(method, problem, data, val, members, start)
    data, val = (d.seeded(seed) if isinstance(d, Stream) else d for d in (data, val))
    method = method if not isinstance(data, Stream) else _in_batches(method, data)
    engine = engine or Engine()
    if start is None and any(f.name == "base" for f in fields(method)):
        base = getattr(method, "base", None) or MAP()
        start = fit(
            base,
            problem,
            data,
            val=val,
            members=members,
            seed=seed,
            pool=pool,
            engine=engine,
            observe=observe,
        )
    adapted = method.adapt(problem)
    who = _identities(members, seed, start)
    most = 1 + max(m.k for m in who)
    if data is not None and data.rows is not None and len(data.rows) < most:
        raise ValueError(f"the data have index lists for {len(data.rows)} members and {most} were asked for")
    root = Noise.seed(seed).split("fit")
    noises = [root.split(m.seed).split(m.k) for m in who]
    point = _starting_points(adapted, noises, start)
    first = point(0, 0)
    dtype = engine.dtype or leaves(first.params)[0].dtype
    for given in (data, val):
        seen = None if given is None else some(given)
        if seen is not None and (seen is data or len(seen.targets.unique()) > 1):  # one class is enough for a part
            adapted.check(seen.to(dtype=dtype), move(first, dtype=dtype))
    entry = None if pool is None else _entry(Path(pool), method, problem, data, val, seed, start, engine)
    names = [_file_name(m, None if start is None else point(i, 0)) for i, m in enumerate(who)]
    found: dict[int, Trained] = {}
    for i, name in enumerate(names):
        if entry is not None and entry.has(name):
            found[i] = Trained(i, *entry.read(name, engine.place))
    missing = [i for i in range(len(who)) if i not in found]
    folder = None if entry is None else entry.folder
    checkpoints = Checkpoints(folder, engine.checkpoint, fingerprint(names))
    if not missing:
        checkpoints.clear()  # of a run that was killed at its very end
    else:
        keys = torch.stack([noise.key for noise in noises])
        run = engine.train(
            method, adapted, data, val, who, point, keys, missing=missing, observe=observe, checkpoints=checkpoints
        )
        with closing(run):
            for trained in run:
                found[trained.position] = trained
                if entry is not None and trained.family is not None:
                    entry.write(names[trained.position], trained.family, trained.curves)
    failed = [m for i, m in enumerate(who) if found[i].family is None]
    kept = [i for i in range(len(who)) if found[i].family is not None]
    if not kept:
        raise FloatingPointError(
            f"the loss of every member ({len(who)}) became NaN or infinite: lower the learning rate, or warm it up"
        )
    done = [found[i] for i in kept]
    common = [n for n in done[0].curves if all(n in t.curves for t in done)]  # a pool may hold some without val_nll
    curves = {n: [t.curves[n] for t in done] for n in common}
    seconds = sum(t.curves["seconds"][0] for t in done)
    info: dict[str, Any] = {"curves": curves, "seconds": seconds, "trained": len(missing)}
    if failed:
        info["failed"] = [list(m) for m in failed]  # members that diverged at every attempt are not in the posterior
    inputs = None
    if method.norm == "refresh" and adapted.network.norms and data is not None:
        inputs = move(_some_inputs(data), engine.place, dtype)
    family = stack([t.family for t in done if t.family is not None])
    return Posterior((Part(problem, family, tuple(who[i] for i in kept), method, inputs, info),))


def _check(
    method: Method,
    problem: Problem,
    data: Data | Stream | None,
    val: Data | Stream | None,
    members: int | None,
    start: Posterior | None,
) -> None:
    name = type(method).__name__
    if isinstance(method, type) and issubclass(method, Method):
        raise TypeError(f"expected a recipe such as {method.__name__}(), got the class {method.__name__}")
    if not isinstance(method, Method):
        raise TypeError(f"expected a recipe such as bn.MAP(), got {name}")
    if not isinstance(problem, Problem):
        raise TypeError(f"expected a bn.Problem, got {type(problem).__name__}")
    for what, given in (("data", data), ("val", val)):
        if given is not None and not isinstance(given, (Data, Stream)):
            raise TypeError(f"expected {what} as bn.Data(inputs, targets), got {type(given).__name__}")
        if given is None and what in method.needs:
            raise ValueError(f"{name} needs {what}: pass {'the training data' if what == 'data' else 'val='}")
    if val is None and patience_of(method) is not None:
        raise ValueError(f"{name} with patience stops on the validation NLL: pass val=, or patience=None")
    if members is not None and (not isinstance(members, int) or members < 1):
        raise ValueError(f"expected members to be a positive integer, got {members!r}")
    if start is not None and not isinstance(start, Posterior):
        raise TypeError(
            f"expected start as a posterior, got {type(start).__name__}: use bn.Posterior.of(module, problem)"
        )
    if start is not None and members is not None and len(start) not in (1, members):
        raise ValueError(f"start has {len(start)} members and {members} were asked for: expected 1 or {members}")


def _identities(members: int | None, seed: int, start: Posterior | None) -> list[Member]:
    if start is not None and (members is None or members == len(start)):
        return list(start.members)
    return [Member(seed, k) for k in range(members or 1)]


def _starting_points(problem: Problem, noises: list[Noise], start: Posterior | None) -> Callable[[int, int], Point]:
    """Where member i begins its attempt a: as given, or a fresh initialisation from a key of that attempt."""
    if start is not None:
        given = start.points()
        expected = {n: tuple(x.shape) for n, x in problem.init(noises[0]).params.items()}
        for one in given:
            got = {n: tuple(x.shape) for n, x in one.params.items()}
            if got != expected:
                raise ValueError(f"start has parameters {got}, which are not those of the problem, {expected}")
        return lambda i, attempt: given[i % len(given)]

    def fresh(i: int, attempt: int) -> Point:
        noise = noises[i] if attempt == 0 else noises[i].split("attempt").split(attempt)
        return problem.init(noise.split("start"))

    if len(noises) > 1:
        a, b = fresh(0, 0).params, fresh(1, 0).params
        if all(torch.equal(a[n], b[n]) for n in a):
            raise ValueError(
                "members start equal: building the network under another seed gives the same parameters. Pass a "
                "factory () -> nn.Module that initialises at random (a module can only be re-initialised through "
                "layers with reset_parameters), or members=1"
            )
    return fresh


def _entry(
    path: Path,
    method: Method,
    problem: Problem,
    data: Data | Stream | None,
    val: Data | Stream | None,
    seed: int,
    start: Posterior | None,
    engine: Engine,
) -> PoolEntry:
    chooses = "val" in method.needs or patience_of(method) is not None  # what is only watched makes no other run
    description = {
        "method": describe(method),
        "data": None if data is None else data.fingerprint(),
        "val": val.fingerprint() if val is not None and chooses else None,
        "seed": seed,
        "start": None if start is None else [describe(p.recipe) for p in start.parts],
        "dtype": str(engine.dtype),
    }
    return Pool(path, describe_problem(problem)).entry(type(method).__name__, description)


def _file_name(member: Member, start: Point | None) -> str:
    """A member's name in a pool: its seed and number, and where it started if that was given."""
    name = f"{member.seed}-{member.k:05d}"
    return name if start is None else f"{name}-{fingerprint(describe([start.params, start.buffers]))}"


def _in_batches(method: Method, stream: Stream) -> Method:
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


def _some_inputs(data: Data | Stream) -> Any:
    if isinstance(data, Stream):
        return _first_inputs(data)
    total = data.targets.shape[0]
    chosen = torch.arange(min(KEEP, total), device=data.targets.device) * total // min(KEEP, total)  # evenly spread
    return tree_map(lambda x: x[chosen], data.inputs)


def _first_inputs(stream: Stream) -> Any:
    parts, count = [], 0
    with closing(stream.once()) as batches:
        for piece in batches:
            parts.append(piece.inputs)
            count += len(piece.targets)
            if count >= KEEP:
                break
    return tree_map(lambda *xs: torch.cat(xs)[:KEEP], parts[0], *parts[1:])
