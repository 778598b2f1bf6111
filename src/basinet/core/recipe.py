"""Recipes: frozen dataclasses of hyperparameters, in which a list stands for one recipe per value.

    MAP(optimizer=Adam(lr=[1e-3, 1e-2]))  is  MAP(optimizer=Adam(lr=1e-3)) and MAP(optimizer=Adam(lr=1e-2))

Lists may stand in several places, nested recipes included, and go in step: value k of one goes with value k of the
others. A tuple is a value. Inside a lifted function a number may be a tensor, one value per member.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import wraps
from numbers import Real
from typing import Any, TypeVar

from torch import Tensor

from .registry import Saved

Path = tuple[str, ...]  # names of fields, from the outermost recipe in
R = TypeVar("R", bound="Recipe")


class Recipe(Saved, kind="recipe"):
    """Base of methods, optimisers and rates. The checks of a class (`__post_init__`) see only plain values: where
    there are lists, each of the recipes they stand for is checked; tensors stand for what was checked before. Before
    them, fields that are declared as numbers, truth values or recipes are checked to be such."""

    def __post_init__(self) -> None:
        _check_plain(self, lambda _: None)

    def __init_subclass__(cls, kind: str | None = None) -> None:
        super().__init_subclass__(kind)
        if "__post_init__" in vars(cls):
            setattr(cls, "__post_init__", _of_plain(cls.__post_init__))  # noqa: B010


KINDS: dict[str, tuple[type, str]] = {  # what the annotation of a field asks for, and in words
    "int": (int, "a whole number"),
    "float": (Real, "a number"),
    "bool": (bool, "True or False"),
    "Optimizer": (Recipe, "a recipe such as Adam(lr=1e-3)"),
    "Method": (Recipe, "a recipe such as MAP(epochs=50)"),
}


def expand(recipe: R) -> list[R]:
    """The plain recipes that a recipe with lists stands for; itself, where it has none."""
    lists = {path: value for path, value in flat(recipe) if isinstance(value, list)}
    lengths = {".".join(path): len(values) for path, values in lists.items()}
    if not lists:
        return [recipe]
    if len(set(lengths.values())) > 1 or 0 in lengths.values():
        counts = ", ".join(f"{name} has {count}" for name, count in lengths.items())
        raise ValueError(
            f"expected lists of equal length, one value per member, got: {counts}. For all combinations give each list "
            "the products, as itertools.product makes them; a tuple is one value"
        )
    return [_pick(recipe, lists, k) for k in range(next(iter(lengths.values())))]


def flat(recipe: Recipe, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    """All values by path; a nested recipe gives its class, then its own values."""
    for field in fields(recipe):  # type: ignore[arg-type]
        value, where = getattr(recipe, field.name), (*path, field.name)
        if isinstance(value, Recipe):
            yield where, type(value)
            yield from flat(value, where)
        else:
            yield where, value


def rebound(recipe: R, values: Mapping[Path, Any]) -> R:
    """The recipe with other values at some paths."""
    changed = {}
    for field in fields(recipe):  # type: ignore[arg-type]
        value = getattr(recipe, field.name)
        inside = {path[1:]: v for path, v in values.items() if path[0] == field.name}
        changed[field.name] = value if not inside else inside[()] if () in inside else rebound(value, inside)
    return type(recipe)(**changed)


def cohorts(recipes: Sequence[Recipe], apart: Sequence[Any]) -> list[list[int]]:
    """Recipes (by position) that are equal but for numbers, and whose values in `apart` are equal."""
    flattened = [dict(flat(recipe)) for recipe in recipes]
    real = {path for values in flattened for path, value in values.items() if type(value) is float}
    keys: list[Any] = []
    groups: list[list[int]] = []
    for i, values in enumerate(flattened):
        numbers = {path for path in real if path in values and type(values[path]) in (int, float)}
        key = (type(recipes[i]), {p: v for p, v in values.items() if p not in numbers}, numbers, apart[i])
        if key in keys:
            groups[keys.index(key)].append(i)
        else:
            keys.append(key)
            groups.append([i])
    return groups


def differences(recipes: Sequence[Recipe]) -> list[Path]:
    """The paths at which the recipes of a cohort differ."""
    first, *others = [dict(flat(recipe)) for recipe in recipes]
    return [path for path, value in first.items() if any(other[path] != value for other in others)]


def _pick(recipe: R, lists: Mapping[Path, list[Any]], k: int) -> R:
    values = {path: given[k] for path, given in lists.items()}
    settings = ", ".join(f"{'.'.join(path)}={value!r}" for path, value in values.items())
    try:
        plain = rebound(recipe, values)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{type(recipe).__name__} with {settings}, value {k} of its lists: {error}") from error
    if any(isinstance(value, list) for _, value in flat(plain)):
        raise ValueError(f"expected plain values in the lists of {type(recipe).__name__}, got lists inside: {settings}")
    return plain


def _of_plain(check: Callable[[Any], None]) -> Callable[[Any], None]:
    @wraps(check)
    def post_init(self: Recipe) -> None:
        _check_plain(self, check)

    return post_init


def _check_plain(recipe: Recipe, check: Callable[[Any], None]) -> None:
    values = [value for _, value in flat(recipe)]
    if any(isinstance(value, list) for value in values):
        expand(recipe)
    elif not any(isinstance(value, Tensor) for value in values):
        _check_kinds(recipe)
        check(recipe)


def _check_kinds(recipe: Recipe) -> None:
    """Refuses a field whose value is not of the kind that its annotation names, where that is a plain one."""
    for field in fields(recipe):  # type: ignore[arg-type]
        named = field.type if isinstance(field.type, str) else getattr(field.type, "__name__", str(field.type))
        kind, value = named.removesuffix(" | None"), getattr(recipe, field.name)
        if kind not in KINDS or (value is None and kind != named):
            continue
        wanted, words = KINDS[kind]
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            other = " or None" if kind != named else ""
            raise ValueError(f"{type(recipe).__name__}: expected {field.name} as {words}{other}, got {value!r}")
