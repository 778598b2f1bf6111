"""Which rows a comparison has: what was asked for, or the methods that most people choose between."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..core.nearest import did_you_mean
from ..engine import Based, Method
from ..engine.method import Entry, plan_of, short
from ..methods import discover
from ..methods.map import MAP
from .references import MARK, NAMES

MEMBERS = 5  # of ensembles, where neither rows nor sizes were asked for
GIVEN = "given network"  # the label of weights that were trained elsewhere
TEMPERED = "tempered"  # the word before the label of a row whose predictions have a temperature, tuned on validation
CROSSED = "crossed"  # the word before that of an ensemble whose members have validation rows of their own; of real
# targets it is tempered by them, as `basinet fit` does
CROSSABLE = ("classes", "real")  # kinds of targets that can have such a row
TEMPERABLE = ("classes", "labels", "real")  # kinds of targets whose predictions can have one

Asked = str | Method | Entry


class Row(NamedTuple):
    """A row of the table: a recipe, how many members of it, and whether it starts from weights that were given."""

    label: str
    recipe: Method | None  # None: the given weights as they are, or a reference
    members: int
    started: bool = False
    spending: str = ""  # how the budget was spent on it
    tempered: bool = False  # whether its predictions get a temperature, or a factor on their spread
    crossed: bool = False  # whether each member leaves out validation rows of its own
    reference: str = ""  # the name of a simple model: constant, linear or boosting


class Chosen(NamedTuple):
    """The rows, and what a person should know of how they were chosen."""

    rows: list[Row]
    lines: list[str]


def choose(
    asked: str | Sequence[Asked] | None,
    members: int | None,
    started: bool,
    kind: str = "classes",
    references: Sequence[str] = (),
) -> Chosen:
    """The rows of a comparison, whose targets are of a `kind`: classes, labels, real or counts.

    `asked` are names of methods, labels of rows, recipes or entries; "all" stands for everything; None for those of the
    usual methods, with ensembles of MEMBERS. `members` replaces the size of the ensembles. With given weights
    (`started`), methods that begin at trained weights take those, and rows that train networks of their own have to be
    asked for. Where predictions can be tempered, one network and the ensemble of them also come with a temperature, of
    real targets a factor on the spread; "tempered" before a name asks for that of any row. `references` are simple
    models, which are not posteriors; they come unless others were asked for.
    """
    members = MEMBERS if members is None and asked is None else members
    offered = {name: [_sized(e, members) for e in cls.lineup()] for name, cls in discover().items()}
    wanted = _wanted(asked)
    if not wanted or wanted == ["all"]:
        rows = [row for entries in offered.values() for e in entries for row in _offered(_row(e, started), kind)]
        lines: list[str] = []
        if started:
            rows, lines = _without_training(rows)
        if not wanted:
            rows = [row for row in rows if row.recipe is not None and _is_usual(type(row.recipe))]
        rows = [*rows, *(_reference(name) for name in references if not started)]
    else:
        rows = [row for one in wanted for row in _asked(one, offered, members, started, kind)]
        lines = [f"{row.label}: trains its own networks, besides the given one" for row in rows if _trains(row)]
        lines = lines if started else []
    if started:
        rows = [*_offered(Row(GIVEN, None, 1, True), "" if wanted else kind), *rows]
    chosen: dict[str, Row] = {}
    for row in rows:
        if chosen.setdefault(row.label, row) != row:
            raise ValueError(f"expected a label of its own for each row, got {row.label!r} for two: name them apart")
    return Chosen(list(chosen.values()), lines)


def base_of(recipe: Method) -> Method | None:
    """The recipe that finds what this one starts from; None where it starts afresh."""
    return recipe.base or MAP() if isinstance(recipe, Based) else None


def steps_of(recipe: Method | None, n: int, started: bool = False) -> int:
    """Training steps of one member on n examples, with those of what it starts from."""
    if recipe is None:
        return 0
    base = None if started else base_of(recipe)
    return plan_of(recipe, n).steps + (0 if base is None else steps_of(base, n))


def _wanted(asked: Any) -> list[Asked]:
    """What was asked for, one by one; anything that is neither a word, a recipe nor an entry is refused."""
    several = list(asked) if isinstance(asked, Iterable) and not isinstance(asked, (str, Entry)) else [asked]
    wanted = [] if asked is None else several
    for one in wanted:
        good = isinstance(one, (str, Method)) and not isinstance(one, type)
        if isinstance(one, Entry):
            good = isinstance(one.label, str) and isinstance(one.recipe, Method) and _is_count(one.members)
        if not good:
            called = one.__name__ if isinstance(one, type) else None
            hint = f": write {called}()" if called else ""
            raise ValueError(
                "expected methods as names such as 'MAP', recipes such as bn.MAP(epochs=50), or entries of a label, a "
                f"recipe and members, got {called or repr(one)}{hint}"
            )
    return wanted


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _offered(row: Row, kind: str) -> list[Row]:
    """A row, and the same with a temperature where that is the plain recipe: one network, the ensemble, given
    weights; of real targets the ensemble with validation rows for each member, too."""
    plain = row.recipe is None or type(row.recipe) is MAP
    if not plain or kind not in TEMPERABLE:
        return [row]
    return [row, _tempered(row), *([_crossed(row, kind)] if kind == "real" and row.members > 1 else [])]


def _reference(name: str) -> Row:
    return Row(f"{name}{MARK}", None, 1, reference=name)


def _tempered(row: Row) -> Row:
    return row._replace(label=f"{TEMPERED} {row.label}", tempered=True)


def _crossed(row: Row, kind: str) -> Row:
    return row._replace(label=f"{CROSSED} {row.label}", tempered=kind == "real", crossed=True)


def _sized(entry: Entry, members: int | None) -> Entry:
    return entry if members is None or entry.members == 1 else entry._replace(members=members)


def _row(entry: Entry, started: bool) -> Row:
    """An entry as a row; given weights are one network, so that ensembles train their own."""
    return Row(*entry, started=started and entry.members == 1 and base_of(entry.recipe) is not None)


def _trains(row: Row) -> bool:
    return row.recipe is not None and not row.started


def _without_training(rows: list[Row]) -> tuple[list[Row], list[str]]:
    left = [row.label for row in rows if _trains(row)]
    lines = [f"left out, since they would train networks from scratch (--methods NAME adds one): {_list(left)}"]
    return [row for row in rows if not _trains(row)], lines if left else []


def _asked(
    one: Asked, offered: dict[str, list[Entry]], members: int | None, started: bool, kind: str = ""
) -> list[Row]:
    """The rows that one word, recipe or entry stands for."""
    if isinstance(one, str) and one.lower().partition(" ")[0] == TEMPERED:
        if kind not in TEMPERABLE:
            raise ValueError(
                f"{one!r}: temperatures are for classes, labels and real numbers, not for {kind}: leave it out"
            )
        of = one.partition(" ")[2].strip() or MAP.__name__
        if started and of.lower() == GIVEN:
            return [_tempered(Row(GIVEN, None, 1, True))]
        return [_tempered(row) for row in _asked(of, offered, members, started)]
    if isinstance(one, str) and one.lower().partition(" ")[0] == CROSSED:
        return _asked_crossed(one, offered, members, kind)
    if isinstance(one, Entry):
        return [_row(one, started)]
    if isinstance(one, Method):
        single = Row(short(one), one, 1, started and base_of(one) is not None)
        return [single] if members is None else [Row(short(one), one, members)]
    if one.lower().removesuffix(MARK) in NAMES:
        return [_reference(one.lower().removesuffix(MARK))]
    for name, entries in offered.items():
        if name.lower() == one.lower():
            rows = [_row(entry, started) for entry in entries]
            return [row for row in rows if row.started] or rows  # one that takes the given weights does so alone
    labels = {entry.label: entry for entries in offered.values() for entry in entries}
    for label, entry in labels.items():
        if label.lower() == one.lower():
            return [_row(entry, started)]
    raise ValueError(f"unknown method {one!r}.{did_you_mean(one, [*offered, *labels, *NAMES])}")


def _asked_crossed(one: str, offered: dict[str, list[Entry]], members: int | None, kind: str) -> list[Row]:
    if kind not in CROSSABLE:
        raise ValueError(
            f"{one!r}: validation rows for each member are for classes and real targets, not for {kind}: leave it out"
        )
    rows = _asked(one.partition(" ")[2].strip() or "deep ensemble", offered, members, started=False)
    if any(row.recipe is None or base_of(row.recipe) is not None for row in rows):
        raise ValueError(f"{one!r}: expected what trains its own networks, such as 'crossed deep ensemble'")
    return [_crossed(row, kind) for row in rows]


def _is_usual(method: type[Method]) -> bool:
    """Whether a method is one that most people choose between, or one that the user offers. What is usual of a method
    need not be of another that derives from it."""
    return bool(vars(method).get("usual", False)) or method.offered


def _list(labels: Iterable[str]) -> str:
    return ", ".join(labels)


def plan_steps(row: Row, n: int) -> int:
    """Training steps of one member of a row, from scratch or from the given weights on."""
    return steps_of(row.recipe, n, row.started)
