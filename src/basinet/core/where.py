"""Which parameters a method is about: `where=`, as patterns of names.

    "head.*"                      one pattern, as of file names: * is anything, ? one character, [ab] a choice
    ("layer?.*", "!*.bias")       several; those behind ! are left out again

Patterns, and not functions, because a recipe is saved and compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from .nearest import did_you_mean
from .tree import Params

Where = str | Sequence[str] | None


def select(params: Mapping[str, Any], where: Where) -> tuple[str, ...]:
    """The names that match, in the order of the parameters; all where `where` is None."""
    if where is None:
        return tuple(params)
    patterns = (where,) if isinstance(where, str) else tuple(where)
    wanted = [p for p in patterns if not p.startswith("!")] or ["*"]
    left_out = [p[1:] for p in patterns if p.startswith("!")]
    for pattern in (*wanted, *left_out):
        if not any(fnmatchcase(name, pattern) for name in params):
            raise ValueError(
                f"no parameter matches {pattern!r}.{did_you_mean(pattern, params)} There are {_few(params)}"
            )
    found = tuple(n for n in params if _any(n, wanted) and not _any(n, left_out))
    if not found:
        raise ValueError(f"where={where!r} leaves no parameter of {_few(params)}")
    return found


def last_layer(params: Params) -> str:
    """The pattern of the layer whose parameters come last: "head.*" for head.weight and head.bias."""
    name = next(reversed(params))
    return f"{name.rpartition('.')[0]}.*" if "." in name else "*"


def _any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _few(params: Mapping[str, Any], most: int = 8) -> str:
    names = list(params)
    return ", ".join(names) if len(names) <= most else ", ".join([*names[:most], f"... ({len(names)} in all)"])
