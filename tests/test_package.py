"""What `import basinet` gives: every public name, whatever was imported before, and little work until one is used."""

import ast
import importlib
import pickle
import re
import subprocess
import sys
from pathlib import Path
from types import FunctionType

import pytest

import basinet as bn

HEAVY = {"rich", "typer", "sklearn", "scipy", "matplotlib", "pandas", "plotly", "PIL", "pyarrow"}
SAME = [
    "compare",
    "cost",
    "fit",
    "input_gradients",
    "online",
]  # a module and the function in it


def python(code: str) -> list[str]:
    """What a fresh process prints, in words."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_basinet_needs_nothing():
    loaded = python("import sys, basinet; print(*sys.modules)")
    assert not {*HEAVY, "torch", "numpy"} & {name.split(".")[0] for name in loaded}
    assert not [name for name in loaded if name.startswith("basinet.")]


def test_fitting_does_not_import_what_comes_after_it():
    loaded = python("import sys, basinet as bn; bn.fit, bn.Problem, bn.MAP, bn.score; print(*sys.modules)")
    assert "basinet.fit" in loaded
    assert not HEAVY & {name.split(".")[0] for name in loaded}
    assert not {f"basinet.{name}" for name in ("advice", "cli", "compare", "cost.cost", "report", "tables")} & set(
        loaded
    )


def test_a_fit_that_compiles_nothing_does_not_import_the_compiler():
    """Its import takes seconds, on a fresh machine ten, before the first step."""
    code = """
import sys, torch, basinet as bn
data = bn.Data(torch.randn(8, 2), torch.randn(8, 1))
problem = bn.Problem(lambda: torch.nn.Linear(2, 1), bn.likelihoods.Gaussian(noise=1.0))
posterior = bn.fit(bn.MAP(epochs=2), problem, data, members=2, engine=bn.Engine(progress=False))
posterior.predict(data.inputs)
print(*sys.modules)
"""
    assert not {"torch._dynamo", "sympy"} & set(python(code))


def test_what_type_checkers_see_is_what_there_is():
    body = ast.parse(Path(bn.__file__).read_text()).body
    block = next(node for node in body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    declared = {}
    for node in block.body:
        for alias in node.names:
            home = importlib.import_module(f"basinet.{node.module or alias.name}")
            declared[alias.name] = getattr(home, alias.name) if node.module else home
    modules = {"diagnostics", "engine", "methods", "testing"}  # attributes that `from basinet import *` leaves out
    assert set(declared) == {*bn.__all__, *bn.methods.discover(), *modules} - {"__version__"}
    assert all(getattr(bn, name) is value for name, value in declared.items())


def test_from_import_and_dir_know_every_name():
    given: dict[str, object] = {}
    exec("from basinet import *", given)
    assert set(bn.__all__) <= set(given)
    assert {*bn.__all__, "Laplace", "SWAG"} <= set(dir(bn))


@pytest.mark.parametrize("name", SAME)
def test_a_name_that_is_a_module_too_is_the_function(name):
    importlib.import_module(f"basinet.{name}")
    assert isinstance(getattr(bn, name), FunctionType)


@pytest.mark.slow
def test_the_function_is_there_in_every_order_of_imports():
    printing = "; print(" + ", ".join(f"type(basinet.{name}).__name__" for name in SAME) + ")"
    for first in ("import basinet.compare.run, basinet.fit", "from basinet.cost.cost import Meter; import basinet"):
        assert python(first + printing) == ["function"] * len(SAME)


def test_functions_that_name_the_package_can_be_pickled_with_it():
    assert pickle.loads(pickle.dumps(bn)) is bn


def test_a_script_that_imports_the_package_can_be_sent_to_other_machines():
    """Functions of `__main__` travel with what they name: what Ray, dask, submitit and loky do with cloudpickle."""
    script = (
        "import basinet as bn, cloudpickle, pickle\n"
        "def network():\n    return bn.networks.MLP(2, 3)\n"
        "content = cloudpickle.dumps(network)\ndel network\n"
        "print(type(pickle.loads(content)()).__name__)"
    )
    assert python(script) == ["MLP"]


def test_other_modules_are_attributes_and_other_names_are_refused():
    assert bn.engine.Engine is bn.Engine and bn.methods.discover()["MAP"] is bn.MAP
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = bn.nonsense


def test_loading_knows_every_class_that_a_file_may_name():
    said = python(
        "import pkgutil, importlib, basinet as bn\n"
        "from basinet.core.registry import _classes\n"
        "import basinet.tables.replay  # which reads its own files\n"
        "bn.load, bn.tables, bn.methods.discover()  # what loading does\n"
        "before = set(_classes)\n"
        "print(len(before))\n"
        "for found in pkgutil.walk_packages(bn.__path__, 'basinet.'):\n"
        "    if not found.name.startswith(('basinet.cli', 'basinet.__main__')):\n"
        "        importlib.import_module(found.name)\n"
        "print(*set(_classes) - before)\n"
    )
    assert int(said[0]) > 40 and not said[1:]


def test_the_release_has_one_version_and_one_date():
    root = Path(bn.__file__).parents[2]
    citation, changes = (root / name for name in ("CITATION.cff", "CHANGELOG.md"))
    cited = dict(line.split(": ", 1) for line in citation.read_text().splitlines() if re.match(r"[a-z-]+: \S", line))
    released = re.search(r"^## \[(\d+\.\d+\.\d+)\] - (\d{4}-\d\d-\d\d)$", changes.read_text(), re.MULTILINE)
    assert (cited["version"], cited["date-released"]) == released.groups() and cited["version"] == bn.__version__
