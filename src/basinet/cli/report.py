"""The command that turns a run folder into a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .app import app
from .console import clear_errors, tell


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="The folder that `basinet compare` wrote.")],
    place: Annotated[Path | None, typer.Option("--out", help="The page. Default: RUN/report.html.")] = None,
    figures: Annotated[Path | None, typer.Option(help="Also write the figures to this folder as PNG and SVG.")] = None,
    show: Annotated[bool, typer.Option("--open", help="Open the page in the browser.")] = False,
) -> None:
    """Write a page that answers: what won, is that real, what does it cost, how far to trust it."""
    from ..report import write_figures, write_report

    with clear_errors():
        path = write_report(run, place)
        tell(f"Report: {path} ({path.stat().st_size / 1e6:.1f} MB, opens without a network)")
        if figures is not None:
            written = write_figures(run, figures)
            tell(f"Figures: {figures} ({len(written)} files)")
        if show:
            typer.launch(str(path))
