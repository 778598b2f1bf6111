"""Reads documentation from where it is written once: the comments on the fields of dataclasses.

`basinet methods` shows them in a table, `help(basinet.Laplace)` under the docstring of the class.
"""

from __future__ import annotations

import ast
import inspect
import io
import re
import textwrap
import tokenize
from dataclasses import MISSING, fields, is_dataclass
from typing import SupportsIndex, TypeVar

C = TypeVar("C", bound=type)
_ASIDE = re.compile(r"(type: ignore|noqa)\S*\s*#?")  # what a comment says to tools


def documented_fields(cls: type) -> dict[str, str]:
    """The description of each dataclass field: the comment on it in the class, or in a base class."""
    described: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not is_dataclass(base):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # defined in a shell
            continue
        described |= comments_on_fields(source)
    return described


def comments_on_fields(source: str) -> dict[str, str]:
    """The comment on each annotated field of a class, from the source of the class: on its lines, and on lines right
    below them that hold nothing else."""
    lines = source.splitlines()
    comments: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = re.sub(
                r"type: ignore\S*\s*#?|noqa\S*\s*#?", "", token.string.lstrip("# ")
            ).strip()
    described = {}
    for node in ast.parse(source).body[0].body:  # type: ignore[attr-defined]
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            last = node.end_lineno or node.lineno
            words = [comments[n] for n in range(node.lineno, last + 1) if n in comments]
            while last in range(len(lines)) and lines[last].lstrip().startswith("#"):
                last += 1
                words.append(comments[last])
            if words:
                described[node.target.id] = " ".join(words)
    return described


def summary(cls: type) -> str:
    """The first sentence of a class's docstring."""
    return re.split(r"(?<=\.)\s", plain_doc(cls).replace("\n", " "), maxsplit=1)[0]


def plain_doc(cls: type) -> str:
    """The docstring of a class as it is written, without the list of its fields."""
    return inspect.cleandoc(str(cls.__doc__ or ""))


class FieldDoc(str):
    """The docstring of a dataclass, which is followed by its fields where somebody reads it as help. `help`, `inspect`
    and notebooks expand the tabs of a docstring first: that is when the source is read, and not at import."""

    owner: type

    def __str__(self) -> str:
        return self[:]

    def expandtabs(self, tabsize: SupportsIndex = 8) -> str:
        described = documented_fields(self.owner)
        listed = []
        for field in fields(self.owner):
            head = field.name if field.default is MISSING else f"{field.name} = {field.default!r}"
            text = textwrap.fill(described.get(field.name, ""), 100, initial_indent=" " * 8, subsequent_indent=" " * 8)
            listed.append(f"    {head}\n{text}".rstrip())
        plain = inspect.cleandoc(str(self))
        return "\n".join([plain, "", "Fields:", "", *listed]) if listed else plain


def with_field_doc(cls: C) -> C:
    """A dataclass whose `help()` describes its fields."""
    plain = vars(cls).get("__doc__")
    if isinstance(plain, str):
        doc = FieldDoc(plain)
        doc.owner = cls
        cls.__doc__ = doc
    return cls
