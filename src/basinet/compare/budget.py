"""The same compute for every row: members and epochs scaled until a row costs what the budget allows.

A budget is in training steps of one network, all members of a row together and what they start from included, or in
seconds of fitting. Each member gets an equal share: its epochs (or the steps between its iterates) are scaled, those
of what it starts from in proportion. Where a share is less than one epoch there are fewer members; a method whose
length is not in epochs gets as many members as there is budget for. Seconds are turned into steps by short trials of
each row, before anything is kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, NamedTuple

from ..engine import Method
from ..engine.method import plan_of
from ..pool import decode, describe, encode
from .rows import Row, base_of, plan_steps, steps_of

TRIAL = 0.03  # of the seconds of a budget, by which the longest trial of a row is longer than the shortest
LONGEST = 0.3  # of the seconds of a budget, that a trial takes at most before trials end
LEAST = 0.2  # seconds below which differences of trials are those of the clock
DOUBLINGS = 14  # of the steps of trials


class Budget(NamedTuple):
    """How much each row may cost."""

    amount: float
    unit: str  # steps or s

    @staticmethod
    def read(text: str) -> Budget:
        """From words such as 60s or 20000steps."""
        if not isinstance(text, str):
            raise ValueError(f"expected a budget such as '60s' or '20000steps', got {text!r}")
        match = re.fullmatch(r"\s*([0-9][0-9_,]*\.?[0-9]*(?:e[0-9]+)?)\s*(s|steps)\s*", text)
        amount = float(re.sub("[_,]", "", match[1])) if match else 0.0
        if match is None or not 0 < amount < math.inf:
            raise ValueError(f"expected a budget such as 60s or 20000steps, got {text!r}")
        return Budget(amount, match[2])

    def __str__(self) -> str:
        return f"{self.amount:g}{self.unit}"

    def in_words(self) -> str:
        """A line that says how it is shared."""
        what = "training steps of one network" if self.unit == "steps" else "seconds of fitting"
        trial = "" if self.unit == "steps" else ", found by short trials"
        return (
            f"budget: {self.amount:,g} {what} per row{trial}. Members share it equally, what they start from included: "
            "epochs are scaled, and there are fewer members where a share is less than one epoch"
        )


def spent(budget: Budget, rows: list[Row], n: int, seconds: Callable[[Row], float], before: Any) -> list[Row]:
    """The rows scaled to the budget, for n training examples. `seconds` fits a row and says how long it took; `before`
    is what an earlier run of the same budget decided (`record`), which stays."""
    rows_before = before.get("rows") if isinstance(before, dict) and before.get("text") == str(budget) else None
    known = rows_before if isinstance(rows_before, dict) else {}
    return [_known(row, known) or _spent(budget, row, n, seconds) for row in rows]


def record(budget: Budget, rows: list[Row], scaled: list[Row]) -> dict[str, Any]:
    """What run.json says of a budget: enough to go on with the same recipes."""
    decided = {
        row.label: {
            "asked": [describe(row.recipe), row.members],
            "recipe": encode(one.recipe, {}),
            "members": one.members,
            "told": one.spending,
        }
        for row, one in zip(rows, scaled)
    }
    return {"text": str(budget), "amount": budget.amount, "unit": budget.unit, "rows": decided}


def scaled(row: Row, steps: float, n: int) -> Row:
    """The row with members and epochs such that all of it takes this many training steps, or as few as it can."""
    if row.recipe is None or not plan_steps(row, n):
        return row
    least = steps_of(_stretched(row.recipe, 1, n, row.started), n, row.started)  # of one member
    fixed = least >= plan_steps(row, n)  # there is nothing to scale but members
    most = max(1, int(steps // least))
    members = most if fixed else min(row.members, most)
    recipe = _stretched(row.recipe, int(steps // members), n, row.started)
    each = steps_of(recipe, n, row.started)
    over = " (the least it can do: more than the budget)" if members * each > steps else ""
    summary = f"{members} member{'s' * (members > 1)} of {each:,} steps{over}"
    return row._replace(recipe=recipe, members=members, spending=summary)


def _spent(budget: Budget, row: Row, n: int, seconds: Callable[[Row], float]) -> Row:
    if budget.unit == "steps":
        return scaled(row, budget.amount, n)
    if row.recipe is None or not plan_steps(row, n):
        return row
    seconds(scaled(row, 1, n))  # first calls are slow
    trials: list[tuple[int, float]] = []  # steps and seconds
    steps, enough = 1, max(LEAST, TRIAL * budget.amount)
    for _ in range(DOUBLINGS):
        trial = scaled(row, steps, n)
        total = trial.members * plan_steps(trial, n)
        if not trials or total > trials[-1][0]:
            trials.append((total, seconds(trial)))
            if trials[-1][1] - trials[0][1] >= enough or trials[-1][1] >= LONGEST * budget.amount:
                break
        steps = 2 * max(steps, total)
    (first, least), (last, most) = trials[0], trials[-1]
    slope = (most - least) / (last - first) if last > first else 0.0
    rate = max(slope, 0.1 * most / last)  # seconds per step; two noisy numbers never say that steps are free
    overhead = max(0.0, most - rate * last)  # what comes on top, such as a post-hoc method's own work
    return scaled(row, max(1.0, (budget.amount - overhead) / rate), n)


def _known(row: Row, known: dict[str, Any]) -> Row | None:
    try:
        one = known[row.label]
        if one["asked"] != [describe(row.recipe), row.members]:
            return None
        return row._replace(recipe=decode(one["recipe"], {}), members=int(one["members"]), spending=str(one["told"]))
    except (KeyError, TypeError, ValueError):  # not there, or run.json was altered
        return None


def _stretched(recipe: Method, steps: int, n: int, started: bool) -> Method:
    """The recipe at this many steps of one member, or as few as it can; what it starts from in proportion."""
    own, base = plan_of(recipe, n).steps, None if started else base_of(recipe)
    if base is None:
        return _alone(recipe, steps, n)
    recipe = _alone(recipe, steps * own // max(1, own + steps_of(base, n)), n)
    return _with(recipe, base=_stretched(base, steps - plan_of(recipe, n).steps, n, False))


def _alone(recipe: Method, steps: int, n: int) -> Method:
    """The recipe's own part at this many steps."""
    planned = plan_of(recipe, n)
    names = {f.name for f in fields(recipe)}
    if not planned.steps:
        return recipe
    if "epochs" in names:
        batch = planned.batch_size or n
        epochs = max(1, steps * batch // n)
        while epochs > 1 and plan_of(_with(recipe, epochs=epochs), n).steps > steps:  # whole cycles are rounded up
            epochs -= 1
        return _with(recipe, epochs=epochs)
    if {"iterates", "every"} <= names:
        return _with(recipe, every=max(1, steps // recipe.iterates))  # type: ignore[attr-defined]
    if {"steps", "draws"} <= names:  # a chain: no fewer than keep its draws
        return _with(recipe, steps=max(steps, 3 * recipe.draws))  # type: ignore[attr-defined]
    return recipe


def _with(recipe: Method, **values: Any) -> Method:
    return replace(recipe, **values)
