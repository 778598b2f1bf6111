"""Which parameters a method is about: `where=`, as patterns of names.

    "head.*"                      one pattern, as of file names: * is anything, ? one character, [ab] a choice
    ("layer?.*", "!*.bias")       several; those behind ! are left out again

Patterns, and not functions, because a recipe is saved and compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from .nearest import nearest

Where = str | Sequence[str] | None
MOST = 8  # names that an error lists


def select(params: Mapping[str, Any], where: Where, what: str = "parameter") -> tuple[str, ...]:
    """The names that match, in the order of the parameters; all where `where` is None. `what` they are the names of is
    for errors."""
    if where is None:
        return tuple(params)
    patterns = (where,) if isinstance(where, str) else tuple(where) if isinstance(where, Sequence) else (where,)
    if not patterns or not all(isinstance(p, str) for p in patterns):
        raise ValueError(
            f"expected where as a pattern of names or a tuple of them, such as 'head.*', got {where!r}. There are "
            f"{_few(params)}"
        )
    wanted = [p for p in patterns if not p.startswith("!")] or ["*"]
    left_out = [p[1:] for p in patterns if p.startswith("!")]
    for pattern in (*wanted, *left_out):
        if not any(fnmatchcase(name, pattern) for name in params):
            raise ValueError(
                f"no {what} matches {pattern!r}.{nearest(pattern, params, most=3)} There are {_few(params)}"
            )
    chosen = tuple(n for n in params if _any(n, wanted) and not _any(n, left_out))
    if not chosen:
        raise ValueError(f"where={where!r} leaves no {what} of {_few(params)}")
    return chosen


def _any(name: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def _few(params: Mapping[str, Any]) -> str:
    names = list(params)
    return ", ".join(names) if len(names) <= MOST else ", ".join([*names[:MOST], f"... ({len(names)} in all)"])
