"""Reads documentation from where it is written once: the comments on the fields of dataclasses."""

from __future__ import annotations

import inspect
import re
import textwrap
from dataclasses import is_dataclass

_FIELD = re.compile(r"^    (\w+):[^#\n]*(?:#\s*(.*))?$", re.MULTILINE)


def documented_fields(cls: type) -> dict[str, str]:
    """The description of each dataclass field: the comment on its line in the class, or in a base class."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not is_dataclass(base):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # defined in a shell
            continue
        found |= {match[1]: match[2].strip() for match in _FIELD.finditer(source) if match[2]}
    return found


def summary(cls: type) -> str:
    """The first sentence of a class's docstring."""
    text = inspect.getdoc(cls) or ""
    return re.split(r"(?<=\.)\s", text.replace("\n", " "), maxsplit=1)[0]
