"""The report in words: what won, by how much, whether that is real, what it costs, how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .measures import FEWEST, LITTLE, Difference, wilson
from .run import Row, Run
from .words import listed, number


def summary(run: Run) -> list[tuple[str, str]]:
    """Questions and their answers, in the order a person asks."""
    told = run.differences
    return [(q, a) for q, a in _answers(run, told) if a]


def _answers(run: Run, told: dict[str, Difference]) -> Iterator[tuple[str, str]]:
    yield "What won?", _winner(run)
    yield "Is the difference real?", _real(run, told)
    yield "What is the cheapest that does as well?", _cheapest(run, told)
    yield "How far can it be trusted?", _trust(run)
    yield "Does it notice what it has not seen?", _noticed(run.rows[0])
    if math.isfinite(run.rows[0].value("epistemic")):
        yield "What is its uncertainty about?", _about(run)


def _winner(run: Run) -> str:
    best, n, seeds = run.rows[0], run.n_test, len(run.rows[0].seeds)
    if math.isnan(best.value("nll")):
        return "No row has a finite NLL."
    over = f"{n:,} test examples" + (f", mean of {seeds} seeds" if seeds > 1 else ", one seed")
    said = f"Lowest NLL: {_called(best)}, with {number(best.value('nll'))} nats an example ({over})."
    if len(run.rows) > 1 and math.isfinite(run.rows[1].value("nll")):
        second = run.rows[1]
        gap = second.value("nll") - best.value("nll")
        last = next((r for r in reversed(run.rows) if math.isfinite(r.value("nll"))), second)
        said += f" Next comes {_called(second)}, {number(gap)} behind"
        if last is not second:
            said += f"; the last of {len(run.rows)} rows, {last.name}, is at {number(last.value('nll'))}"
        said += "."
    word = "accuracy a label" if run.kind == "labels" else "accuracy"
    main = ("accuracy", word, True) if run.kind != "real" else ("rmse", "RMSE", False)
    rows = [r for r in run.rows if math.isfinite(r.value(main[0]))]
    if rows:
        top = (max if main[2] else min)(rows, key=lambda r: r.value(main[0]))
        same = top.value(main[0]) == best.value(main[0])
        shown = f"{top.value(main[0]):.1%}" if main[2] else number(top.value(main[0])) + _unit(run)
        mine = f"{best.value(main[0]):.1%}" if main[2] else number(best.value(main[0])) + _unit(run)
        said += f" The {main[1]} of {best.name} is {mine}" + (
            ", also the best." if same else f"; the best is {top.name} with {shown}."
        )
    return said


def _real(run: Run, told: dict[str, Difference]) -> str:
    if len(run.rows) < 2:
        return "There is one row alone: nothing to compare it with."
    if not told:
        return "It cannot be said: the folder has no predictions for each test example, which a paired interval needs."
    best = run.rows[0]
    second, d = next(iter(told.items()))
    bounds = f"95 % interval {number(d.low)} to {number(d.high)} (paired bootstrap over {_over(best)})"
    if run.n_test < FEWEST:
        return f"It cannot be said: {run.n_test} test examples are too few for an interval."
    if math.isnan(d.low):
        said = f"No interval can be given: {second} has log likelihoods that are not finite."
    elif d.real:
        yes = "Yes" if len(best.seeds) > 1 else "For these networks, yes"
        little = "" if d.matters else ", but it is too small to matter"
        said = f"{yes}{little}: on the same {run.n_test:,} examples {second} is worse by {number(d.mean)}, {bounds}."
    else:
        said = f"Not between the first two: {second} is behind by {number(d.mean)}, {bounds}, which includes zero."
    tied = [name for name, other in told.items() if not other.real and math.isfinite(other.low)]
    close = [name for name, other in told.items() if other.real and other.mean > 0 and not other.matters]
    worse = [name for name, other in told.items() if other.matters and other.mean > 0]
    if tied:
        said += f" Not to be told apart from {best.name}: {listed(tied)}."
    if close:
        said += f" Worse beyond chance, but by less than {LITTLE:g}: {listed(close)}."
    if worse:
        said += f" Worse beyond chance: {listed(worse)}."
    if len(best.seeds) > 1:
        first, other = best.values("nll"), run.rows[1].values("nll")
        if len(first) == len(other) == len(best.seeds):
            wins = sum(a < b for a, b in zip(first, other))
            said += f" In {wins} of {len(first)} seeds {best.name} is ahead of {run.rows[1].name}."
    new = (
        "for new trainings and new examples"
        if len(best.seeds) > 1
        else "for new examples with the networks as they are: another training may turn it round (--seeds 3 would tell)"
    )
    return said + f" Intervals are {new}. The best row was picked on the same examples, which flatters it a little."


def _over(best: Row) -> str:
    return "test examples and seeds" if len(best.seeds) > 1 else "test examples"


def _cheapest(run: Run, told: dict[str, Difference]) -> str:
    """Among rows that cannot be told apart from the best, or hardly differ: the cheapest to train, and to predict
    with."""
    best = run.rows[0]
    tied = {name for name, d in told.items() if not d.matters and math.isfinite(d.low)}
    rows = [r for r in run.rows if r is best or r.name in tied]
    cost = next((c for c in ("steps", "fit_seconds") if all(math.isfinite(r.value(c)) for r in rows)), None)
    if cost is None or not told:
        return ""
    least = min(rows, key=lambda r: (r.value(cost), r.value("nll")))
    words = "training steps" if cost == "steps" else "seconds of training"
    if least is best:
        said = f"No row that does as well as {best.name} takes fewer {words} ({number(best.value(cost))})."
    else:
        share = least.value(cost) / best.value(cost) if best.value(cost) > 0 else math.nan
        said = (
            f"{_called(least)}: {number(least.value(cost))} {words} against {number(best.value(cost))}"
            + (f" ({share:.0%})" if math.isfinite(share) else "")
            + f", for an NLL of {number(least.value('nll'))}."
        )
    if all(math.isfinite(r.value("draws")) for r in rows):
        quick = min(rows, key=lambda r: (r.value("draws"), r.value("nll")))
        if quick.value("draws") < best.value("draws"):
            passes = int(quick.value("draws"))
            once = "one forward pass" if passes == 1 else f"{passes:,} forward passes"
            said += f" Where predictions must be fast: {quick.name}, with {once} against {int(best.value('draws')):,}."
    return said


def _trust(run: Run) -> str:
    best = run.rows[0]
    return _trust_real(run, best) if run.kind == "real" else _trust_classes(best, run.kind)


def _trust_classes(best: Row, kind: str) -> str:
    confidence, correct = best.joined("confidence"), best.joined("correct")
    if confidence is None or correct is None:
        return ""
    confidence, right = confidence.reshape(-1), correct.reshape(-1)
    low, high = wilson(float(right.mean()), len(right) // len(best.have("correct")))  # seeds share their examples
    mean = float(confidence.mean())
    lean = "over-confident" if mean > high else "too cautious" if mean < low else "calibrated on the whole"
    bounds = f"{right.mean():.1%} (95 % interval {low:.1%} to {high:.1%})"
    if kind == "labels":
        held = f"{best.name} holds all labels of an example together to be right with {mean:.1%}, and they are in"
        said = f"It is {lean}: on average {held} {bounds}."
    else:
        said = f"It is {lean}: the mean confidence of {best.name} is {mean:.1%}, its accuracy {bounds}."
    sure = confidence >= 0.9
    if 0 < sure.sum() < len(sure):
        said += (
            f" When it is at least 90 % sure ({sure.mean():.0%} of the time), {right[sure].mean():.1%} of its answers "
            f"are right, otherwise {right[~sure].mean():.1%}."
        )
    return said


def _trust_real(run: Run, best: Row) -> str:
    inside, n = best.value("coverage_90"), run.n_test
    if math.isnan(inside) or n < 1:
        return ""
    low, high = wilson(inside, n)
    lean = (
        "too narrow" if high < 0.9 else "too wide" if low > 0.9 else "as wide as they should be, as far as can be told"
    )
    width = best.value("width_90")
    return (
        f"Of its 90 % intervals {inside:.1%} hold the target (95 % interval of that share: {low:.1%} to {high:.1%}): "
        f"they are {lean}."
        + (f" They are {number(width)}{_unit(run)} wide on average." if math.isfinite(width) else "")
    )


def _noticed(best: Row) -> str:
    found = [r["ood"] for r in best.records if (r.get("ood") or {}).get("auroc") is not None]
    if not found:
        return ""
    auroc = float(np.mean([o["auroc"] for o in found]))
    word = "reliably" if auroc >= 0.9 else "often" if auroc >= 0.7 else "hardly"
    name, n = found[0].get("name", "inputs from elsewhere"), found[0].get("n")
    return f"{word.capitalize()}: AUROC {auroc:.3f} between test examples and {name}" + (f" (n = {n:,})." if n else ".")


def _about(run: Run) -> str:
    best = run.rows[0]
    whole = best.value("variance" if run.kind == "real" else "entropy")
    share = best.value("epistemic") / whole if whole > 0 else math.nan
    if math.isnan(share):
        return ""
    what = "variance" if run.kind == "real" else "entropy"
    return (
        f"{_percent(max(0.0, share))} of the {what} that {best.name} predicts is doubt about the weights, which more "
        "data would reduce; the rest it takes for noise, which stays."
    )


def _percent(share: float) -> str:
    return "Less than 1%" if 0 < share < 0.01 else f"{share:.0%}"


def _called(row: Row) -> str:
    return row.name if row.members == 1 else f"{row.name} of {row.members}"


def _unit(run: Run) -> str:
    return f" {run.unit}" if run.unit else ""
