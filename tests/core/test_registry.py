"""What can be saved by name."""

from dataclasses import dataclass
from typing import ClassVar

import pytest

from basinet.core.registry import Saved, find, known


def test_final_classes_are_registered_by_kind_and_name_and_bases_are_not():
    class Shape(Saved, kind="shape"):
        pass

    class Circle(Shape):
        pass

    class Round(Shape, kind="shape"):
        pass

    assert find("shape/Circle") is Circle
    assert known("shape") == {"Circle": Circle}
    assert find("shape/Round") is None and find("shape/Shape") is None
    assert Circle.kind == "shape"


def test_an_unknown_name_is_nothing_and_imports_nothing():
    assert find("os/system") is None
    assert known("no such kind") == {}


def test_a_field_named_kind_is_refused_where_it_would_hide_the_class():
    class Tool(Saved, kind="tool"):
        pass

    with pytest.raises(TypeError, match="Saw has a field named 'kind', which names the group"):

        @dataclass(frozen=True)
        class Saw(Tool):
            kind: str = "hand"  # type: ignore[misc]

    with pytest.raises(TypeError, match=r"Axe has a field named 'kind'.*give the field another name"):

        @dataclass(frozen=True)
        class Axe(Tool):
            kind: str  # type: ignore[misc]

    assert known("tool") == {}

    class Alone(Saved):  # a class that is a group of its own says so
        kind: ClassVar[str] = "alone"

    assert find("alone/Alone") is Alone
