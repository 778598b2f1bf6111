"""Every public function has an example that is run: in its docstring, in the guide or among the example programs."""

import doctest
import importlib
import re
import types
from pathlib import Path

import pytest
import torch

import basinet as bn

ROOT = Path(__file__).parents[1]
MODULES = [name for name in bn.__all__ if isinstance(getattr(bn, name), types.ModuleType)]
MODULES += ["diagnostics", "engine", "methods", "testing"]
SLOW = {"check_method"}


def functions() -> dict[str, types.FunctionType]:
    """The public functions by name: those of the package, and those that its public modules export."""
    named = {f"bn.{name}": getattr(bn, name) for name in bn.__all__}
    for module in MODULES:
        home = getattr(bn, module)
        named |= {f"bn.{module}.{name}": getattr(home, name) for name in getattr(home, "__all__", ())}
    return {name: value for name, value in named.items() if isinstance(value, types.FunctionType)}


def programs() -> str:
    """All programs that tests run: those of the guide and the examples."""
    pages = (path.read_text() for path in (ROOT / "docs" / "guide").glob("*.md"))
    blocks = [block for page in pages for block in re.findall(r"^```python\n(.*?)^```", page, re.DOTALL | re.MULTILINE)]
    return "\n".join([*blocks, *(path.read_text() for path in (ROOT / "examples").glob("*.py"))])


FUNCTIONS = functions()
DOCTESTS = sorted(name for name, function in FUNCTIONS.items() if ">>>" in (function.__doc__ or ""))


def test_every_public_function_has_an_example():
    text = programs()
    missing = [name for name in FUNCTIONS if name not in DOCTESTS and f"{name}(" not in text]
    assert len(FUNCTIONS) > 80 and not missing


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name.rpartition(".")[2] in SLOW else [])
        for name in DOCTESTS
        if not name.startswith("bn.metrics.")  # which have a test of their own
    ],
)
def test_the_example_of_a_function_runs(name):
    function = FUNCTIONS[name]
    scope = vars(importlib.import_module(function.__module__)) | {"bn": bn, "torch": torch}
    [test] = doctest.DocTestFinder(recurse=False).find(function, function.__name__, globs=scope)
    assert test.examples
    assert doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test).failed == 0
