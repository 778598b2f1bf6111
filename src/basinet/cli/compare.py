"""The command that compares methods."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from .app import app
from .console import clear_errors, out, say, tell, warn
from .settings import set_rows
from .sharing import Given, with_options
from .words import DESIGN, MOST, RULES, Device, Images, Target, make_engine

RowSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="METHOD.NAME=VALUE, a hyperparameter of all rows of a method and of what starts from it, such as "
        "MAP.epochs=100 or MAP.optimizer.lr.peak=0.01; repeat for several.",
    ),
]


@app.command()
@with_options(design=DESIGN, rules=RULES)
def compare(
    data: Annotated[
        str,
        typer.Argument(
            help="A csv, parquet or npz file, with --target; or a built-in data set: digits, wine, breast_cancer, "
            "diabetes, ...; or with --folder an image set: mnist, fashion_mnist, cifar10, cifar100, svhn."
        ),
    ] = "digits",
    target: Target = None,
    methods: Annotated[
        list[str] | None,
        typer.Option(
            "--methods",
            "--method",
            help="Methods or rows to compare, as MAP,Laplace; all: everything. Default: what all methods offer, but "
            "for rows that take long, which are named.",
        ),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(min=2, max=MOST, help="Size of the ensembles. Default: 5; with --methods what each says, 10."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="The same compute for every row: seconds of fitting, 60s, or training steps of one network, "
            "20000steps. Members and epochs are scaled to it. Default: what each method says."
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, max=1000, help="Trainings of each row, from this many seeds on one split.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the split, and the first one of members and samples.")] = 0,
    examples: Annotated[
        int | None,
        typer.Option(min=1, help="Train on this many examples at most, for a quick look; the test part stays whole."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="The row that others are compared with. Default: that of the lowest NLL.")
    ] = None,
    place: Annotated[
        Path | None, typer.Option("--out", help="Run folder: records, arrays and the pool. Default: runs/DATA-SEED.")
    ] = None,
    folder: Images = None,
    setting: RowSettings = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Weights of that network, trained elsewhere (safetensors, or a state_dict of torch). Methods that "
            "begin at trained weights start there; those that train from scratch have to be asked for by --methods."
        ),
    ] = None,
    ood: Annotated[
        str | None,
        typer.Option(
            help="Other inputs, which uncertainty should tell from test examples: an image set of --folder by its "
            "name, a built-in set with inputs of the same shape, or for a file another file with its columns."
        ),
    ] = None,
    corrupt: Annotated[
        str | None,
        typer.Option(
            help="Score corrupted test examples too, at severities 1 to 5: all, or names with commas between them. "
            "Rows of tables: noise, shift, range, missing, swap; images: noise, blur, weather, digital, or one of "
            "nineteen, such as fog."
        ),
    ] = None,
    device: Device = None,
    *,
    rules: Given,
    design: Given,
) -> None:
    """Fit methods on a data set and compare their scores on its test part.

    Prints a table, and leaves a run folder: a record for each row and seed, arrays of predictions, and the pool of
    trained members, which rows that start from the same networks share. The same command again, after an interruption
    too, makes what is missing alone. A file is cut into 60 % training, 20 % validation and 20 % test rows, as --split
    says; inputs and a real target are standardised by the training rows, and scores are in the target's units.
    """
    from ..compare import legend, table
    from ..compare.api import Asking, carry_out, is_file
    from ..defaults import said

    where = place or Path("runs") / f"{Path(data).stem if is_file(data, target) else data}-{seed}"
    with clear_errors(f"what was done is in {where}; the same command goes on from there"):
        names = [word.strip() for words in methods or () for word in words.split(",") if word.strip()]
        engine, chosen = make_engine(device), design()
        problem = (chosen.likelihood, chosen.prior, chosen.hidden)
        asking = Asking(
            target,
            rules(),
            folder,
            chosen.make,
            None,
            weights,
            members,
            seeds,
            seed,
            engine,
            examples,
            *problem,
            ood,
            corrupt,
        )
        setting_of_all, rows = asking.prepare(data, names or None, warn, ("basinet", *sys.argv[1:]))
        rows = set_rows(rows, setting or ())
        splits = setting_of_all.splits
        out.print(f"[bold]{escape(splits.name)}[/bold]: {escape(splits.description)}")
        sizes = f"{splits.train.n:,} training, {splits.val.n:,} validation, {splits.test.n:,} test examples"
        tell(f"{sizes}; seed {seed}; {said(setting_of_all.problem)}")
        found = carry_out(setting_of_all, rows, where, budget, against, say)
        heads, lines = table(found.summary)
        title = f"Test scores on {escape(splits.name)} (n = {splits.test.n:,})"
        shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for head in heads:
            shown.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
        for line in lines:
            shown.add_row(*line)
        out.print(shown)
        out.print(legend(found.summary), highlight=False)
        if found.shift is not None:
            _print_shift(*found.shift, found.shift_legend)
        if found.warning:
            warn(found.warning)
        tell(f"Run: {where}")


def _print_shift(heads: list[str], rows: list[list[str]], legend: str) -> None:
    """The second table: how rows hold up under corruptions."""
    shown = Table(title="Under corruption", title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
    for place, head in enumerate(heads):
        shown.add_column(head, justify="right" if place else "left", no_wrap=True)
    for row in rows:
        shown.add_row(*row)
    out.print(shown)
    out.print(legend, highlight=False)
