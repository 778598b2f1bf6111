"""The command that compares methods."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from .app import app
from .console import clear_errors, out, say, show_table, tell, warn
from .settings import set_rows
from .sharing import Given, with_options
from .words import DESIGN, MOST, RULES, Device, Images, On, Target, make_engine

RowSettings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="METHOD.NAME=VALUE sets a hyperparameter in all rows of a method and in rows that start from it, such as "
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
            help="Methods or rows to compare, such as MAP,Laplace, or all. Default: the usual ones; those left out "
            "are named.",
        ),
    ] = None,
    members: Annotated[
        int | None,
        typer.Option(min=2, max=MOST, help="Size of the ensembles. Default: 5; with --methods, 10 for most."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="The same compute for every row: seconds of fitting, such as 60s, or training steps of one network, "
            "such as 20000steps. Members and epochs are scaled to it. Default: each method's own."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="Train each row from this many seeds, on one split.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the split, and first seed of members and samples.")] = 0,
    examples: Annotated[
        int | None,
        typer.Option(min=1, help="Train on at most this many examples, for a quick look; the test part stays whole."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="The row to compare the others with. Default: the one with the lowest NLL.")
    ] = None,
    place: Annotated[
        Path | None, typer.Option("--out", help="Run folder: records, arrays and the pool. Default: runs/DATA-SEED.")
    ] = None,
    folder: Images = None,
    setting: RowSettings = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Trained weights of the network given by --model (safetensors, or a state_dict of torch). Methods "
            "that start from trained weights use them; methods that train from scratch run only if you name them."
        ),
    ] = None,
    ood: Annotated[
        str | None,
        typer.Option(
            help="Out-of-distribution inputs, to see whether uncertainty detects them: the name of an image set in "
            "--folder, a built-in set with inputs of the same shape or, for a file, another file with its columns."
        ),
    ] = None,
    corrupt: Annotated[
        str | None,
        typer.Option(
            help="Also score corrupted test examples, at severities 1 to 5: all, or names separated by commas. "
            "Rows of tables: noise, shift, range, missing, swap; images: noise, blur, weather, digital, or one of "
            "nineteen, such as fog."
        ),
    ] = None,
    device: Device = None,
    on: On = None,
    *,
    rules: Given,
    design: Given,
) -> None:
    """Fit methods on a data set and compare their scores on its test part.

    Prints a table and writes a run folder: a record for each row and seed, arrays of predictions, and the pool of
    trained members, which rows that start from the same networks share. Run the same command again to resume after an
    interruption. A file is split into 60 % training, 20 % validation and 20 % test rows (see --split); inputs and a
    real target are standardised by the training rows, and scores are in the target's units.
    """
    from ..compare import legend, table
    from ..compare.api import Asking, carry_out, is_file
    from ..defaults import said

    where = place or Path("runs") / f"{Path(data).stem if is_file(data, target) else data}-{seed}"
    with clear_errors(f"progress is saved in {where}: run the same command again to resume"):
        names = [word.strip() for words in methods or () for word in words.split(",") if word.strip()]
        engine, chosen = make_engine(device, on), design()
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
        open_yet = len(setting_of_all.candidates) > 1  # validation chooses the problem, and that is said
        tell(f"{sizes}; seed {seed}" + ("" if open_yet else f"; {said(setting_of_all.problem)}"))
        comparison = carry_out(setting_of_all, rows, where, budget, against, say)
        heads, lines = table(comparison.summary)
        title = f"Test scores on {escape(splits.name)} (n = {splits.test.n:,})"
        show_table(title, heads, lines)
        out.print(legend(comparison.summary), highlight=False)
        if comparison.shift is not None:
            show_table("Under corruption", *comparison.shift)
            out.print(comparison.shift_legend, highlight=False)
        if comparison.warning:
            warn(comparison.warning)
        if not names:
            tell("More methods: --methods all, or by name (`basinet methods` lists them)")
        tell(f"Run: {where}")
