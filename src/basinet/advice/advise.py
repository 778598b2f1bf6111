"""`advise`: from facts about network, data and budget to two recipes, with reasons and what they will cost."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace

from torch import nn

from ..arguments import check_needs
from ..core.documented import with_field_doc
from ..cost.cost import Cost, Meter
from ..data import Data, Stream, some
from ..engine import Engine, Method
from ..engine.memory import readable
from ..engine.method import plan_of, short
from ..methods.map import MAP
from ..posterior import Posterior
from ..problem import Problem
from ..problem.likelihoods import ClassLikelihood, Gaussian, RealLikelihood
from ..problem.priors import Normal
from .evidence import Evidence
from .rules import RULES, Facts, Rule

COUNT = 2  # recipes that are recommended


@with_field_doc
@dataclass(frozen=True)
class Budget:
    """What may be spent; None: no limit."""

    seconds: float | None = None
    """At most this many seconds of fitting, on this machine."""
    steps: int | None = None
    """Training steps, those of all members added up."""
    passes: int | None = None
    """Forward passes of the network that one prediction may take."""

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is not None and not (isinstance(value, (int, float)) and value > 0):
                raise ValueError(f"expected a budget of {f.name} above 0, or None, got {value!r}")
        if self.passes is not None and self.passes < 1:
            raise ValueError(f"expected at least 1 pass per prediction, got {self.passes}")


@with_field_doc
@dataclass(frozen=True)
class Advice:
    """A recipe to take: `bn.fit(advice.method, problem, data, val=val, members=advice.members)`, with `start=` where it
    is around what was given; and what to do `then`. Without a method there is nothing to fit."""

    label: str
    """The name of the recipe, as tables show it."""
    method: Method | None
    """The recipe; None: there is nothing to fit."""
    members: int
    """How many members it has."""
    around_start: bool
    """Whether it is fitted around the trained network, with start=."""
    reasons: tuple[Evidence, ...]
    """Why it is advised, each with the records it rests on."""
    cost: Cost
    """What it costs, as `bn.cost` estimates it."""
    steps: int
    """Training steps, those of all members added up."""
    passes: float
    """Forward passes per prediction, or work like it."""
    then: str = ""
    """What to do with the posterior afterwards, in code; empty: nothing."""

    def __str__(self) -> str:
        seconds = self.cost.fit_seconds
        time = "" if seconds is None else f", {seconds:,.3g} s"
        memory = f"{readable(self.cost.fit_bytes)} at once"
        passes = f"{self.passes:,.3g} pass{'es' * (self.passes != 1)} per prediction"
        spent = f"{self.steps:,} training steps{time}, {memory}, {passes}"
        fitted = "" if self.method is None else f": {short(self.method)}, members={self.members}"
        what = f"{self.label}{fitted}{', start=...' if self.around_start and fitted else ''}"
        then = [f"  then: {self.then}"] if self.then else []
        return "\n".join([what, f"  cost: {spent}", *then, *(f"  because: {reason}" for reason in self.reasons)])


def advise(
    problem: Problem,
    data: Data | Stream,
    budget: Budget | float | None = None,
    *,
    val: Data | Stream | None = None,
    start: Posterior | None = None,
    engine: Engine | None = None,
) -> list[Advice]:
    """Two recipes for a problem within a budget (a number means seconds of fitting), the better one first.

    Each has its reasons, every one with the record or the check of theory it rests on, and what it will cost. They
    rest on few facts from few data sets, so compare the two on your own validation data. `start` is a
    posterior to start from, `bn.Posterior.of(module, problem)` of a trained network.
    """
    if not isinstance(data, (Data, Stream)):
        raise TypeError(f"expected data as bn.Data(inputs, targets), got {type(data).__name__}")
    budget = budget if isinstance(budget, Budget) else Budget(seconds=budget)
    facts = facts_of(problem, data, val, start, budget)
    meters = {
        around: Meter(problem, data, val=val, start=start if around else None, engine=engine)
        for around in (False, True)
    }
    suggestions: list[Advice] = []
    tried: list[str] = []
    for rule in RULES:
        if rule.applies(facts) and (advice := _within(rule, facts, budget, meters[rule.start], val, tried)) is not None:
            suggestions.append(advice)
        if len(suggestions) == COUNT:
            break
    if not suggestions:
        raise ValueError(f"nothing fits into {budget}: {'; '.join(tried)}")
    return suggestions


def facts_of(
    problem: Problem, data: Data | Stream, val: Data | Stream | None, start: Posterior | None, budget: Budget
) -> Facts:
    """What the rules ask about."""
    modules = list(problem.network.module.modules())
    return Facts(
        n=data.n,
        classes=int(some(data).targets.max()) + 1 if isinstance(problem.likelihood, ClassLikelihood) else None,
        real=isinstance(problem.likelihood, RealLikelihood),
        one_noise=isinstance(problem.likelihood, Gaussian),
        normal_prior=isinstance(problem.prior, Normal),
        norms=bool(problem.network.norms),
        dropout=any(isinstance(m, nn.modules.dropout._DropoutNd) and m.p > 0 for m in modules),
        started=start is not None,
        val=val is not None,
        passes=budget.passes,
    )


def _within(
    rule: Rule, facts: Facts, budget: Budget, meter: Meter, val: Data | Stream | None, tried: list[str]
) -> Advice | None:
    """The rule's recipe with as many members as the budget allows; None, and why, where it allows none."""
    method = rule.recipe(facts)
    try:
        if method is not None:
            check_needs(method, meter.problem, meter.data, meter.val)
            method.adapt(meter.problem)
    except ValueError as error:  # it is not for such problems
        tried.append(f"{rule.label}: {error}")
        return None
    why = ""
    for members in rule.sizes:
        cost = meter(MAP(), 1) if method is None else meter(method, members)
        passes = members * cost.passes
        steps = 0 if method is None else members * sum(plan_of(s, facts.n).steps for s in meter.chain(method))
        if method is None and val is not None:
            cost = _one_pass(cost, val.n)
        over = [
            f"{passes:,.3g} passes per prediction" if not facts.may_take(math.ceil(passes)) else "",
            f"{steps:,} training steps" if budget.steps is not None and steps > budget.steps else "",
            f"{readable(cost.fit_bytes)} of memory" if not cost.fits else "",
            f"{cost.fit_seconds:,.3g} s"
            if budget.seconds is not None and (cost.fit_seconds or 0) > budget.seconds
            else "",
        ]
        why = ", ".join(x for x in over if x)
        if not why:
            shared = (rule.start, rule.reasons(facts), cost, steps, passes, rule.then(facts))
            return Advice(rule.label, method, members, *shared)
    tried.append(f"{rule.label} takes {why}")
    return None


def _one_pass(cost: Cost, rows: int) -> Cost:
    """What it takes to predict validation examples once, which is all that a temperature needs."""
    seconds = None if cost.predict_seconds is None else cost.predict_seconds * rows / cost.inputs
    return replace(cost, fit_bytes=cost.kept_bytes + cost.predict_bytes, fit_seconds=seconds)
