"""What a row of a comparison trains: its posterior, and before it what it starts from."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..data import Data
from ..data.datasets import Splits
from ..ended import training_of
from ..engine import Method
from ..engine.method import plan_of
from ..fit import fitting
from ..posterior import Part, Posterior
from ..tables.crossed import crossed
from .rows import Row, base_of
from .sets import validation
from .turns import Turn

if TYPE_CHECKING:
    from .run import Setting


class Fitted(NamedTuple):
    """What came of a row's training."""

    posterior: Posterior
    seconds: float  # that its members took, whenever that was
    own: float  # of these, what the members took that were trained now
    steps: int  # of training, that its members took
    training: dict[str, Any] | None  # whether it had ended: of what it starts from, where it starts from something


def parts_of(row: Row, splits: Splits, seed: int) -> tuple[Data, Data]:
    """What a row trains on, and by what it stops and tunes."""
    val = validation(splits)[0]
    return crossed(splits.train, val, row.members, seed) if row.crossed else (splits.train, val)


def fitted(
    setting: Setting, recipe: Method | None, row: Row, seed: int, pool: Path | None, turn: Turn
) -> Generator[None, None, Fitted]:
    """The posterior of a row. What it starts from comes first, and is found in the pool by every other row that starts
    there."""
    splits = setting.splits
    if recipe is None:
        assert setting.start is not None
        return Fitted(setting.start, 0.0, 0.0, 0, None)
    base, start, before, members = base_of(recipe), None, None, row.members
    if base is not None and row.started:
        start = setting.start
    elif base is not None:
        before = yield from fitted(setting, base, row, seed, pool, turn)
        start, members = before.posterior, len(before.posterior)
    yield from turn.wait(recipe)
    train, val = parts_of(row, splits, seed)
    posterior = yield from fitting(
        recipe,
        setting.problem,
        train,
        val=val,
        members=members,
        seed=seed,
        start=start,
        pool=pool,
        engine=setting.engine,
    )
    turn.over(recipe)
    seconds = sum(part.info["seconds"] for part in posterior.parts)
    own = sum(part.info["seconds"] * part.info.get("trained", 0) / len(part.members) for part in posterior.parts)
    planned = plan_of(recipe, splits.train.n).steps
    taken = sum(_steps_of(part, planned) for part in posterior.parts)
    if before is not None:
        return Fitted(posterior, before.seconds + seconds, before.own + own, before.steps + taken, before.training)
    curves = posterior.parts[0].info.get("curves", {})
    return Fitted(posterior, seconds, own, taken, None if row.started else training_of(curves, recipe, planned))


def _steps_of(part: Part, planned: int) -> int:
    """How many steps its members took: those at their last reports, or what was planned where there are no curves."""
    steps = part.info.get("curves", {}).get("step")
    return planned * len(part.members) if steps is None else sum(int(one[-1]) for one in steps if one)
