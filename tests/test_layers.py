"""The import rule: a package imports only from those above it in the design."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import basinet

ROOT = Path(basinet.__file__).parent
LAYERS = (
    {"core", "cost.demand"},
    {"layers"},
    {"data"},
    {"problem"},
    {"testing.exact", "testing.noisy"},
    {"families"},
    {"optim"},
    {"networks"},
    {"metrics"},
    {"diagnostics"},
    {"curvature"},
    {"calibrate.conformal_sets"},
    {"predict"},
    {"calibrate.recalibrated", "cost.curvature", "cost.prediction"},
    {"calibrate.temperature"},
    {"pool"},
    {"engine"},
    {"cost.recipe"},
    {"repulsion"},
    {"averaging"},
    {"chains"},
    {"variational"},
    {"filters"},
    {"methods"},
    {"posterior"},
    {"input_gradients"},
    {"saving"},
    {"scoring"},
    {"calibrate", "trial", "start", "longer", "diagnose", "arguments", "constant", "ended", "shares"},
    {"cast"},
    {"fit"},
    {"sequential"},
    {"online"},
    {"changes"},
    {"defaults", "pilot"},
    {"testing", "checkpoints", "cost", "tables"},
    {"sklearn"},
    {"advice"},
    {"compare"},
    {"report"},
    {"cli"},
    {"__main__"},
)
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}
ROOMS = {name.split(".")[0] for name in LEVEL if "." in name}  # whose files stand in several layers
LATE = {("posterior", "saving"), ("posterior", "online")}  # methods that hand themselves over when they are called
FILES = sorted(path.relative_to(ROOT) for path in ROOT.rglob("*.py"))


def imports(path: Path, source: str) -> Iterator[tuple[str, bool]]:
    """Modules of the package that a file imports, dotted and without its name, and whether that is at its top."""
    package = path.parent.parts
    tree = ast.parse(source)
    for node in tree.body:
        yield from ((name, True) for name in _from(node, package))
    for node in tree.body:
        yield from ((name, False) for name in _from(node, package, inside=True))


def _from(node: ast.AST, package: tuple[str, ...], inside: bool = False) -> Iterator[str]:
    """What a statement imports: at its own level (with `if` and `try`), or inside functions and classes."""
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        for child in node.orelse:
            yield from _from(child, package, inside)
        return
    if not inside:
        yield from _named(node, package)
    for child in ast.iter_child_nodes(node):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            if inside:
                yield from _from(child, package)
                yield from _from(child, package, inside=True)
        else:
            yield from _from(child, package, inside)


def _named(node: ast.AST, package: tuple[str, ...]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            if alias.name.split(".")[0] == "basinet":
                yield alias.name.partition(".")[2]
    elif isinstance(node, ast.ImportFrom):
        module = (node.module or "").split(".") if node.module else []
        if node.level:
            above = package[: len(package) - node.level + 1]
        elif module and module[0] == "basinet":
            above, module = (), module[1:]
        else:
            return
        for alias in node.names:
            yield ".".join([*above, *module, alias.name])


def place(module: str) -> str:
    """The name in LAYERS under which a module stands: its own, or that of its package."""
    parts = module.split(".")
    return ".".join(parts[:2]) if ".".join(parts[:2]) in LEVEL else parts[0]


def violations(path: Path, source: str) -> list[str]:
    """What a file imports against the rule, in words."""
    if path == Path("__init__.py"):
        return []
    owner = place(".".join(path.with_suffix("").parts))
    if owner in ROOMS and path.name == "__init__.py":
        return [
            f"{path} imports {module} for everyone who takes one file" for module, top in imports(path, source) if top
        ]
    if owner not in LEVEL:
        return [f"{path} has no place in the layers: add it to LAYERS"]
    messages = []
    for module, at_top in imports(path, source):
        target = place(module)
        if target == owner:
            parts = module.split(".")
            if owner == "methods" and len(parts) > 1 and (ROOT / "methods" / f"{parts[1]}.py").exists():
                messages.append(f"{path} imports {module}: methods never import each other")
        elif target not in LEVEL:
            messages.append(f"{path} imports {module or 'the package itself'}, which is in no layer")
        elif LEVEL[target] >= LEVEL[owner] and ((owner, target) not in LATE or at_top):
            messages.append(f"{path} imports {module}, which is not above it")
    return messages


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_file_imports_only_from_the_layers_above_it(path):
    assert not violations(path, (ROOT / path).read_text())


@pytest.mark.parametrize(
    ("path", "source", "count"),
    [
        ("problem/x.py", "from ..core.tree import leaves\nfrom ..data import Data\nfrom . import priors", 0),
        ("core/x.py", "from ..data import Data", 1),
        ("data/x.py", "import basinet.engine", 1),
        ("data/x.py", "import basinet", 1),
        ("data/x.py", "from basinet.fit import fit\nfrom basinet import Data", 2),
        ("data/x.py", "def f():\n    if f:\n        from ..engine import Engine", 1),
        ("data/x.py", "class A:\n    def f(self):\n        def g():\n            import basinet.engine", 1),
        ("data/x.py", "try:\n    from ..engine import Engine\nexcept ImportError:\n    pass", 1),
        ("data/x.py", "if TYPE_CHECKING:\n    from ..engine import Engine\nelse:\n    from ..fit import fit", 1),
        ("engine/x.py", "if typing.TYPE_CHECKING:\n    from ..testing import Bench", 0),
        ("scoring.py", "from . import metrics", 0),
        ("scoring.py", "from . import fit", 1),
        ("scoring.py", "from .fit import fit", 1),
        ("posterior.py", "class P:\n    def save(self):\n        from .saving import save", 0),
        ("posterior.py", "from .saving import save", 1),
        ("testing/conformance.py", "from ..compare import compare", 1),
        ("calibrate/temperature.py", "from .recalibrated import RecalibratedPredictive", 0),
        ("calibrate/temperature.py", "from .temper import temper", 1),
        ("calibrate/temper.py", "from .temperature import Temperature\nfrom ..posterior import Posterior", 0),
        ("predict/x.py", "from ..cost.prediction import holding", 1),
        ("calibrate/__init__.py", "from .temper import temper", 1),
        ("calibrate/__init__.py", "def f():\n    from .temper import temper", 0),
        ("methods/map.py", "from .ema import EMA", 1),
        ("methods/map.py", "from . import ema", 1),
        ("methods/map.py", "def f():\n    from ..methods.ema import EMA", 1),
        ("methods/map.py", "from ..engine import Method\nimport torch", 0),
        ("elsewhere.py", "", 1),
    ],
)
def test_the_rule_finds_what_breaks_it(path, source, count):
    assert len(violations(Path(path), source)) == count


def test_the_tree_that_newcomers_read_has_the_same_order():
    text = (ROOT.parents[1] / "CONTRIBUTING.md").read_text().split("src/basinet/\n")[1].split("\ntests/")[0]
    entries = [line.split()[0] for line in text.splitlines() if line.startswith("  ") and line[2] != " "]
    names = [entry.rstrip("/").removesuffix(".py") for entry in entries]
    rooms = [name for name in names if name in ROOMS]
    assert set(rooms) == ROOMS and names[: len(rooms)] == rooms, "rooms in several layers come first"
    levels = [LEVEL[name] for name in names[len(rooms) :]]
    assert levels == sorted(levels)
    assert {*names, "__main__"} == {name for name in LEVEL if "." not in name}
    files = [line.split()[0] for line in text.splitlines() if line.startswith("    ") and line[4] != " "]
    assert all(list(ROOT.glob(f"*/{name}")) for name in files)
    placed = {f"{name.split('.')[1]}.py" for name in LEVEL if "." in name}
    assert placed <= set(files)


def test_the_report_needs_no_torch_of_its_own():
    for path in (path for path in FILES if path.parts[0] == "report"):
        nodes = list(ast.walk(ast.parse((ROOT / path).read_text())))
        named = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
        named += [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]
        assert not [name for name in named if name.split(".")[0] == "torch"], path


def vmaps(source: str) -> bool:
    """Whether the code (not its words) mentions vmap."""
    for node in ast.walk(ast.parse(source)):
        names = (
            [node.id]
            if isinstance(node, ast.Name)
            else [node.attr]
            if isinstance(node, ast.Attribute)
            else [alias.name.split(".")[-1] for alias in node.names]
            if isinstance(node, (ast.Import, ast.ImportFrom))
            else []
        )
        if "vmap" in names:
            return True
    return False


def test_vmap_stands_in_one_file():
    assert [path.as_posix() for path in FILES if vmaps((ROOT / path).read_text())] == ["core/lift.py"]


@pytest.mark.parametrize(
    ("source", "places"),
    [
        ("from torch.func import grad, vmap", True),
        ("torch.func.vmap(f)", True),
        ("from torch import func\nfunc.vmap", True),
        ('"""runs under vmap"""\nx = "vmap"  # vmap', False),
    ],
)
def test_vmap_is_found_in_code_and_not_in_words(source, places):
    assert vmaps(source) == places
