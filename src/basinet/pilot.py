"""Which of a few problems suits the data: a short training of each, between which validation data choose.

What is compared is the CRPS of the mixture at the spread that validation tells: in units of the target, so that it sees
means and spreads alike, and one row far out does not decide.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from .data import Data, Stream
from .engine import Engine, Method
from .engine.method import PATIENCE, plan_of
from .fit import fit
from .methods.map import MAP
from .problem import Problem
from .scoring import score
from .temper import temper

STEPS, MEMBERS = 1000, 2  # of a pilot run
FEWEST = 20  # validation examples: fewer choose by chance
IN_WORDS = {
    "Gaussian": "one size of noise for all rows",
    "Heteroscedastic": "noise that the network predicts",
    "StudentT": "noise with heavy tails",
}


class Pilot(NamedTuple):
    """The problem that was chosen."""

    problem: Problem
    line: str = ""  # what was chosen, and by how much; empty where nothing was


def pilot(
    candidates: Sequence[Problem],
    data: Data | Stream,
    val: Data | Stream | None,
    *,
    recipe: Method | None = None,
    seed: int = 0,
    engine: Engine | None = None,
    pool: Path | None = None,
) -> Pilot:
    """One of the candidates, whose likelihoods are of real numbers; the first where there is nothing to choose by.

    A run has 1,000 steps, or those of the `recipe` that is to follow, where they are fewer. `pool` is a folder in which
    the runs are kept, so that the same choice is not made twice.
    """
    if len(candidates) < 2 or val is None or val.n < FEWEST:
        return Pilot(candidates[0])
    short = _short(recipe, data.n)
    if plan_of(short, data.n).steps == 0:
        return Pilot(candidates[0])
    quiet = replace(engine or Engine(), progress=False)
    losses: dict[int, float] = {}
    for i, problem in enumerate(candidates):
        own = None if pool is None else pool / _name(problem).lower()
        try:
            made = fit(short, problem, data, val=val, members=MEMBERS, seed=seed, engine=quiet, pool=own)
        except FloatingPointError:  # all members diverged
            continue
        losses[i] = score(temper(made, val, seed=seed), val, seed=seed)["crps"]
    finite = {i: x for i, x in losses.items() if math.isfinite(x)}
    if not finite:
        return Pilot(candidates[0])
    best = min(finite, key=lambda i: finite[i])
    others = [f"{x:.4g} with {_words(candidates[i])}" for i, x in finite.items() if i != best]
    against = f", against {', '.join(others)}" if others else ""
    line = f"{_words(candidates[best])}, by validation: CRPS {finite[best]:.4g} after {_steps(short, data.n)}{against}"
    return Pilot(candidates[best], line)


def _short(recipe: Method | None, n: int) -> MAP:
    """A mode by at most STEPS steps of the recipe's size, at its best validation."""
    like = recipe if isinstance(recipe, MAP) else MAP()
    steps, batch = plan_of(like, n).steps, min(like.batch_size or n, n)
    epochs = math.ceil(min(steps, STEPS) * batch / n)
    return MAP(epochs=epochs, batch_size=like.batch_size, optimizer=like.optimizer, patience=like.patience or PATIENCE)


def _steps(recipe: MAP, n: int) -> str:
    return f"{plan_of(recipe, n).steps:,} steps"


def _name(problem: Problem) -> str:
    return type(problem.likelihood).__name__


def _words(problem: Problem) -> str:
    return IN_WORDS.get(_name(problem), f"likelihood {_name(problem)}")
