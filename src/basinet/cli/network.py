"""The network of a command: a user's own from a Python file, which is run, or the built-in one with other widths."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .console import say

if TYPE_CHECKING:
    from torch import nn

    from ..fitted import Maker

WIDEST, DEEPEST = 100_000, 100  # units of a hidden layer, and hidden layers


def hidden_widths(text: str | None) -> tuple[int, ...] | None:
    """The hidden layers of --width: 100,100."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > DEEPEST or not all(
        p.isascii() and p.isdigit() and len(p) < 7 and 0 < int(p) <= WIDEST for p in parts
    ):
        raise ValueError(
            f"expected --width as widths of hidden layers from 1 to {WIDEST:,}, 100,100 say, got {text[:60]!r}"
        )
    return tuple(map(int, parts))


def user_network(place: str) -> Maker:
    """The network that FILE.py:NAME makes, as a function of (inputs, outputs). The file is run."""
    from torch import nn

    path, _, name = place.rpartition(":")
    if not path or not name:
        raise ValueError(f"expected --model FILE.py:NAME, got {place[:200]!r}")
    if not Path(path).is_file():
        raise ValueError(f"--model {place}: there is no file {path}")
    function = _loaded(place, path, name)
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


def _loaded(place: str, path: str, name: str) -> Any:
    """The function of that name, after the file was run."""
    spec = importlib.util.spec_from_file_location(f"basinet_model_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--model {place}: expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    say(f"{path} is run as a program, for its function {name}")
    sys.path.insert(0, str(Path(path).resolve().parent))  # what it imports lies beside it, as for a script
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:  # whatever the user's file raises
        raise ValueError(f"--model {place}: {path} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    function = vars(module).get(name)
    if not callable(function):
        raise ValueError(f"--model {place}: {path} has no function {name!r}")
    return function


def _takes_sizes(function: Any, place: str) -> bool:
    """Whether a user's function wants (inputs, outputs): it requires two arguments, or names its first two so."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        arguments = list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as error:  # a builtin without one
        raise ValueError(f"--model {place}: expected a Python function, got {function!r}") from error
    required = [p for p in arguments if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    first = [p for p in arguments if p.kind in positional][:2]
    if [p.name for p in first] == ["inputs", "outputs"] and all(p in first for p in required):
        return True
    if len(required) == 2 and required == first:
        return True
    if not required:
        return False
    wanted = ", ".join(p.name for p in required)
    raise ValueError(f"--model {place}: expected a function of (inputs, outputs) or of nothing, got one of ({wanted})")
