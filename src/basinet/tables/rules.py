"""What to do with the columns and rows of a table, as the user says it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

from ..core.documented import with_field_doc
from .values import listed, shown


class Split(NamedTuple):
    """How rows become training, validation and test: one of four ways, and the column that it goes by."""

    way: Literal["random", "time", "group", "column"]
    column: str | None = None


@with_field_doc
@dataclass(frozen=True, kw_only=True)
class Rules:
    """What to do with the columns and rows of a table."""

    kind: Literal["classes", "labels", "real"] | None = None
    """Kind of the target; None: several columns are labels; text, booleans and few whole numbers are classes."""
    missing: Literal["refuse", "impute"] = "refuse"
    """Missing cells: refuse them, or impute the median or most frequent value, with an input that marks them."""
    unseen: Literal["refuse", "other"] = "refuse"
    """Values that the training rows did not have: refuse them, or let them share one input."""
    keep: tuple[str, ...] = ()
    """Columns used though they are constant or look like identifiers."""
    drop: tuple[str, ...] = ()
    """Columns not used."""
    categories: tuple[str, ...] = ()
    """Columns of numbers or dates whose values are names."""
    split: str | None = None
    """One of random, time, time:COL, group:COL, column:COL; None: random, with a warning about dates."""
    group_duplicates: bool = False
    """Whether rows with the same inputs stay on one side of a random split."""

    def __post_init__(self) -> None:
        closed = {
            "kind": (None, "classes", "labels", "real"),
            "missing": ("refuse", "impute"),
            "unseen": ("refuse", "other"),
        }
        for field, known in closed.items():
            if (got := getattr(self, field)) not in known:
                raise ValueError(f"expected {field} among {', '.join(map(str, known))}, got {shown(got)}")
        if both := set(self.drop) & {*self.keep, *self.categories}:
            raise ValueError(f"expected columns to keep and to drop, got {listed(sorted(both))} as both")
        if self.cut.way != "random" and self.group_duplicates:
            raise ValueError(f"expected duplicates to be grouped in a split at random, got the split {self.split!r}")

    @property
    def exchangeable(self) -> bool:
        """Whether rows of one part may be in another: those of time, groups and given parts may not."""
        return self.cut.way == "random" and not self.group_duplicates

    @property
    def cut(self) -> Split:
        """The split, read."""
        way, _, column = (self.split or "random").partition(":")
        takes_column = {"random": False, "time": column != "", "group": True, "column": True}
        if way not in takes_column or takes_column[way] != bool(column):
            raise ValueError(
                f"expected split as random, time, time:COL, group:COL or column:COL, got {shown(self.split)}"
            )
        return Split(way, column or None)  # type: ignore[arg-type]


PLAIN = Rules()
