"""Commands about the library itself: its methods, its checks, its studies."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from ..core.documented import documented_fields, summary
from .app import app
from .console import clear_errors, err, out


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="A method to describe in full.")] = None) -> None:
    """List the methods, or describe one with its hyperparameters and defaults."""
    from ..methods import discover, find

    with clear_errors():
        if name is None:
            listed = Table("method", "what it is")
            for key, cls in discover().items():
                listed.add_row(key, summary(cls))
            out.print(listed)
            return
        cls = find(name)
        out.print(f"[bold]{cls.__name__}[/bold]", highlight=False)
        module = inspect.getmodule(cls)
        out.print((module and inspect.getdoc(module)) or "", markup=False, highlight=False)
        out.print()
        out.print(inspect.getdoc(cls) or "", markup=False, highlight=False)
        told = documented_fields(cls)
        shown = Table("hyperparameter", "default", "what it is")
        for f in fields(cls):
            default = "required" if f.default is MISSING else repr(f.default)
            shown.add_row(f.name, default, told.get(f.name, ""))
        out.print(shown)


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Methods to check. Default: all, and the problem.")] = None,
) -> None:
    """Hold every method to its theory and invariants; exit status 1 if any check fails."""
    from ..methods import discover, find
    from ..testing import method_checks, problem_checks

    with clear_errors():
        chosen = [find(n) for n in names] if names else list(discover().values())
        shown = Table("of", "check", "theory says", "off by", "tolerance", "")
        failed = total = 0
        with err.status("checking") as status:
            for checks in ([] if names else [problem_checks()]) + [method_checks(cls()) for cls in chosen]:
                for c in checks:
                    status.update(f"{c.subject}: {c.name}")
                    total += 1
                    failed += not c.passed
                    verdict = "[green]pass[/green]" if c.passed else "[bold red]FAIL[/bold red]"
                    shown.add_row(c.subject, c.name, c.says, f"{c.measured:.2g}", f"{c.tolerance:.2g}", verdict)
        out.print(shown)
        out.print(f"{total - failed} passed, {failed} failed", highlight=False)
        if failed:
            raise typer.Exit(1)


@app.command()
def study(
    name: Annotated[str | None, typer.Argument(help="The study to run. Without it: list them.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of data sets that are not built in.")] = None,
    place: Annotated[Path | None, typer.Option("--out", help="Where records go. Default: runs/study-NAME.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda ... Default: the GPU where there is one.")] = None,
    sets: Annotated[str, typer.Option(help="Data sets to run, as boston,yacht. Default: all.")] = "",
    methods: Annotated[str, typer.Option(help='Methods to run, as "MAP,deep ensemble". Default: all.')] = "",
    splits: Annotated[int | None, typer.Option(min=1, help="Splits of each set to run. Default: all.")] = None,
    examples: Annotated[
        int | None,
        typer.Option(min=10, help="At most so many examples of each part of a set, for a quick look."),
    ] = None,
) -> None:
    """Run a study: a question with an answer that can be measured again."""
    from .. import studies

    with clear_errors("what was done is kept; the same command goes on"):
        if name is None:
            listed = Table("study", "question")
            for key, module in studies.discover().items():
                listed.add_row(key, (inspect.getdoc(module) or "").split("\n")[0])
            out.print(listed)
            return
        chosen = studies.find(name)
        where = place or Path("runs") / f"study-{name}"
        options = studies.Options(where, folder, seed, device, _words(sets), _words(methods), splits, examples)
        studies.check(chosen, options)
        chosen.run(options, lambda line: out.print(line, highlight=False, soft_wrap=True))
        out.print(f"Records: {where}", soft_wrap=True, highlight=False)


def _words(given: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in given.split(",") if word.strip())
