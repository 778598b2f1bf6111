"""The order in which rows that run at the same time train what several of them use.

As where they run one after another, the first of them trains it, and the others read it from the pool: members that
some of them share are not trained twice, nor in other groups than without a cluster.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, NamedTuple

from ..engine import Method
from ..pool import describe, fingerprint
from .rows import Row, base_of


class Turns:
    """Who comes next, for each recipe and seed: runs, which are a row and a seed, by their number."""

    def __init__(self, runs: Sequence[tuple[Row, int]]) -> None:
        self.runs = runs
        self.left: dict[str, list[int]] = {}  # of each recipe, who is still to train it, in order
        for number, (row, seed) in enumerate(runs):
            recipe = row.recipe
            while recipe is not None:
                self.left.setdefault(_key(recipe, row, seed), []).append(number)
                recipe = None if row.started else base_of(recipe)

    def of(self, number: int) -> Turn:
        """Those of a run."""
        return Turn(self, number)


class Turn(NamedTuple):
    """The turns of one run."""

    turns: Turns
    number: int

    def wait(self, recipe: Method) -> Generator[None, None, None]:
        """Yields until all runs before have trained a recipe that this one trains too."""
        while self._left(recipe)[0] != self.number:
            yield

    def over(self, recipe: Method) -> None:
        """The next may train it, or read it."""
        self._left(recipe).remove(self.number)

    def leave(self) -> None:
        """This run is done, or has failed."""
        for left in self.turns.left.values():
            if self.number in left:
                left.remove(self.number)

    def _left(self, recipe: Method) -> list[int]:
        row, seed = self.turns.runs[self.number]
        return self.turns.left[_key(recipe, row, seed)]


def _key(recipe: Method, row: Row, seed: int) -> str:
    of: list[Any] = [describe(recipe), row.started, seed]
    return fingerprint(of)
