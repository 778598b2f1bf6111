"""The command's root: what `basinet` on its own and `basinet --version` print."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from io import TextIOWrapper
from typing import Annotated, Any

import typer

from ..core.version import VERSION
from .console import out

app = typer.Typer(
    help="Bayesian neural networks and deep ensembles: posteriors that are tested to be posteriors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def flowing(command: Callable[..., Any] | None) -> str:
    """The docstring of a command, with one line per paragraph."""
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in (inspect.getdoc(command) or "").split("\n\n"))


def _version(wanted: bool) -> None:
    if wanted:
        out.print(VERSION, highlight=False)
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def _root(version: Version = False) -> None:
    for stream in (sys.stdout, sys.stderr):  # one of ascii or latin-1 lacks signs of the tables: better ? than an error
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")
