"""Reads documentation from where it is written once: the docstring below each field of a dataclass.

`basinet methods` shows them in a table, `help(basinet.Laplace)` under the docstring of the class, editors where a field
is used. A comment on the line of a field does as well, for shapes and for classes of your own.
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
    """The description of each dataclass field, from the class or from a base class."""
    described: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        if not is_dataclass(base):
            continue
        try:
            source = textwrap.dedent(inspect.getsource(base))
        except (OSError, TypeError):  # defined in a shell
            continue
        described |= described_fields(source)
    return described


def described_fields(source: str) -> dict[str, str]:
    """What is said of each annotated field of a class, from the source of the class: in the docstring below it, or else
    in comments on its lines and on lines right below them that hold nothing else."""
    lines = source.splitlines()
    comments: dict[int, str] = {}
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            comments[token.start[0]] = _ASIDE.sub("", token.string.lstrip("# ")).strip()
    described = {}
    body = ast.parse(source).body[0].body  # type: ignore[attr-defined]
    for node, below in zip(body, [*body[1:], None]):
        if not (isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)):
            continue
        if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) and isinstance(below.value.value, str):
            described[node.target.id] = " ".join(below.value.value.split())
            continue
        last = node.end_lineno or node.lineno
        words = [comments[n] for n in range(node.lineno, last + 1) if n in comments]
        while last in range(len(lines)) and lines[last].lstrip().startswith("#"):
            last += 1
            words.append(comments[last])
        if any(words):
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
