"""The rules of advice: when to use each recipe, and why. Earlier rules are preferred."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..engine import Method
from ..methods import find
from ..methods.map import MAP
from . import evidence as e

SIZES = (5, 3, 2)  # of ensembles, the first that the budget allows


class Facts(NamedTuple):
    """What is known before anything is advised. The size of the network counts through what recipes cost."""

    n: int  # training examples
    classes: int | None  # None: the targets are no classes
    real: bool  # the targets are real numbers
    one_noise: bool  # and have one Gaussian noise for all inputs
    normal_prior: bool
    norms: bool  # the network has norm layers with running statistics
    dropout: bool
    started: bool  # there is a trained network, or a posterior, to start from
    val: bool  # there are validation data
    passes: int | None  # forward passes that a prediction may take; None: any

    def may_take(self, passes: int) -> bool:
        """Whether a prediction may take this many forward passes."""
        return self.passes is None or passes <= self.passes


@dataclass(frozen=True)
class Rule:
    """A recipe to take, when, and why."""

    label: str
    applies: Callable[[Facts], bool]
    recipe: Callable[[Facts], Method | None]  # None: nothing is fitted
    reasons: Callable[[Facts], tuple[e.Evidence, ...]]
    sizes: tuple[int, ...] = (1,)  # members, the first that the budget allows
    start: bool = False  # around what was given to start from
    then: Callable[[Facts], str] = lambda f: ""  # what to do with the posterior afterwards, in code


def _laplace(facts: Facts) -> Method:
    few: dict[str, Any] = {"via": "probit"} if facts.classes and not facts.may_take(3) else {}
    return find("Laplace")(**few)


def _laplace_reasons(facts: Facts) -> tuple[e.Evidence, ...]:
    return (*((e.LAPLACE_LOCAL,) if facts.classes else ()), e.LAPLACE_COMPARE, e.LAPLACE_EXACT)


def _temper(facts: Facts) -> str:
    """A temperature of classes, a factor on the spread of numbers."""
    return "bn.temper(posterior, val)" if (facts.classes or facts.real) and facts.val else ""


def _of_ensemble(facts: Facts) -> tuple[e.Evidence, ...]:
    if facts.real:
        of_tables = (e.TABLES,) if e.TABLES.figures["sets"] else ()  # while the study has records of today's default
        return (e.ENSEMBLE, *of_tables)
    tempered = (e.TEMPERED_LOCAL, e.TEMPERED_ENSEMBLE) if _temper(facts) else ()
    return (e.MEMBERS, e.SIZE_DIGITS, *tempered)


def _of_one(facts: Facts) -> tuple[e.Evidence, ...]:
    tempered = (e.TEMPERATURE, e.TEMPERED_LOCAL) if facts.classes and _temper(facts) else ()
    return (e.ONE_MODE, *tempered, e.SWAG)


RULES = (
    Rule(
        "a temperature on your network",
        applies=lambda f: f.started and f.classes is not None and f.val,
        recipe=lambda f: None,
        reasons=lambda f: (e.TEMPERATURE, e.PEP_DIGITS, e.PEP_FASHION),
        start=True,
        then=lambda f: "bn.temper(start, val)",
    ),
    Rule(
        "Laplace over the last layer of your network",
        applies=lambda f: f.started and f.normal_prior,
        recipe=_laplace,
        reasons=_laplace_reasons,
        start=True,
    ),
    Rule(
        "noise around your network (PEP)",
        applies=lambda f: f.started and f.classes is not None and f.val and f.may_take(find("PEP").samples),
        recipe=lambda f: find("PEP")(),
        reasons=lambda f: (e.PEP_DIGITS, e.PEP_FASHION, e.TEMPERATURE),
        start=True,
    ),
    Rule(
        "deep ensemble",
        applies=lambda f: True,
        recipe=lambda f: MAP(),
        reasons=_of_ensemble,
        sizes=SIZES,
        then=_temper,
    ),
    Rule(  # for networks as those of the records: norm layers undo the size of weights
        "anchored ensemble",
        applies=lambda f: f.real and f.normal_prior and not (f.started or f.norms or f.dropout),
        recipe=lambda f: find("Anchored")(),
        reasons=lambda f: (e.ANCHORED,),
        sizes=SIZES,
        then=_temper,
    ),
    Rule(
        "one network and Laplace over its last layer",
        applies=lambda f: not f.started and f.normal_prior,
        recipe=_laplace,
        reasons=_laplace_reasons,
    ),
    Rule(
        "one network that learns a normal distribution over its last layer (VBLL)",
        applies=lambda f: f.one_noise and f.normal_prior and f.val and not (f.started or f.may_take(2)),
        recipe=lambda f: find("VBLL")(),
        reasons=lambda f: (e.VBLL_UCI, e.VBLL_EXACT),
    ),
    Rule(
        "one network",
        applies=lambda f: True,
        recipe=lambda f: MAP(),
        reasons=_of_one,
        then=_temper,
    ),
)
