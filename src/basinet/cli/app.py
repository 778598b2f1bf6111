"""The command's root: what `basinet` alone and `basinet --version` say."""

from __future__ import annotations

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
    pass
