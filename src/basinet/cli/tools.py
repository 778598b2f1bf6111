"""Commands about the library itself: its methods, its checks, its studies."""

from __future__ import annotations

import inspect
import sys
from dataclasses import MISSING, fields
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from ..core.documented import documented_fields, plain_doc, summary
from .app import app
from .console import clear_errors, err, out
from .words import On

CHECKOUT = Path(__file__).parents[3]  # the repository, unless the package is an installed one


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
        out.print(plain_doc(cls), markup=False, highlight=False)
        descriptions = documented_fields(cls)
        shown = Table("hyperparameter", "default", "what it is")
        for f in fields(cls):
            default = "required" if f.default is MISSING else repr(f.default)
            shown.add_row(f.name, default, descriptions.get(f.name, ""))
        out.print(shown)


@app.command()
def check(
    names: Annotated[list[str] | None, typer.Argument(help="Methods to check. Default: all, and the problem.")] = None,
) -> None:
    """Check methods against their theory and their invariants; exit status 1 if a check fails."""
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
    name: Annotated[str | None, typer.Argument(help="The study to run. Default: list them.")] = None,
    folder: Annotated[Path | None, typer.Option(help="Folder of data sets that are not built in.")] = None,
    place: Annotated[Path | None, typer.Option("--out", help="Where records go. Default: runs/study-NAME.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of everything.")] = 0,
    device: Annotated[str | None, typer.Option(help="cpu, cuda ... Default: the GPU if there is one.")] = None,
    sets: Annotated[str, typer.Option(help="Data sets to run, such as boston,yacht. Default: all.")] = "",
    methods: Annotated[str, typer.Option(help='Methods to run, such as "MAP,deep ensemble". Default: all.')] = "",
    splits: Annotated[int | None, typer.Option(min=1, help="Splits of each set to run. Default: all.")] = None,
    examples: Annotated[
        int | None,
        typer.Option(min=10, help="At most this many examples of each part of a set, for a quick look."),
    ] = None,
    preset: Annotated[str, typer.Option(help="Settings of the study by name. Default: its own choice.")] = "",
    changes: Annotated[
        list[str] | None, typer.Option("--with", help="NAME=VALUE of the study's settings; repeat for several.")
    ] = None,
    on: On = None,
) -> None:
    """Run a study: a question with an answer that can be measured again."""
    with clear_errors("progress is saved: run the same command again to resume"):
        studies = _studies()
        if name is None:
            listed = Table("study", "question")
            for key, module in studies.discover().items():
                paragraph = (inspect.getdoc(module) or "").split("\n\n")[0]
                listed.add_row(key, " ".join(paragraph.split()))
            out.print(listed)
            return
        chosen = studies.find(name)
        where = place or Path("runs") / f"study-{name}"
        options = studies.Options(
            where,
            folder,
            seed,
            device,
            _words(sets),
            _words(methods),
            splits,
            examples,
            on,
            preset,
            tuple(changes or ()),
        )
        studies.check(chosen, options)
        if on:
            _travels(studies)
        chosen.run(options, lambda line: out.print(line, highlight=False, soft_wrap=True))
        out.print(f"Records: {where}", soft_wrap=True, highlight=False)


def _studies() -> Any:
    """The folder studies/ of the checkout that this package stands in; an installed package has none."""
    if not (CHECKOUT / "studies" / "__init__.py").exists():
        raise ValueError(
            "studies are not part of the installed package: clone the repository, and there run pip install -e '.[all]'"
        )
    if str(CHECKOUT) not in sys.path:
        sys.path.insert(0, str(CHECKOUT))  # which the processes that train members are given, too
    return import_module("studies")


def _travels(studies: Any) -> None:
    """Machines of a cluster have no checkout: what studies define is sent to them by value."""
    try:
        from ray import cloudpickle
    except ImportError:  # which the engine says
        return
    cloudpickle.register_pickle_by_value(studies)


def _words(given: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in given.split(",") if word.strip())
