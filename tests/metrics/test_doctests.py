"""The examples in the docstrings run, and every public name has one."""

import doctest
from types import ModuleType

import pytest

from basinet import metrics
from basinet.metrics import classification, regression


def examples(module: ModuleType) -> dict[str, doctest.DocTest]:
    found = doctest.DocTestFinder(exclude_empty=True).find(module)
    return {test.name.rpartition(".")[2]: test for test in found if test.examples}


@pytest.mark.parametrize("name", metrics.__all__)
def test_example(name):
    test = {**examples(classification), **examples(regression)}[name]
    assert doctest.DocTestRunner().run(test).failed == 0
