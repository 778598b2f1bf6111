"""Studies are programs of a user: they take the public API, but for what is listed here with its reason."""

import ast
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

import basinet as bn

ROOT = Path(__file__).parents[2]
STUDIES = ROOT / "studies"
MODULES = {  # whose names are public
    "basinet.curvature", "basinet.data", "basinet.data.toys", "basinet.diagnostics", "basinet.engine",
    "basinet.families", "basinet.filters", "basinet.methods", "basinet.metrics", "basinet.networks", "basinet.optim",
    "basinet.tables", "basinet.testing",
}  # fmt: skip
PRIVATE = {  # and why; what is no longer imported leaves this list
    "core.nearest.did_you_mean": "errors in the words of the command line",
    "pool.FileError": "a pool of another network is refused before old results are shown",
    "pool.Pool": "a pool of another network is refused before old results are shown",
    "pool.behaviour": "a pool of another network is refused before old results are shown",
    "pool.append_record": "records as the pool writes them, with versions and time",
    "pool.describe": "recipes in records as saved posteriors have them",
    "pool.fingerprint": "tells records of an older default from those of today",
    "pool.read_records": "reads what append_record wrote",
    "compare.default_problem": "the problem that compare chooses is what is studied",
    "compare.problems.default_problems": "the default for classes is what is studied",
    "defaults.candidates_for": "the default of tables is what is studied",
    "pilot": "the default of tables is what is studied",
    "pilot.pilot": "the default of tables is what is studied",
    "pilot.with_step_of": "the default of tables is what is studied",
    "engine.method.patience_of": "a part of the default that records are of",
    "saving.describe_problem": "a part of the default that records are of",
    "tables.columns.moments": "rows standardised as the command line does it",
    "tables.crossed.ROWS": "a part of the default that records are of",
    "tables.crossed.crossed": "validation rows for each member, as the command line has them",
    "tables.targets.scores_in_units": "scores in units of the target, as the command line has them",
    "compare.references.fit_reference": "boosting as compare runs it",
    "compare.api.Asking": "a comparison of several seeds, with its folder",
    "compare.api.carry_out": "a comparison of several seeds, with its folder",
    "compare.rows.Row": "every row that compare offers",
    "compare.rows.choose": "every row that compare offers",
    "calibrate.conformal_sets.OF_CLASSES": "all scores that conformal has",
    "calibrate.conformal_sets.OF_NUMBERS": "all scores that conformal has",
    "calibrate.conformal_sets.promised": "the law of coverage that the study tests",
    "tables.replay.StreamPlan": "the command stream, record by record",
    "tables.replay.begin": "the command stream, record by record",
    "tables.replay.Replay": "the command stream, record by record",
    "data.formats.read_npz": "an npz file with errors that name it",
    "data.images.SETS": "some rows of an image set, without the memory of all",
    "data.images.as_data": "some rows of an image set, without the memory of all",
    "data.images.read_images": "some rows of an image set, without the memory of all",
    "predict.Outputs": "outputs that are mixed over networks without running them again",
    "predict.Via": "the type of via=",
    "scoring.subsets_of": "the subsets that size_curve scores, for mixtures of samples",
    "calibrate.weigh.stacked": "weights of many subsets of members, from log-probabilities in files",
    "pool.files.atomically": "predictions in files that are whole or not there",
    "cli.network.user_network": "a network of the user's, as the command line names it",
}


def private(source: str) -> Iterator[str]:
    """What a program imports of the package that is not public."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.startswith("basinet."))
        elif isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").split(".")[0] == "basinet":
            for alias in node.names:
                name = f"{node.module}.{alias.name}".removeprefix("basinet.")
                if not public(str(node.module), alias.name):
                    yield name


def public(module: str, name: str) -> bool:
    if module == "basinet":
        return name in dir(bn)
    home = import_module(module)
    if module in MODULES and name in getattr(home, "__all__", dir(home)):
        return True
    member = getattr(home, name)
    return f"{getattr(member, '__module__', '')}.{getattr(member, '__name__', '')}" in documented()


def documented() -> set[str]:
    """Names with a place in the API reference."""
    pages = (ROOT / "docs" / "api").glob("*.md")
    return {name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)}


def test_studies_take_the_public_api_and_nothing_else_but_what_is_listed():
    used = {name for path in STUDIES.rglob("*.py") for name in private(path.read_text())}
    assert used - PRIVATE.keys() == set(), "take the public API, or give a reason"
    assert PRIVATE.keys() - used == set(), "no longer imported: take it off the list"


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("from basinet import MAP, fit\nfrom basinet.optim import Adam", []),
        ("from basinet.predict import RealPredictive", []),
        ("from basinet import posterior, pilot", ["pilot", "posterior"]),
        ("from basinet.fit import fit\nfrom basinet.pool import describe", ["pool.describe"]),
        ("import basinet as bn\nimport basinet.pool", ["basinet.pool"]),
        ("def f():\n    from basinet.engine.method import plan_of", ["engine.method.plan_of"]),
    ],
)
def test_the_rule_finds_what_is_private(source, names):
    assert sorted(private(source)) == names
