"""The rules of advice: when each recipe is one to take, and why. Those that stand first are preferred."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..engine import Method
from ..methods import find
from ..methods.map import MAP
from . import evidence as e

SMALL = 2000  # training rows below which the anchored ensembles of results/uci.jsonl had the higher log likelihood
SIZES = (5, 3, 2)  # of ensembles, the first that the budget allows


class Facts(NamedTuple):
    """What is known before anything is advised. The size of the network counts through what recipes cost."""

    n: int  # training examples
    classes: int | None  # None: the targets are no classes
    real: bool  # Gaussian noise on real targets
    normal_prior: bool
    norms: bool  # the network has norm layers with running statistics
    dropout: bool
    started: bool  # there is a trained network, or a posterior, to start from
    val: bool  # there are validation data
    passes: int | None  # forward passes that a prediction may take; None: any

    def may_take(self, passes: int) -> bool:
        """Whether a prediction may take so many forward passes."""
        return self.passes is None or passes <= self.passes


@dataclass(frozen=True)
class Rule:
    """A recipe to take, when, and why."""

    label: str
    applies: Callable[[Facts], bool]
    recipe: Callable[[Facts], Method]
    reasons: Callable[[Facts], tuple[e.Evidence, ...]]
    sizes: tuple[int, ...] = (1,)  # members, the first that the budget allows
    start: bool = False  # around what was given to start from


def _laplace(facts: Facts) -> Method:
    few: dict[str, Any] = {"via": "probit"} if facts.classes and not facts.may_take(3) else {}
    return find("Laplace")(**few)


def _tempered(facts: Facts) -> tuple[e.Evidence, ...]:
    return (e.TEMPERATURE,) if facts.classes and facts.val else ()


def _anchored(label: str, when: Callable[[Facts], bool]) -> Rule:
    """For networks as those of the records: without norm layers, which undo the size of weights, and dropout."""
    return Rule(
        label,
        applies=lambda f: f.real and f.normal_prior and not (f.started or f.norms or f.dropout) and when(f),
        recipe=lambda f: find("Anchored")(),
        reasons=lambda f: (e.UCI_ANCHORED,),
        sizes=SIZES,
    )


RULES = (
    Rule(
        "noise around your network (PEP)",
        applies=lambda f: f.started and f.classes is not None and f.val and f.may_take(find("PEP").samples),
        recipe=lambda f: find("PEP")(),
        reasons=lambda f: (e.PEP_DIGITS, e.PEP_RESNET),
        start=True,
    ),
    Rule(
        "Laplace over the last layer of your network",
        applies=lambda f: f.started and f.normal_prior,
        recipe=_laplace,
        reasons=lambda f: (e.LAPLACE_EXACT, e.LAPLACE_UNTRIED, *_tempered(f)),
        start=True,
    ),
    _anchored("anchored ensemble", lambda f: f.n < SMALL),
    Rule(
        "deep ensemble",
        applies=lambda f: True,
        recipe=lambda f: MAP(),
        reasons=lambda f: (e.UCI_ENSEMBLE, e.UCI_ANCHORED) if f.real else (e.SIZE_FASHION, e.SIZE_DIGITS),
        sizes=SIZES,
    ),
    _anchored("anchored ensemble", lambda f: f.n >= SMALL),
    Rule(
        "one network and Laplace over its last layer",
        applies=lambda f: not f.started and f.normal_prior,
        recipe=_laplace,
        reasons=lambda f: (e.LAPLACE_EXACT, e.LAPLACE_UNTRIED, *_tempered(f)),
    ),
    Rule(
        "one network",
        applies=lambda f: True,
        recipe=lambda f: MAP(),
        reasons=lambda f: (e.ONE_MODE, *_tempered(f)),
    ),
)
