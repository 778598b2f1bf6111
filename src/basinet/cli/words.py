"""The words of the command line: options that commands share, and what they stand for."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import typer

if TYPE_CHECKING:
    from ..data import Rules
    from ..defaults import Maker
    from ..engine import Method

Target = Annotated[
    str | None,
    typer.Option(
        help="The column to predict; or several columns of labels that are there or not, 0 or 1, as rain,wind, or an "
        "array of them in an npz file."
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        help="classes, labels or real: what the target is. Default: several columns are labels; text, true/false and "
        "up to 20 different whole numbers are classes, other numbers are real."
    ),
]
Missing = Annotated[
    str,
    typer.Option(
        help="refuse, or impute: cells without a value (empty, NA, N/A, NaN, null, ?) become the training rows' median "
        "or most frequent value, and a further input says where."
    ),
]
Unseen = Annotated[
    str,
    typer.Option(
        help="refuse, or other: values of a category that training had once or never share one input, so that new ones "
        "can be predicted."
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="A column to use though it is constant or looks like an identifier; repeat for several."),
]
Drop = Annotated[list[str] | None, typer.Option(help="A column not to use; repeat for several.")]
Categories = Annotated[
    list[str] | None,
    typer.Option("--category", help="A column of numbers or dates whose values are names; repeat for several."),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="FILE.py:NAME, a function that returns the network as an nn.Module: of (inputs, outputs), called with how "
        "many there are, or of nothing. Default: for real targets a network whose numbers are embedded and that "
        "predicts its noise, for classes and labels an MLP.",
    ),
]
Images = Annotated[Path | None, typer.Option("--folder", help="Where the files of an image set are.")]
Members = Annotated[int, typer.Option(min=1, help="Size of the ensemble.")]
Settings = Annotated[
    list[str] | None,
    typer.Option("--set", help="NAME=VALUE, a hyperparameter of the method, such as epochs=100; repeat for several."),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ... Default: the GPU where there is one.")]
Samples = Annotated[
    int | None, typer.Option(min=1, help="Samples a member. Default: what the method says; all where they are few.")
]
FOLDER = Annotated[Path, typer.Argument(help="The folder that `basinet fit` wrote.")]


def make_rules(
    kind: str | None,
    missing: str,
    unseen: str,
    keep: list[str] | None,
    drop: list[str] | None,
    categories: list[str] | None,
) -> Rules:
    from ..data import Rules

    words: dict[str, Any] = {"kind": kind, "missing": missing, "unseen": unseen}  # Rules knows which words there are
    return Rules(**words, keep=tuple(keep or ()), drop=tuple(drop or ()), categories=tuple(categories or ()))


_KINDS: dict[Any, tuple[type, ...]] = {
    bool: (bool,),
    int: (int,),
    float: (int, float),
    str: (str,),
    type(None): (type(None),),
}


def make_recipe(name: str, settings: Sequence[str]) -> Method:
    """A method with the hyperparameters of NAME=VALUE."""
    from ..core.nearest import did_you_mean
    from ..methods import find

    cls = find(name)
    hints = get_type_hints(cls)
    plain = {f.name: kinds for f in fields(cls) if (kinds := _plain(hints[f.name]))}
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or key not in plain:
            raise ValueError(f"expected --set NAME=VALUE of {cls.__name__}, got {setting!r}.{did_you_mean(key, plain)}")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        if not any(type(value) in _KINDS[x] if x in _KINDS else value == x for x in plain[key]):
            told = " or ".join("None" if x is type(None) else x.__name__ if x in _KINDS else str(x) for x in plain[key])
            raise ValueError(f"expected {key} of {cls.__name__} as {told}, got {text!r}")
        found[key] = value
    return cls(**found)


def _plain(hint: Any) -> list[Any]:
    """What a hyperparameter may be, if it is a number or a word and no object: types, and the words themselves."""
    if get_origin(hint) is Literal:
        return list(get_args(hint))
    if get_origin(hint) in (Union, UnionType):
        found = [_plain(x) for x in get_args(hint)]
        return list(dict.fromkeys(x for kinds in found for x in kinds)) if all(found) else []
    if get_origin(hint) in (tuple, Sequence):  # of words: one is enough here
        return [str] if str in get_args(hint) else []
    return [hint] if hint in _KINDS else []


def check_conformal(level: float, kind: str, rows: int) -> None:
    """Refuses a calibration on this many rows that could not be made, before training."""
    from ..predict.conformal import needed

    if not 0 < level < 1:
        raise ValueError(f"expected --conformal between 0 and 1, such as 0.9, got {level:g}")
    if kind == "labels":
        raise ValueError("--conformal is for classes and numbers, and the target is labels: leave it out")
    if rows < needed(level):
        raise ValueError(
            f"--conformal {level:g} takes {needed(level):,} rows or more to calibrate on, got {rows:,}: raise --val"
        )


def make_engine(device: str | None) -> Any:
    from ..engine import Engine

    return Engine(device=device, progress=True)


def user_network(place: str) -> Maker:
    """The network that FILE.py:NAME makes, as a function of (inputs, outputs)."""
    from torch import nn

    path, _, name = place.rpartition(":")
    if not path or not name:
        raise ValueError(f"expected --model FILE.py:NAME, got {place!r}")
    if not Path(path).is_file():
        raise ValueError(f"--model {place}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"basinet_model_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--model {place}: expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))  # what it imports lies beside it, as for a script
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise ValueError(f"--model {place}: {path} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    function = vars(module).get(name)
    if not callable(function):
        raise ValueError(f"--model {place}: {path} has no function {name!r}")
    sized = _takes_sizes(function, place)

    def make(inputs: int, outputs: int) -> nn.Module:
        try:
            network = function(inputs, outputs) if sized else function()
        except Exception as error:  # whatever the user's function raises
            raise ValueError(f"--model {place}: {name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(network, nn.Module):
            raise ValueError(f"--model {place}: expected {name} to return an nn.Module, got {type(network).__name__}")
        return network

    return make


def _takes_sizes(function: Any, place: str) -> bool:
    """Whether a user's function wants (inputs, outputs): it requires two arguments, or names its first two so."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arguments = list(inspect.signature(function).parameters.values())
    required = [p for p in arguments if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    first = [p for p in arguments if p.kind in positional][:2]
    if [p.name for p in first] == ["inputs", "outputs"] and all(p in first for p in required):
        return True
    if len(required) == 2 and required == first:
        return True
    if not required:
        return False
    told = ", ".join(p.name for p in required)
    raise ValueError(f"--model {place}: expected a function of (inputs, outputs) or of nothing, got one of ({told})")
