"""The report in words: what won, by how much, whether that is real, what it costs, how far to trust it."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from .checked import Arrays
from .measures import FEWEST, LITTLE, Difference, paired_differences
from .run import Row, Run
from .trust import trust_of
from .verdict import as_good, called, cost, falling, recommended
from .words import listed, number

SMALL = 0.02  # of an error: what another row has less of it is neglected


def summary(run: Run) -> list[tuple[str, str]]:
    """Questions and their answers, in the order a person asks."""
    differences = run.differences
    return [(q, a) for q, a in _answers(run, differences) if a]


def _answers(run: Run, differences: dict[str, Difference]) -> Iterator[tuple[str, str]]:
    yield "Had training ended?", _ended(run)
    yield "Did the chains sample?", _sampled(run)
    yield "What won?", _winner(run)
    yield "Is the difference real?", _real(run, differences)
    yield "What is the cheapest row that does as well?", _cheapest(run)
    trust = trust_of(run, run.leader)
    yield "How far can it be trusted?", "" if trust is None else f"{trust.said} {_tempered(run)}".strip()
    yield "Does it notice what it has not seen?", _noticed(run.leader)
    if math.isfinite(run.leader.value("epistemic")):
        yield "What is its uncertainty about?", _about(run)
    chosen = run.info.get("chosen") or ""
    yield "What did validation choose for all rows?", f"{chosen[:1].upper()}{chosen[1:]}." if chosen else ""


def _winner(run: Run) -> str:
    best, n, seeds = run.rows[0], run.n_test, len(run.rows[0].seeds)
    if math.isnan(best.value("nll")):
        return "No row has a finite NLL."
    over = f"{n:,} test examples" + (f", mean of {seeds} seeds" if seeds > 1 else ", one seed")
    said = f"Lowest NLL: {called(best)}, with {number(best.value('nll'))} nats per example ({over})."
    if len(run.rows) > 1 and math.isfinite(run.rows[1].value("nll")):
        second = run.rows[1]
        gap = second.value("nll") - best.value("nll")
        last = next((r for r in reversed(run.rows) if math.isfinite(r.value("nll"))), second)
        said += f" Next comes {called(second)}, {number(gap)} behind"
        if last is not second:
            said += f"; the last of {len(run.rows)} rows, {last.name}, is at {number(last.value('nll'))}"
        said += "."
    word = "accuracy per label" if run.kind == "labels" else "accuracy"
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


def _real(run: Run, differences: dict[str, Difference]) -> str:
    if len(run.rows) < 2:
        return "There is only one row: nothing to compare it with."
    if not differences:
        return "Unknown: the folder lacks the predictions for each test example that a paired interval needs."
    best = run.rows[0]
    second, d = next(iter(differences.items()))
    bounds = f"95 % interval {number(d.low)} to {number(d.high)} (paired bootstrap over {_over(best)})"
    if run.n_test < FEWEST:
        return f"Unknown: {run.n_test} test examples are too few for an interval."
    if math.isnan(d.low):
        said = f"No interval can be given: {second} has log likelihoods that are not finite."
    elif d.real:
        yes = "Yes" if len(best.seeds) > 1 else "For these networks, yes"
        little = "" if d.matters else ", but it is too small to matter"
        said = f"{yes}{little}: on the same {run.n_test:,} examples {second} is worse by {number(d.mean)}, {bounds}."
    else:
        said = f"Not between the first two: {second} is behind by {number(d.mean)}, {bounds}, which includes zero."
    tied = [name for name, other in differences.items() if not other.real and math.isfinite(other.low)]
    close = [name for name, other in differences.items() if other.real and other.mean > 0 and not other.matters]
    worse = [name for name, other in differences.items() if other.matters and other.mean > 0]
    if tied:
        said += f" Not significantly different from {best.name}: {listed(tied)}."
    if close:
        said += f" Significantly worse, but by less than {LITTLE:g}: {listed(close)}."
    if worse:
        said += f" Significantly worse: {listed(worse)}."
    if len(best.seeds) > 1:
        first, other = best.values("nll"), run.rows[1].values("nll")
        if len(first) == len(other) == len(best.seeds):
            wins = sum(a < b for a, b in zip(first, other))
            said += f" In {wins} of {len(first)} seeds {best.name} is ahead of {run.rows[1].name}."
    new = (
        "for new trainings and new examples"
        if len(best.seeds) > 1
        else "for new examples with these trained networks: another training may reverse it (--seeds 3 would show)"
    )
    return said + f" Intervals are {new}. The best row was picked on the same examples, which favours it slightly."


def _over(best: Row) -> str:
    return "test examples and seeds" if len(best.seeds) > 1 else "test examples"


def _cheapest(run: Run) -> str:
    """Among rows not significantly different from the best, or hardly so: the cheapest to predict with and to
    train."""
    best, rows = run.rows[0], as_good(run)
    known = all(math.isfinite(r.value(c)) for r in rows for c in ("draws", "steps"))
    if not known or not run.differences:
        return ""
    least = recommended(run)
    if least is best:
        said = f"No row that does as well as {best.name} takes fewer forward passes for a prediction ({cost(best)})."
    else:
        said = f"{called(least)}: {cost(least)} against {cost(best)}, for an NLL of {number(least.value('nll'))}."
    quick = min(rows, key=lambda r: (r.value("steps"), r.value("draws"), r.value("nll")))
    if quick.value("steps") < least.value("steps"):
        said += f" If training time matters most: {called(quick)}, with {cost(quick)}."
    return said


def _ended(run: Run) -> str:
    """Loud where training had not ended."""
    unfinished = falling(run)
    if not unfinished:
        tested = any(isinstance(r.get("training"), dict) for row in run.rows for r in row.records)
        return "Yes, as far as the training curves show." if tested else ""
    most = max(unfinished.values())
    return (
        f"NO. The loss was STILL FALLING in the second half of training, by up to {number(most)} nats per example "
        f"beyond what the shrinking step explains, for {listed(list(unfinished))}. These scores reflect how long "
        "rows were trained as much as how good they are: train longer (more epochs) before you choose."
    )


def _sampled(run: Run) -> str:
    """Loud where chains had not converged; empty where there are none, or it is not known."""
    known = [
        (row.name, chains["converged"])
        for row in run.rows
        for record in row.records
        if "converged" in (chains := record.get("chains") or {})
    ]
    wrong = list(dict.fromkeys(name for name, converged in known if not converged))
    if not wrong:
        return "Yes, as far as they can tell: they agree, at the temperature of the posterior." if known else ""
    return (
        f"NO. The chains of {listed(wrong)} disagree or have another temperature than the posterior: their predictions "
        "are not those of the posterior, and other seeds may give others. Run them longer before choosing them."
    )


def _tempered(run: Run) -> str:
    """What was done to the predictions of the best row after training."""
    best, t = run.leader, run.leader.temperature
    if math.isnan(t):
        return ""
    if run.kind == "real":
        return f"Its spread was multiplied by {number(t)}, chosen on validation examples; its means are unchanged."
    return f"Its logits were divided by {number(t)}{_averaged(best)}, chosen on validation examples."


def _averaged(row: Row) -> str:
    return " (the mean of its members)" if row.members > 1 else ""


def _noticed(best: Row) -> str:
    entries = [r["ood"] for r in best.records if (r.get("ood") or {}).get("auroc") is not None]
    if not entries:
        return ""
    auroc = float(np.mean([o["auroc"] for o in entries]))
    word = "reliably" if auroc >= 0.9 else "often" if auroc >= 0.7 else "hardly"
    name, n = entries[0].get("name", "inputs from elsewhere"), entries[0].get("n")
    return f"{word.capitalize()}: AUROC {auroc:.3f} between test examples and {name}" + (f" (n = {n:,})." if n else ".")


def _about(run: Run) -> str:
    best = run.leader
    what = "variance" if run.kind == "real" else "entropy"
    whole = best.value(what)
    share = max(0.0, best.value("epistemic") / whole) if whole > 0 else math.nan
    if math.isnan(share):
        return ""
    kind = next((r["spread"] for r in best.records if "spread" in r), "")
    if kind == "point" or (not kind and share == 0):
        return f"{best.name} is a single network, so it has no uncertainty about its weights. {_rest(run, 'All of it')}"
    of = f"{_percent(share)} of the {what} that {best.name} predicts is"
    if kind == "tuned":
        said = (
            f"{of} noise on the weights, of a size that was tuned on validation examples for the best predictions: not "
        )
        return f"{said}uncertainty that more data would reduce. {_rest(run, 'The rest')}"
    if kind == "members":
        said = f"{of} disagreement of its {best.members} members, which more data would reduce."
    else:
        said = f"{of} uncertainty about the weights under its posterior, which more data would reduce."
    return f"{said} {_rest(run, 'The rest')}"


def _rest(run: Run, share: str) -> str:
    """What the part that is not about the weights is: noise, but for what training or another row would still tell."""
    best = run.leader
    if best.name in falling(run):
        return f"{share} is not all noise: training had not ended, and would have explained more of it."
    better = _less_error(run)
    if better is not None:
        return f"{share} is not all noise: {better.name} makes smaller errors on the same examples."
    return f"{share} is what it attributes to noise; another network or other inputs might explain part of it."


def _less_error(run: Run) -> Row | None:
    """A row whose errors are significantly smaller than those of the best, by more than SMALL of them, though its
    NLL is not."""
    best, targets = run.leader, run.test.get("targets")
    for row in [row for row in run.rows if row is not best]:
        gaps = [_errors(run, a, targets, b) for a, b in zip(best.arrays, row.arrays)]
        usable = [g for g in gaps if g is not None]
        if usable and len({len(g) for g in usable}) == 1:
            [d] = paired_differences(np.stack(usable)[..., None])
            if d.low > 0 and d.mean > SMALL * _error(run, best):
                return row
    return None


def _errors(run: Run, own: Arrays, targets: np.ndarray | None, other: Arrays) -> np.ndarray | None:
    """By how much the error of the first is above that of the other, for each example."""
    if run.kind != "real":
        if "correct" not in own or "correct" not in other or own["correct"].shape != other["correct"].shape:
            return None
        return (other["correct"].astype(float) - own["correct"]).reshape(len(own["correct"]), -1).mean(1)
    if targets is None or any("mean" not in a or a["mean"].shape != targets.shape for a in (own, other)):
        return None
    first, second = ((a["mean"].astype(np.float64) - targets) ** 2 for a in (own, other))
    with np.errstate(invalid="ignore", over="ignore"):
        return (first - second).reshape(len(targets), -1).mean(1)


def _error(run: Run, row: Row) -> float:
    """The mean squared error, or the share of wrong answers."""
    return row.value("rmse") ** 2 if run.kind == "real" else 1 - row.value("accuracy")


def _percent(share: float) -> str:
    return "Less than 1%" if 0 < share < 0.01 else f"{share:.0%}"


def _unit(run: Run) -> str:
    return f" {run.unit}" if run.unit else ""
