"""Recipes that leave a number open, settled for each member on validation data before they run.

A short run of each trial of a recipe (`Method.trials`) from where the members start; the one with the lowest validation
NLL settles the number, and where none is better than the start, the member stays there. The result is compared with the
start once more: a member that is worse stays there, too.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from .data import Data, Stream
from .engine import Member, Method
from .engine.progress import Progress
from .families import Empirical
from .posterior import Part, Posterior, joined
from .predict import counting, few_of, worse
from .scoring import predicted_with_weights

Run = Callable[[list[Method], list[int], bool], Generator[None, None, Posterior]]
"""Fits recipes, one per member, for the members at some positions, from where these start; True: without a word. Yields
None while it waits for other machines."""

LOSS = 1e-3  # nats per example that are worse than the start


def by_validation(
    each: list[Method], who: list[Member], start: Posterior, val: Data | Stream, run: Run, progress: Progress
) -> Generator[None, None, Posterior]:
    """The posterior of members whose recipes have trials; yields None while it waits for other machines."""
    before = member_nll(start, val, who)
    tried: list[dict[float, float]] = [{} for _ in who]  # by step size
    best: list[tuple[float, Method | None]] = [(x, None) for x in before]
    count = max(len(recipe.trials()) for recipe in each)
    progress.say(f"{each[0].label}: trying {count} step sizes on validation data, in short runs")
    for number in range(count):
        here = [i for i, recipe in enumerate(each) if number < len(recipe.trials())]
        recipes = [each[i].trials()[number] for i in here]
        try:
            posterior = yield from run(recipes, here, True)
        except FloatingPointError:  # all of them diverged
            continue
        losses = member_nll(posterior, val)
        for i, place in _matched(posterior, who, here):
            trial = recipes[here.index(i)]
            tried[i][_step(trial)] = losses[place]
            best[i] = min(best[i], (losses[place], trial), key=lambda pair: pair[0])
    settled = [recipe.settled(trial) for recipe, (_, trial) in zip(each, best)]
    posterior = yield from run(settled, list(range(len(who))), False)
    losses, places = member_nll(posterior, val), dict(_matched(posterior, who, list(range(len(who)))))
    worse = [i for i, place in places.items() if losses[place] > before[i] + LOSS and best[i][1] is not None]
    stays = (yield from run([each[i].settled(None) for i in worse], worse, True)) if worse else None
    parts = []
    for i, place in places.items():
        one = posterior[place] if i not in worse else stays[worse.index(i)]  # type: ignore[index]
        after = losses[place] if i not in worse else member_nll(one, val)[0]
        step = 0.0 if i in worse else _step(settled[i])
        [line] = lines = _lines(step, before[i], after)
        report = f"{each[i].label}, member {who[i].k} (seed {who[i].seed}): {line}"
        (progress.warn if after > before[i] + LOSS else progress.say)(report)
        curves = {"step_size": step, "start_nll": before[i], "own_nll": after}
        rows: dict[str, list[Any]] = {name: [[x]] for name, x in curves.items()}
        rows |= {"tried_step_size": [list(tried[i])], "tried_nll": [list(tried[i].values())]}
        parts.append(_with_notes(one.parts[0], rows, lines))
    return relabelled(parts, [each[i] for i in places])


def compared(
    posterior: Posterior,
    who: list[Member],
    start: Posterior,
    data: Data | Stream,
    val: Data | Stream | None,
    progress: Progress,
) -> Posterior:
    """The posterior of recipes that continue from a start, after saying which members are worse than it: on validation
    data, or else on some training data, which tell less, and nothing of draws, which lie around a mode."""
    if val is None and all(isinstance(part.family, Empirical) for part in posterior.parts):
        return posterior
    seen = few_of(data) if val is None else val
    before, after = member_nll(start, seen, who), member_nll(posterior, seen)
    notes: list[list[str]] = [[] for _ in after]
    for i, place in _matched(posterior, who, list(range(len(who)))):
        first = before[i]
        if val is None:
            notes[place] = list(
                worse(
                    after[place],
                    first,
                    False,
                    "pass val=: such members then stay at their start",
                )
            )
        elif after[place] > first + LOSS:
            notes[place] = _lines(1.0, first, after[place])
        for line in notes[place]:
            progress.warn(f"member {who[i].k} (seed {who[i].seed}) is {line}")
    if not any(notes):
        return posterior
    left = iter(notes)
    parts = []
    for part in posterior.parts:
        own = part.info.get("notes", [[] for _ in part.members])
        parts.append(replace(part, info=part.info | {"notes": [[*lines, *next(left)] for lines in own]}))
    return Posterior(tuple(parts))


def relabelled(parts: Sequence[Part], asked: Sequence[Method]) -> Posterior:
    """One posterior of parts of a member each, with the recipes that were asked for. Where they share their training
    inputs and recipe, they are one part."""
    first = parts[0]
    same = [
        replace(part, recipe=recipe, inputs=first.inputs if part.rows is None else part.inputs)
        for part, recipe in zip(parts, asked)
    ]
    return Posterior(joined(same))


def member_nll(posterior: Posterior, val: Data | Stream, who: Sequence[Member] | None = None) -> list[float]:
    """The mean validation NLL of each member, one after another: the draws of one member are held at a time. `who` are
    the members on whose validation examples they are judged, where these are not their own: one member may stand for
    all of them."""
    plain, who = Posterior(posterior.parts), who or posterior.members
    if len(plain) == 1 and (isinstance(val, Stream) or val.rows is None):
        return [_mean_nll(plain, val)] * len(who)
    each = [plain] * len(who) if len(plain) == 1 else [plain[k : k + 1] for k in range(len(plain))]
    return [_mean_nll(one, val.member(member.k)) for one, member in zip(each, who)]


def _mean_nll(member: Posterior, val: Data | Stream) -> float:
    total, count = 0.0, 0.0
    for predictive, targets, exponents, weights in predicted_with_weights(member, val):
        logs = predictive.log_joint(targets, exponents).double()  # (1, S, B)
        each = torch.logsumexp(logs + predictive.member_mass()[1].double().log().unsqueeze(-1), 1).cpu()
        total -= float((each if weights is None else counting(each, weights)).sum())
        count += len(targets) if weights is None else int((weights > 0).sum())
    return total / count


def _matched(posterior: Posterior, who: Sequence[Member], here: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Positions of members with their places in a posterior, from which some that diverged are missing."""
    there = list(posterior.members)
    place = 0
    for i in here:
        if place < len(there) and there[place] == who[i]:
            yield i, place
            place += 1


def _step(recipe: Method) -> float:
    return float(recipe.optimizer.lr)  # type: ignore[attr-defined]


def _lines(step: float, before: float, after: float) -> list[str]:
    losses = f"the validation NLL is {after:.4g} per example, {before:.4g} at the start"
    if after > before + LOSS:
        return [f"worse than its start: {losses}"]
    if step == 0:
        return ["it stays at its start: none of the step sizes tried lowers the validation NLL"]
    return [f"step size {step:.3g}, by validation: {losses}"]


def _with_notes(part: Part, rows: dict[str, list[Any]], lines: list[str]) -> Part:
    info = part.info | {"curves": part.info.get("curves", {}) | rows, "notes": [lines]}
    return replace(part, info=info)
