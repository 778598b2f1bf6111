"""The command `basinet`."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from .core.documented import documented_fields, summary
from .core.version import VERSION

app = typer.Typer(
    help="Bayesian neural networks and deep ensembles: posteriors that are tested to be posteriors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True)


def _version(wanted: bool) -> None:
    if wanted:
        out.print(VERSION, highlight=False)
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def _root(version: Version = False) -> None:
    pass


@app.command()
def compare(
    data: Annotated[
        str, typer.Argument(help="A built-in data set: digits, wine, breast_cancer, diabetes, ...")
    ] = "digits",
    method: Annotated[
        list[str] | None, typer.Option(help="A method to compare; repeat for several. Default: all of them.")
    ] = None,
    members: Annotated[
        int | None, typer.Option(min=2, help="Size of the ensembles. Default: what each method says, 10.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of splits, members and samples.")] = 0,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Run folder: records and the pool. Default: runs/DATA-SEED.")
    ] = None,
    device: Annotated[
        str | None, typer.Option(help="cpu, cuda, cuda:1 ... Default: the GPU where there is one.")
    ] = None,
) -> None:
    """Fit methods on a data set and compare their scores on its test part.

    Prints a table, and leaves a folder with a record for each row and the pool of trained members. The same command
    again takes what is in the pool; after an interruption it goes on.
    """
    from . import compare as study
    from .data import datasets
    from .engine import Engine

    where = folder or Path("runs") / f"{data}-{seed}"
    with _clear_errors(f"members that were done are in {where / 'pool'}; the same command goes on from there"):
        entries = study.entries_of(method or (), members)
        splits = datasets.load(data, seed=seed)
        out.print(f"[bold]{splits.name}[/bold]: {splits.description}")
        sizes = f"{splits.train.n:,} training, {splits.val.n:,} validation, {splits.test.n:,} test examples"
        out.print(f"{sizes}; seed {seed}", highlight=False)
        engine = Engine(device=device, progress=True)
        run = study.compare(splits, entries, out=where, seed=seed, engine=engine, say=_say)
        heads, rows = study.table(list(run))
        title = f"Test scores on {splits.name} (n = {splits.test.n:,})"
        shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for head in heads:
            shown.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
        for row in rows:
            shown.add_row(*row)
        out.print(shown)
        out.print(study.legend(splits), highlight=False)
        out.print(f"Records: {where / 'records.jsonl'}   Members: {where / 'pool'}", soft_wrap=True, highlight=False)


@app.command()
def methods(name: Annotated[str | None, typer.Argument(help="A method to describe in full.")] = None) -> None:
    """List the methods, or describe one with its hyperparameters and defaults."""
    from .methods import discover, find

    with _clear_errors():
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
    from .methods import discover, find
    from .testing import method_checks, problem_checks

    with _clear_errors():
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
) -> None:
    """Run a study: a question with an answer that can be measured again."""
    from . import studies

    with _clear_errors("what was done is kept; the same command goes on"):
        if name is None:
            listed = Table("study", "question")
            for key, module in studies.discover().items():
                listed.add_row(key, (inspect.getdoc(module) or "").split("\n")[0])
            out.print(listed)
            return
        chosen = studies.find(name)
        where = place or Path("runs") / f"study-{name}"
        chosen.run(studies.Options(where, folder, seed, device), lambda line: out.print(line, highlight=False))
        out.print(f"Records: {where}", soft_wrap=True, highlight=False)


def _say(line: str) -> None:
    err.print(f"[dim]{line}[/dim]", highlight=False)


@contextmanager
def _clear_errors(resume: str = "nothing was left half-written") -> Iterator[None]:
    """Turns what a user can mend into one clear line; a bug keeps its traceback."""
    try:
        yield
    except KeyboardInterrupt:
        err.print(f"stopped: {resume}", soft_wrap=True)
        sys.exit(130)
    except (ValueError, OSError, ImportError, FloatingPointError) as error:
        err.print("error:", str(error), style="bold red", soft_wrap=True, markup=False, highlight=False)
        sys.exit(2)
