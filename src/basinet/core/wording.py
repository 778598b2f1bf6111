"""How messages about data call an option: as the rules of a table in Python, as the command line, or as an estimator
does; by the caller's own way, or in both where that is not known."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Literal

Language = Literal["both", "command", "estimator"]
_LANGUAGE: ContextVar[Language] = ContextVar("language", default="both")


@contextmanager
def speaking(language: Language) -> Iterator[None]:
    """Inside, options are called as this caller writes them."""
    before = _LANGUAGE.set(language)
    try:
        yield
    finally:
        _LANGUAGE.reset(before)


def option(rule: str, command: str, estimator: str | None = None) -> str:
    """An option by its name, such as missing='impute', or --missing impute. Where an estimator calls it by another name
    than a rule does, that is given, too; empty, where it has none."""
    own = rule if estimator is None else estimator
    return {"both": f"{rule}, or {command}", "command": command, "estimator": own}[_LANGUAGE.get()]


def aside(text: str) -> str:
    """A remark in brackets behind a word; nothing where there is none."""
    return f" ({text})" if text else ""


def imputing() -> str:
    """What to do about missing values."""
    way = option("missing='impute'", "--missing impute")
    return f"fill or drop them, or fit with {way}"


def sharing() -> str:
    """What lets values that are rare, or that training had not, share an input."""
    return option("unseen='other'", "--unseen other")
