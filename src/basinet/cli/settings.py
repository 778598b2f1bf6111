"""NAME=VALUE on the command line: hyperparameters of methods and what they are made of, priors and likelihoods.

epochs=100                a field of the method
optimizer.lr.peak=0.01    a field of what a field holds
optimizer=SGD:lr=0.1,momentum=0.9    another class in its place, with its own fields
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, Union, get_args, get_origin, get_type_hints

from ..core.nearest import did_you_mean
from ..core.registry import Saved, known

if TYPE_CHECKING:
    from ..compare.rows import Row
    from ..engine import Method
    from ..filters import Filter
    from ..problem.likelihoods import Likelihood
    from ..problem.priors import Prior

LARGEST = 10**9  # of a number
_WHOLE = re.compile(r"[+-]?\d{1,30}")
_WORDS = {"None": None, "True": True, "False": False}
_PLAIN: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    type(None): (type(None),),
}


@dataclass
class _Setting:
    """What is said of one field: a value, and values of the fields inside it."""

    whole: str = ""  # as it was written
    text: str | None = None
    inside: dict[str, _Setting] = field(default_factory=dict)


def make_recipe(name: str, settings: Sequence[str]) -> Method:
    """A method with the hyperparameters of NAME=VALUE."""
    from ..methods import find

    return changed(find(name)(), _tree(settings, f"--set NAME=VALUE of {find(name).__name__}"))


def make_filter(name: str, settings: Sequence[str]) -> Filter:
    """A filter with the hyperparameters of NAME=VALUE."""
    from ..filters import EKF, LOFI, RVGA, Kalman

    filters: dict[str, type[Filter]] = {cls.__name__: cls for cls in (EKF, LOFI, RVGA, Kalman)}
    cls = next((filters[key] for key in filters if key.lower() == name.lower()), None)
    if cls is None:
        raise ValueError(f"expected a filter as --method, got {_cut(name)!r}.{did_you_mean(_cut(name), filters)}")
    return changed(cls(), _tree(settings, f"--set NAME=VALUE of {cls.__name__}"))


def set_rows(rows: Sequence[Row], settings: Sequence[str]) -> list[Row]:
    """The rows of a comparison with METHOD.NAME=VALUE, wherever a recipe of that method stands: as a row, or as what a
    row starts from."""
    from ..engine import Based
    from ..methods import find
    from ..methods.map import MAP

    trees: dict[type, dict[str, _Setting]] = {}
    for name, setting in _tree(settings, "--set METHOD.NAME=VALUE").items():
        if not setting.inside or setting.text is not None:
            raise ValueError(f"expected --set METHOD.NAME=VALUE, such as MAP.epochs=50, got {setting.whole!r}")
        trees[find(name)] = setting.inside
    used: set[type] = set()

    def of(recipe: Any) -> Any:
        if isinstance(recipe, Based):
            base = recipe.base or (MAP() if MAP in trees else None)
            recipe = recipe if base is None else replace(recipe, base=of(base))
        if type(recipe) not in trees:
            return recipe
        used.add(type(recipe))
        return changed(recipe, trees[type(recipe)])

    adjusted = [row if row.recipe is None else row._replace(recipe=of(row.recipe)) for row in rows]
    if idle := [cls.__name__ for cls in trees if cls not in used]:
        raise ValueError(f"expected --set of methods that are compared, got {idle[0]}, which no row uses")
    return adjusted


def make_prior(text: str | None) -> Prior | None:
    """A prior: NAME:FIELD=VALUE,..., or only the scale of a Normal one."""
    from ..problem.priors import Normal
    from ..problem.priors.scales import RULES

    if text is None:
        return None
    number = _literal(text)
    if text in RULES or type(number) in (int, float):
        return Normal(scale=number)
    return named("prior", text, f"--prior {text}")


def make_likelihood(text: str | None) -> Likelihood | None:
    """A likelihood, NAME:FIELD=VALUE,..., beginning with what files get."""
    from ..defaults import LIKELIHOODS

    if text is None:
        return None
    starts = {type(x).__name__: x for each in LIKELIHOODS.values() for x in each}
    return named("likelihood", text, f"--likelihood {text}", starts)


def named(kind: str, text: str, where: str, starts: dict[str, Any] | None = None) -> Any:
    """An object of a registered class from NAME:FIELD=VALUE,FIELD=VALUE."""
    from ..methods import discover

    if kind == "method":
        discover()
    name, _, rest = text.partition(":")
    classes = known(kind) if starts is None else {key: type(x) for key, x in starts.items()}
    cls = next((classes[key] for key in classes if key.lower() == name.strip().lower()), None)
    if cls is None:
        raise ValueError(
            f"{where}: expected the name of one {kind}, got {_cut(name)!r}.{did_you_mean(_cut(name), classes)}"
        )
    tree = _tree([part for part in rest.split(",") if part.strip()], f"{where}: NAME=VALUE of {cls.__name__}")
    return changed(cls if starts is None else starts[cls.__name__], tree)


def changed(start: Any, tree: dict[str, _Setting]) -> Any:
    """A dataclass, or one made of a class, with other values of some fields."""
    cls = start if isinstance(start, type) else type(start)
    hints, own = get_type_hints(cls), {f.name: f for f in fields(cls)}
    values: dict[str, Any] = {}
    for name, setting in tree.items():
        kinds = _kinds(hints[name]) if name in own else _Kinds([], [])
        if not (kinds.plain or kinds.saved):
            raise ValueError(f"expected {_known(start, name, setting.whole)}")
        value = None if isinstance(start, type) else getattr(start, name)
        if setting.text is not None:
            value = _value(setting, kinds, f"{name} of {cls.__name__}")
        if setting.inside:
            value = _start(value, kinds, setting)
            value = changed(value, setting.inside)
        values[name] = value
    try:
        return start(**values) if isinstance(start, type) else replace(start, **values)
    except TypeError as error:  # a field that has to be given
        raise ValueError(f"{cls.__name__}: {str(error).removeprefix(cls.__name__ + '.__init__() ')}") from error


@dataclass
class _Kinds:
    """What a field may hold: plain types and words, and kinds of registered classes."""

    plain: list[Any]
    saved: list[str]

    def in_words(self) -> str:
        words = ["None" if x is type(None) else x.__name__ if x in _PLAIN else str(x) for x in self.plain]
        return " or ".join([*words, *(f"the name of a {kind}" for kind in self.saved)])


def _kinds(hint: Any) -> _Kinds:
    """What an annotation allows that can be written in a word."""
    if get_origin(hint) is Literal:
        return _Kinds(list(get_args(hint)), [])
    if get_origin(hint) in (Union, UnionType):
        each = [_kinds(x) for x in get_args(hint)]
        plain = list(dict.fromkeys(x for kinds in each for x in kinds.plain))
        saved = [x for kinds in each for x in kinds.saved]
        return _Kinds(plain if saved or plain != [type(None)] else [], saved)
    if get_origin(hint) in (tuple, Sequence):  # of words: one is enough here
        return _Kinds([str] if str in get_args(hint) else [], [])
    if isinstance(hint, type) and issubclass(hint, Saved):
        return _Kinds([], [hint.kind])
    return _Kinds([hint] if hint in _PLAIN else [], [])


def _value(setting: _Setting, kinds: _Kinds, what: str) -> Any:
    text = setting.text or ""
    value = _literal(text)
    if isinstance(value, (int, float)) and not (math.isfinite(value) and abs(value) <= LARGEST):
        raise ValueError(f"expected {what} as a number of at most {LARGEST:,}, got {_cut(text)!r}")
    if any(type(value) in _PLAIN[x] if x in _PLAIN else value == x for x in kinds.plain):
        return value
    if kinds.saved and isinstance(value, str):
        return named(kinds.saved[0], text, f"--set {_cut(setting.whole)}")
    raise ValueError(f"expected {what} as {kinds.in_words()}, got {_cut(text)!r}")


def _start(value: Any, kinds: _Kinds, setting: _Setting) -> Any:
    """What a field holds, whose own fields are set; a method that stands for the default is MAP."""
    from ..methods.map import MAP

    if value is None and "method" in kinds.saved:
        return MAP()
    if not is_dataclass(value):
        got = "nothing" if value is None else repr(value)
        raise ValueError(
            f"expected something with fields for --set {_cut(setting.whole)}, got {got} there: name it first"
        )
    return value


def _known(start: Any, name: str, whole: str) -> str:
    cls = start if isinstance(start, type) else type(start)
    paths = list(_paths(start))
    same = [path for path in paths if path.rpartition(".")[2] == name]  # lr is optimizer.lr
    hint = f" Did you mean {same[0]!r}? Known: {', '.join(sorted(paths))}." if same else did_you_mean(_cut(name), paths)
    return f"--set NAME=VALUE of {cls.__name__}, got {_cut(whole)!r}.{hint}"


def _paths(start: Any, before: str = "") -> Iterator[str]:
    """All names that can be set, dotted."""
    from ..methods.map import MAP

    hints = get_type_hints(start if isinstance(start, type) else type(start))
    for f in fields(start):
        kinds = _kinds(hints[f.name])
        if kinds.plain or kinds.saved:
            yield before + f.name
        value = None if isinstance(start, type) else getattr(start, f.name)
        value = MAP() if value is None and "method" in kinds.saved else value
        if kinds.saved and is_dataclass(value):
            yield from _paths(value, f"{before}{f.name}.")


def _tree(settings: Iterable[str], expected: str) -> dict[str, _Setting]:
    """NAME.NAME=VALUE as settings in settings; the last of several for one name holds."""
    top: dict[str, _Setting] = {}
    for setting in settings:
        path, equals, text = setting.partition("=")
        names = [name.strip() for name in path.split(".")]
        if not equals or not all(names) or len(names) > 8:
            raise ValueError(f"expected {expected}, got {_cut(setting)!r}")
        level = top
        for name in names:
            here = level.setdefault(name, _Setting(setting))
            level = here.inside
        here.text = text.strip()
        here.whole = setting
    return top


def _literal(text: str) -> Any:
    """None, a truth value, a number, or the text itself, without its quotes."""
    text = text.strip()
    if text in _WORDS:
        return _WORDS[text]
    if _WHOLE.fullmatch(text):
        return int(text)
    if re.search(r"\d", text) and "_" not in text and len(text) <= 40:
        try:
            return float(text)
        except ValueError:
            pass
    quoted = len(text) > 1 and text[0] == text[-1] and text[0] in "'\""
    return text[1:-1] if quoted else text


def _cut(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
