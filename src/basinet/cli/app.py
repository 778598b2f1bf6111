"""The command's root: what `basinet` alone and `basinet --version` say."""

from __future__ import annotations

import sys
from io import TextIOWrapper
from typing import Annotated

import typer

from ..core.version import VERSION
from .console import out

app = typer.Typer(
    help="Bayesian neural networks and deep ensembles: posteriors that are tested to be posteriors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


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
