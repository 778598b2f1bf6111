"""A griffe extension: where a field of a dataclass has no docstring, the comment on it is its description."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from griffe import Class, Docstring, Extension

# the file itself, and not the package, which would import torch
_SOURCE = Path(__file__).parents[2] / "src" / "basinet" / "core" / "documented.py"
_SPEC = importlib.util.spec_from_file_location("documented", _SOURCE)
assert _SPEC and _SPEC.loader
documented = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(documented)


class Described(Extension):
    def on_class_members(self, *, cls: Class, **_: Any) -> None:
        if "dataclass" not in " ".join(str(d.value) for d in cls.decorators):
            return
        source = "\n".join(line for line in cls.source.splitlines())
        for name, text in documented.described_fields(source[source.index("class ") :]).items():
            member = cls.members.get(name)
            if member is not None and member.docstring is None:
                member.docstring = Docstring(text[0].upper() + text[1:] + ".", parent=member)
