"""What can be saved by name: every class that a file may mention is registered here when it is defined.

A file names a class by kind and name ("prior/Normal"). Loading looks the name up and never imports anything,
so a file cannot run code; a user's own class is known as soon as the module that defines it was imported.
"""

from __future__ import annotations

from abc import ABC
from inspect import get_annotations
from typing import ClassVar

from .documented import with_field_doc

_classes: dict[str, type] = {}


class Saved(ABC):  # noqa: B024
    """Base of the frozen dataclasses that are written to disk. `kind` groups them: prior, family, method..."""

    kind: ClassVar[str] = ""

    def __init_subclass__(cls, kind: str | None = None) -> None:
        grouped = any(getattr(base, "kind", "") for base in cls.__bases__)
        if grouped and ("kind" in vars(cls) or "kind" in get_annotations(cls)):
            raise TypeError(
                f"{cls.__name__} has a field named 'kind', which names the group in which classes are found when they "
                "are loaded: give the field another name"
            )
        if kind is not None:
            cls.kind = kind
        else:
            _classes[f"{cls.kind}/{cls.__name__}"] = cls
        with_field_doc(cls)


def known(kind: str) -> dict[str, type]:
    """The registered classes of one kind, by name."""
    return {key.split("/")[1]: cls for key, cls in _classes.items() if key.startswith(kind + "/")}


def find(key: str) -> type | None:
    """The class registered as "kind/Name", or None."""
    return _classes.get(key)
