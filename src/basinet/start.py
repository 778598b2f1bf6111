"""Where members start when they are given another posterior: at which points, and with which parts of its recipe."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from .core.tree import Point, take
from .engine import Based, Method
from .posterior import Posterior


def modes(start: Posterior, recipe: Method) -> list[Point]:
    """Where the recipe starts from each member: its mean, which must be a point that one may start from."""
    for part in start.parts:
        points = take(part.family, 0).points
        if points is not None and points > 1:
            raise ValueError(
                f"start has members of {points} points each, whose average is not a mode: start from each of them, "
                f"start=posterior.apart(){_or_more(part.recipe)}"
            )
    return [recipe.starting(take(p.family, i)) for p in start.parts for i in range(len(p.members))]


def going_on(recipe: Method, start: Posterior) -> Method:
    """The recipe; if the start's recipe changed the network, with that one as its base."""
    changed = any(part.adapted().network is not part.problem.network for part in start.parts)
    if not changed or not isinstance(recipe, Based):
        return recipe
    if len(start.parts) > 1:
        raise ValueError(
            "start has members of several recipes, of which one changes the network: fit each part on its own"
        )
    return replace(recipe, base=start.parts[0].recipe)


def curves_of(start: Posterior, i: int) -> dict[str, Any]:
    """Those of the member that member i starts from."""
    one = start[i % len(start)].parts[0]
    return {name: rows[0] for name, rows in one.info.get("curves", {}).items()}


def _or_more(recipe: Method | None) -> str:
    if recipe is None or recipe.grows is None:
        return ""
    return f"; for more draws of these chains, fit their recipe with {recipe.grows}= in the pool that has them"
