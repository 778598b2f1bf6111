"""Which rows a comparison has: what was asked for, or as much of what all methods offer as takes a bearable time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from ..core.nearest import did_you_mean
from ..engine import Based, Method
from ..engine.method import Entry, plan_of, short
from ..methods import discover
from ..methods.map import MAP
from .references import MARK, NAMES

ENOUGH = 80  # trainings of one network, by default: rows that do not fit into them have to be asked for
HEAVY = 0.25  # of those trainings that one row may take, by default: samplers with full batches on large data take more
BATCH = 128  # examples of a step that counts as one; larger batches count as many as they hold
CHAINED = 4  # what a step of chains with full batches counts for at least: they have to be asked for
MEMBERS = 5  # of ensembles, where neither rows nor sizes were asked for
GIVEN = "given network"  # the label of weights that were trained elsewhere
TEMPERED = "tempered"  # the word before the label of a row whose predictions have a temperature, tuned on validation
TEMPERABLE = ("classes", "labels", "real")  # kinds of targets whose predictions can have one

Asked = str | Method | Entry


class Row(NamedTuple):
    """A row of the table: a recipe, so many members of it, and whether it starts from weights that were given."""

    label: str
    recipe: Method | None  # None: the given weights as they are, or a reference
    members: int
    started: bool = False
    told: str = ""  # how the budget was spent on it
    tempered: bool = False  # whether its predictions get a temperature, or a factor on their spread
    reference: str = ""  # the name of what is no posterior: constant, linear or boosting


class Chosen(NamedTuple):
    """The rows, and what a person should know of how they were chosen."""

    rows: list[Row]
    lines: list[str]


def choose(
    asked: str | Sequence[Asked] | None,
    members: int | None,
    n: int,
    started: bool,
    kind: str = "classes",
    references: Sequence[str] = (),
) -> Chosen:
    """The rows of a comparison on n training examples, whose targets are of a `kind`: classes, labels, real or counts.

    `asked` are names of methods, labels of rows, recipes or entries; "all" stands for everything; None for all rows
    but those that take long, with ensembles of MEMBERS. `members` replaces the size of the ensembles. With given
    weights (`started`), methods that begin at trained weights take those, and rows that train networks of their own
    have to be asked for. Where predictions can be tempered, one network and the ensemble of them also come with a
    temperature, of real targets a factor on the spread; "tempered" before a name asks for that of any row.
    `references` are rows that are no posterior, which come unless others were asked for.
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
            rows, left = _affordable(rows, n)
            lines += [_told(left)] if left else []
        rows = [*rows, *(_reference(name) for name in references if not started)]
    else:
        rows = [row for one in wanted for row in _asked(one, offered, members, started, kind)]
        lines = [f"{row.label}: trains networks of its own, beside the given one" for row in rows if _trains(row)]
        lines = lines if started else []
    if started:
        rows = [*_offered(Row(GIVEN, None, 1, True), "" if wanted else kind), *rows]
    found: dict[str, Row] = {}
    for row in rows:
        if found.setdefault(row.label, row) != row:
            raise ValueError(f"expected a label of its own for each row, got {row.label!r} for two: name them apart")
    return Chosen(list(found.values()), lines)


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
    weights."""
    plain = row.recipe is None or type(row.recipe) is MAP
    return [row, *([_tempered(row)] if plain and kind in TEMPERABLE else [])]


def _reference(name: str) -> Row:
    return Row(f"{name}{MARK}", None, 1, reference=name)


def _tempered(row: Row) -> Row:
    return row._replace(label=f"{TEMPERED} {row.label}", tempered=True)


def _sized(entry: Entry, members: int | None) -> Entry:
    return entry if members is None or entry.members == 1 else entry._replace(members=members)


def _row(entry: Entry, started: bool) -> Row:
    """An entry as a row; given weights are one network, so that ensembles train their own."""
    return Row(*entry, started=started and entry.members == 1 and base_of(entry.recipe) is not None)


def _trains(row: Row) -> bool:
    return row.recipe is not None and not row.started


def _without_training(rows: list[Row]) -> tuple[list[Row], list[str]]:
    left = [row.label for row in rows if _trains(row)]
    lines = [f"left out, since they would train networks from scratch (--methods NAME asks for one): {_list(left)}"]
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


def _affordable(rows: list[Row], n: int) -> tuple[list[Row], list[str]]:
    """The rows whose steps add up to ENOUGH trainings of one network: the first of every method, then whichever adds
    the fewest steps. Networks that several rows use count once."""
    left, known, kept = ENOUGH * steps_of(MAP(), n), dict[Method, int](), set[str]()
    most = HEAVY * left

    def cost(row: Row) -> int:
        return sum(steps * max(0, row.members - known.get(recipe, 0)) for recipe, steps in _trained(row, n))

    firsts = {type(row.recipe): row.label for row in reversed(rows)}
    waiting = sorted(rows, key=lambda row: row.label != firsts[type(row.recipe)])
    while waiting:
        first = waiting[0].label == firsts[type(waiting[0].recipe)]
        row = waiting[0] if first else min(waiting, key=cost)
        waiting.remove(row)
        if cost(row) <= min(left, most):
            left -= cost(row)
            known |= {recipe: max(row.members, known.get(recipe, 0)) for recipe, _ in _trained(row, n)}
            kept.add(row.label)
    return [row for row in rows if row.label in kept], [row.label for row in rows if row.label not in kept]


def _trained(row: Row, n: int) -> list[tuple[Method, int]]:
    """The recipes that a row runs, each with its own steps of BATCH examples for a member."""
    found: list[tuple[Method, int]] = []
    recipe = row.recipe
    while recipe is not None:
        plan = plan_of(recipe, n)
        least = CHAINED if recipe.coupled and plan.bank else 1
        found.append((recipe, plan.steps * max(least, (plan.batch_size or n) // BATCH)))
        recipe = None if row.started else base_of(recipe)
    return found


def _told(left: list[str]) -> str:
    return f"left out, to take no longer than {ENOUGH} trainings of one network (--methods all has them): {_list(left)}"


def _list(labels: Iterable[str]) -> str:
    return ", ".join(labels)


def plan_steps(row: Row, n: int) -> int:
    """Training steps of one member of a row, from scratch or from the given weights on."""
    return steps_of(row.recipe, n, row.started)
