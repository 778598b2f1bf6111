"""What can be saved by name."""

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
