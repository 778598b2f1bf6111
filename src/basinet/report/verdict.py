"""The verdict in one line, which row to use and why; and three numbers beside it."""

from __future__ import annotations

import math
from typing import NamedTuple

from .measures import wilson
from .run import Row, Run
from .trust import trust_of
from .words import listed, number


class Tile(NamedTuple):
    """A number with its name, and what to think of it."""

    name: str
    value: str
    note: str
    warn: bool = False


def as_good(run: Run) -> list[Row]:
    """The best row, and those not significantly different from it or hardly so; only the best where predictions
    were not kept."""
    tied = {name for name, d in run.differences.items() if not d.matters and math.isfinite(d.low)}
    rows = [row for row in run.rows if (row is run.rows[0] or row.name in tied) and not row.reference]
    return rows or [run.leader]


def recommended(run: Run) -> Row:
    """Of the rows that do as well as the best: the one of the fewest forward passes for a prediction, which are paid
    for again and again; of equal ones, that of the fewest training steps, then of the lowest NLL. Not one that another
    row beats at no higher cost: its difference from the best is larger, and not significant because it is noisy."""
    trained = [row for row in run.rows if not row.reference]
    rows = [row for row in as_good(run) if not any(_beats(other, row) for other in trained)]
    return min(rows or [run.leader], key=lambda row: (_cost(row, "draws"), _cost(row, "steps"), row.value("nll")))


def _beats(one: Row, other: Row) -> bool:
    """Whether a row has a lower NLL, for no more passes and no more steps."""
    cheaper = all(one.value(cost) <= other.value(cost) for cost in ("draws", "steps"))
    return cheaper and one.value("nll") < other.value("nll")


def falling(run: Run) -> dict[str, float]:
    """The rows whose training had not ended, and by how much the loss still fell in its second half."""
    slopes: dict[str, float] = {}
    for row in run.rows:
        drops = [t.get("drop") for r in row.records if (t := r.get("training") or {}).get("falling") is True]
        if drops:
            slopes[row.name] = max((float(d) for d in drops if isinstance(d, (int, float))), default=math.nan)
    return slopes


def verdict(run: Run) -> str:
    """Which row to use, and why, in one line."""
    best, use = run.rows[0], recommended(run)
    if math.isnan(best.value("nll")):
        return "Use none of these: no row has a finite NLL."
    if best.reference and not use.reference:
        d = run.differences.get(run.leader.name)
        if d is not None and d.matters:
            return (
                f"Use {best.name}, or train longer: it predicts significantly better than every network here (NLL "
                f"{number(best.value('nll'))} against {number(run.leader.value('nll'))} of {called(run.leader)})."
            )
        return (
            f"Use {called(use)} if you need a posterior; {best.name} does as well (NLL {number(best.value('nll'))} "
            f"against {number(use.value('nll'))}) without a network."
        )
    if best.name in falling(run):
        return (
            f"Train longer before you choose: the training of {best.name}, which leads so far with an NLL of "
            f"{number(best.value('nll'))}, had not ended."
        )
    if len(run.rows) == 1:
        return f"Use {called(use)}, since there is nothing to compare it with."
    if not run.differences:
        return f"Use {called(use)}, because its NLL is the lowest; whether by chance is unknown."
    if use is best:
        rivals = len(as_good(run)) - 1
        if not rivals:
            return f"Use {called(use)}, because it predicts best, and every other row is significantly worse."
        return f"Use {called(use)}, because its NLL is the lowest, and nothing that does as well costs less."
    near = "hardly worse than" if run.differences[use.name].real else "not significantly different from"
    return (
        f"Use {called(use)}, because on these examples it is {near} the best row, {called(best)} (NLL "
        f"{number(use.value('nll'))} against {number(best.value('nll'))}), and costs less: {cost(use)} against "
        f"{cost(best)}."
    )


def tiles(run: Run) -> list[Tile]:
    """Error, coverage and cost of the row that is recommended."""
    row = recommended(run)
    return [tile for tile in (_error(run, row), _coverage(run, row), _price(row)) if tile is not None]


def called(row: Row) -> str:
    """A row by its name, with its members where they are several."""
    return row.name if row.members == 1 else f"{row.name} of {row.members}"


def cost(row: Row) -> str:
    """What a row takes, in words."""
    passes, steps = row.value("draws"), row.value("steps")
    words = []
    if math.isfinite(passes):
        words.append("one forward pass" if passes == 1 else f"{number(passes)} forward passes")
    if math.isfinite(steps):
        words.append(f"{number(steps)} training steps")
    return listed(words) if words else "an unknown cost"


def _error(run: Run, row: Row) -> Tile | None:
    nll = f"NLL {number(row.value('nll'))}"
    if run.kind == "real":
        if math.isnan(row.value("rmse")):
            return None
        unit = f" {run.unit}" if run.unit else ""
        return Tile("Error (RMSE)", f"{number(row.value('rmse'))}{unit}", nll)
    right = row.value("accuracy")
    if not 0 <= right <= 1:
        return None
    name = "Wrong labels" if run.kind == "labels" else "Wrong answers"
    low, high = wilson(1 - right, max(1, run.n_test))
    interval = f"95 % interval {low:.1%} to {high:.1%}; " if run.kind == "classes" else ""
    return Tile(name, f"{1 - right:.1%}", f"{interval}{nll}")


def _coverage(run: Run, row: Row) -> Tile | None:
    trust = trust_of(run, row)
    if trust is None:
        return None
    if run.kind == "real":
        inside = row.value("coverage_90")
        shown = f"{inside:.1%}" if math.isfinite(inside) else "-"
        return Tile("Inside 90 % intervals", shown, f"intervals of all levels: {trust.word}", trust.wrong)
    confidence = row.joined("confidence")
    assert confidence is not None  # or there were no trust
    return Tile("Mean confidence", f"{confidence.mean():.1%}", trust.word, trust.wrong)


def _price(row: Row) -> Tile | None:
    passes, seconds = row.value("draws"), row.value("fit_seconds")
    if math.isnan(passes) and math.isnan(seconds):
        return None
    shown = "-" if math.isnan(passes) else "1 pass" if passes == 1 else f"{number(passes)} passes"
    steps = f", {number(row.value('steps'))} steps" if math.isfinite(row.value("steps")) else ""
    training = f"{number(seconds)} s of training{steps}" if math.isfinite(seconds) else steps.removeprefix(", ")
    return Tile("Cost of a prediction", shown, training)


def _cost(row: Row, key: str) -> float:
    value = row.value(key)
    return math.inf if math.isnan(value) else value
