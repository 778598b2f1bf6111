"""What an editor and `help` know of the public names: a wrong call is a type error, every field is described."""

import inspect
import os
import pydoc
import subprocess
import sys
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import basinet as bn
from basinet.core.documented import described_fields, documented_fields, plain_doc, summary

ROOT = Path(__file__).parents[1]
WRONG = [
    'bn.Laplace(structur="full")',
    'bn.MAP(epochs="many")',
    "bn.SWAG(rank=10.5)",
    "bn.Lapalce()",
    "bn.likelihoods.Gaussian(sigma=1.0)",
    "bn.fit(bn.MAP(), problem, data, member=5)",
    "posterior.predict(data.inputs).stdev",
    'bn.score(posterior, data)["nll"].upper()',
    "bn.temper(posterior)",
    "bn.mix(posterior)",
]
RIGHT = """import torch

import basinet as bn

problem = bn.Problem(lambda: torch.nn.Linear(2, 1), bn.likelihoods.Gaussian(noise=1.0))
data = bn.Data(torch.zeros(4, 2), torch.zeros(4, 1))
posterior = bn.fit(bn.Laplace(structure="full"), problem, data, members=2)
bn.engine.Engine, bn.methods.discover(), bn.testing.check_method(bn.EMA())
"""


@pytest.mark.slow
def test_a_type_checker_finds_every_wrong_call_and_no_other(tmp_path):
    (tmp_path / "calls.py").write_text(RIGHT + "\n".join(WRONG) + "\n")
    command = ["-m", "mypy", "--strict", "--follow-imports=silent", "--config-file=", "calls.py"]
    environment = os.environ | {"MYPYPATH": str(ROOT / "src")}
    run = subprocess.run([sys.executable, *command], capture_output=True, text=True, env=environment, cwd=tmp_path)
    first = RIGHT.count("\n") + 1
    expected = list(range(first, first + len(WRONG)))
    refused = [int(line.split(":")[1]) for line in run.stdout.splitlines() if " error: " in line]
    assert len(WRONG) == 10 and refused == expected, run.stdout


@pytest.mark.parametrize("cls", [*bn.methods.discover().values(), bn.Engine, bn.Problem, bn.optim.Adam], ids=str)
def test_help_describes_every_field(cls):
    text = pydoc.plain(pydoc.render_doc(cls))
    for field in fields(cls):
        line = next(line for line in text.splitlines() if line.startswith(f" |      {field.name}"))
        below = text.split(line, 1)[1].splitlines()[1]
        assert below.startswith(" |          ") and below[12:].strip(), f"{field.name} has no description"


def test_a_description_is_whole_and_the_docstring_stays_plain():
    assert "or up to 6,000 for 32 passes, or 10 passes if that is more." in " ".join(
        (inspect.getdoc(bn.MAP) or "").split()
    )
    assert "Fields:" not in plain_doc(bn.MAP) and summary(bn.MAP).endswith("a deep ensemble.")
    assert not summary(bn.MAP).startswith(" ")


def public_dataclasses():
    rooms = (bn, bn.families, bn.filters, bn.likelihoods, bn.methods, bn.optim, bn.priors, bn.tables, bn.terms)
    public = [getattr(room, name) for room in rooms for name in dir(room) if not name.startswith("_")]
    classes = {value for value in public if is_dataclass(value)}
    return sorted((cls for cls in classes | set(bn.methods.discover().values()) if isinstance(cls, type)), key=repr)


def test_every_field_of_a_public_dataclass_is_described():
    classes = public_dataclasses()
    missing = [
        f"{cls.__name__}.{f.name}" for cls in classes for f in fields(cls) if f.name not in documented_fields(cls)
    ]
    assert len(classes) > 90 and not missing, "describe them in the docstring below the field"
    silent = [cls.__name__ for cls in classes if fields(cls) and "Fields:" not in (inspect.getdoc(cls) or "")]
    assert not silent, "decorate them by with_field_doc, so that help() shows their fields"


def test_descriptions_of_fields_are_read_over_several_lines():
    source = '''class A:
    """Words: not a field."""

    a: int = 1  # one
    #             and more
    b: tuple[int, ...] = (
        2,  # two
    )
    c: str = "#"  # type: ignore[assignment]  # three
    d: int = 4
    e: float = 1.0  # (), what a docstring replaces
    """Words
    on e."""
    """No words on anything."""

    def f(self) -> None:
        g: int = 5  # no field
'''
    assert described_fields(source) == {"a": "one and more", "b": "two", "c": "three", "e": "Words on e."}
