"""The examples in the docstrings run, and every public name has one."""

import doctest
import importlib
import pkgutil

import pytest

from basinet import metrics


def examples() -> dict[str, doctest.DocTest]:
    tests = {}
    for module in pkgutil.iter_modules(metrics.__path__):
        for test in doctest.DocTestFinder().find(importlib.import_module(f"{metrics.__name__}.{module.name}")):
            if test.examples:
                tests[test.name.rpartition(".")[2]] = test
    return tests


@pytest.mark.parametrize("name", metrics.__all__)
def test_example(name):
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(examples()[name]).failed == 0
