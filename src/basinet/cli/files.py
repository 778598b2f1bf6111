"""Commands on data: compare methods, fit one, predict and evaluate from what was fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from .app import app
from .console import PLAIN, clear_errors, out, say, tell_strangers, warn
from .words import (
    FOLDER,
    Categories,
    Device,
    Drop,
    Keep,
    Kind,
    Missing,
    Network,
    Samples,
    Target,
    Unseen,
    make_engine,
    make_recipe,
    make_rules,
    target_name,
    user_network,
)


@app.command()
def compare(
    data: Annotated[
        str,
        typer.Argument(
            help="A csv, parquet or npz file, with --target; or a built-in data set: digits, wine, breast_cancer, "
            "diabetes, ...; or with --folder an image set: mnist, fashion_mnist, cifar10, cifar100, svhn."
        ),
    ] = "digits",
    target: Target = None,
    method: Annotated[
        list[str] | None, typer.Option(help="A method to compare; repeat for several. Default: all of them.")
    ] = None,
    members: Annotated[
        int | None, typer.Option(min=2, help="Size of the ensembles. Default: what each method says, 10.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of splits, members and samples.")] = 0,
    place: Annotated[
        Path | None, typer.Option("--out", help="Run folder: records and the pool. Default: runs/DATA-SEED.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Where the files of an image set are.")] = None,
    model: Network = None,
    kind: Kind = None,
    missing: Missing = "refuse",
    unseen: Unseen = "refuse",
    keep: Keep = None,
    drop: Drop = None,
    category: Categories = None,
    device: Device = None,
) -> None:
    """Fit methods on a data set and compare their scores on its test part.

    Prints a table, and leaves a folder with a record for each row and the pool of trained members. The same command
    again takes what is in the pool; after an interruption it goes on. A file is cut into 60 % training, 20 % validation
    and 20 % test rows; inputs and a real target are standardised by the training rows, and scores are in the target's
    units.
    """
    from .. import compare as study
    from ..data import datasets, load_table
    from ..data.table import READ

    file = target is not None or Path(data).suffix.lower() in READ
    where = place or Path("runs") / f"{Path(data).stem if file else data}-{seed}"
    with clear_errors(f"members that were done are in {where / 'pool'}; the same command goes on from there"):
        entries = study.entries_of(method or (), members)
        engine = make_engine(device)
        encoder = None
        if file:
            goal = target_name(Path(data), target)
            splits, encoder = load_table(
                data, goal, make_rules(kind, missing, unseen, keep, drop, category), seed=seed, say=warn
            )
        else:
            splits = datasets.load(data, seed=seed, folder=folder)
        out.print(f"[bold]{escape(splits.name)}[/bold]: {escape(splits.description)}")
        sizes = f"{splits.train.n:,} training, {splits.val.n:,} validation, {splits.test.n:,} test examples"
        out.print(f"{sizes}; seed {seed}", highlight=False)
        problem = study.default_problem(splits, None if model is None else user_network(model))
        run = study.compare(
            splits, entries, out=where, problem=problem, encoder=encoder, seed=seed, engine=engine, say=say
        )
        heads, rows = study.table(list(run))
        title = f"Test scores on {escape(splits.name)} (n = {splits.test.n:,})"
        shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for head in heads:
            shown.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
        for row in rows:
            shown.add_row(*row)
        out.print(shown)
        out.print(study.legend(splits), highlight=False)
        out.print(f"Records: {where / 'records.jsonl'}   Members: {where / 'pool'}", **PLAIN)


@app.command()
def fit(
    file: Annotated[Path, typer.Argument(help="A csv, parquet or npz file.")],
    target: Target = None,
    method: Annotated[str, typer.Option(help="The method; `basinet methods` lists them.")] = "MAP",
    members: Annotated[int, typer.Option(min=1, help="Size of the ensemble.")] = 10,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the posterior. Default: runs/FILE-METHOD.")
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="NAME=VALUE, a hyperparameter of the method, such as epochs=100; repeat for several."
        ),
    ] = None,
    val: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.9, help="Share of the rows kept for validation, which only stops and tunes; 0: none."
        ),
    ] = 0.1,
    seed: Annotated[int, typer.Option(help="Seed of the validation rows and the members.")] = 0,
    model: Network = None,
    kind: Kind = None,
    missing: Missing = "refuse",
    unseen: Unseen = "refuse",
    keep: Keep = None,
    drop: Drop = None,
    category: Categories = None,
    device: Device = None,
) -> None:
    """Fit one method to a file and save the posterior, with all that is needed to predict from new files.

    Numbers are standardised by the training rows, text becomes one input a value, dates become years and their place in
    year and week. The folder also holds the pool of members: after an interruption the same command goes on, and asking
    for more members trains only those that are missing.
    """
    from ..data import fit_table, read_table
    from ..fit import fit as fit_members
    from ..fitted import Fitted, checksum, problem_for
    from ..scoring import score

    where = folder or Path("runs") / f"{file.stem}-{method.lower()}"
    with clear_errors(f"members that were done are in {where / 'pool'}; the same command goes on from there"):
        recipe, engine = make_recipe(method, setting or ()), make_engine(device)
        goal, rules = target_name(file, target), make_rules(kind, missing, unseen, keep, drop, category)
        table = read_table(file, [goal])
        share = max(val, 1 / table.n)  # one row at least
        fractions = (1 - share, share) if val else (1.0,)
        encoder, parts = fit_table(table, goal, rules, fractions, seed=seed, say=warn)
        names = encoder.class_names
        make = None if model is None else user_network(model)
        problem = problem_for(len(encoder.features), encoder.target.outputs, names is not None, make)
        what = "a number" if names is None else f"{len(names):,} classes"
        sizes = f"{parts[0].n:,} training, {parts[1].n if val else 0:,} validation rows"
        told = f"{len(encoder.columns):,} columns, {len(encoder.features):,} inputs; {sizes}; seed {seed}"
        out.print(f"{table.name}: {goal} ({what}) from {told}", **PLAIN)
        posterior = fit_members(
            recipe,
            problem,
            parts[0],
            val=parts[1] if val else None,
            members=members,
            seed=seed,
            pool=where / "pool",
            engine=engine,
        )
        Fitted(posterior, encoder, file.name, checksum(file), model).save(where)
        if val:
            scores = encoder.scores(score(posterior, parts[1]))
            shown = ("nll", "accuracy") if names else ("nll", "rmse")
            out.print("Validation: " + ", ".join(f"{name} {scores[name]:.4g}" for name in shown), **PLAIN)
        out.print(f"Posterior: {where}", **PLAIN)


@app.command()
def predict(
    folder: FOLDER,
    file: Annotated[Path, typer.Argument(help="A csv, parquet or npz file with the columns of training.")],
    place: Annotated[Path, typer.Option("--out", help="Where predictions go: csv or parquet.")] = Path(
        "predictions.csv"
    ),
    level: Annotated[
        float, typer.Option(help="Probability that the interval from low to high holds the target; real targets.")
    ] = 0.9,
    samples: Samples = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    model: Network = None,
    device: Device = None,
) -> None:
    """Predict each row of a file, in the target's own units and names.

    Real targets: mean, sd, aleatoric and epistemic (variances; they add up to sd squared), low and high. Classes: class
    (the most probable), entropy = aleatoric + epistemic (in nats), and a probability p_NAME for each class. Columns are
    found by name: their order does not matter, and new ones are ignored. Where the network came from --model, pass it
    again: nothing in a folder is run.
    """
    from ..data import read_table, write_table
    from ..data.table import WRITTEN
    from ..fitted import Fitted
    from ..pool.files import atomically

    with clear_errors():
        if place.suffix.lower() not in WRITTEN:
            raise ValueError(f"{place}: expected --out to end in {' or '.join(WRITTEN)}")
        if not 0 < level < 1:
            raise ValueError(f"expected --level between 0 and 1, got {level}")
        if place.exists() and file.exists() and place.samefile(file):
            raise ValueError(f"{place}: expected --out to be another file than the one that is read")
        fitted = Fitted.load(folder, None if model is None else user_network(model), make_engine(device).place)
        table = read_table(file, [column.name for column in fitted.encoder.columns])
        tell_strangers(fitted.encoder.strangers(table))
        columns = fitted.predict(table, level, samples, seed)
        atomically(place, lambda temporary: write_table(columns, temporary, place.suffix))
        out.print(f"Predictions of {fitted.encoder.target.name} for {table.n:,} rows: {place}", **PLAIN)


@app.command()
def evaluate(
    folder: FOLDER,
    file: Annotated[
        Path, typer.Argument(help="A csv, parquet or npz file with the columns of training and the target.")
    ],
    place: Annotated[
        Path | None, typer.Option("--out", help="A file of JSON lines to which the record is added. Default: none.")
    ] = None,
    samples: Samples = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    model: Network = None,
    device: Device = None,
) -> None:
    """Score the predictions for a file against its target, in the target's units."""
    from ..data import read_table
    from ..fitted import Fitted, checksum
    from ..pool import append_record, describe
    from ..scoring import score

    with clear_errors():
        fitted = Fitted.load(folder, None if model is None else user_network(model), make_engine(device).place)
        encoder, posterior = fitted.encoder, fitted.posterior
        table = read_table(file, [encoder.target.name])
        tell_strangers(encoder.strangers(table))
        digest = checksum(file)
        if digest == fitted.checksum:
            warn(f"{file} is the file it was fitted to: these are not scores on new data")
        scores = encoder.scores(score(posterior, encoder.data(table), samples=samples, seed=seed))
        shown = Table(
            "score",
            title=f"{escape(encoder.target.name)} in {escape(file.name)}",
            title_justify="left",
            box=SIMPLE_HEAD,
        )
        shown.add_column("value", justify="right")
        for name, value in scores.items():
            shown.add_row(name, f"{value:,.0f}" if name == "n" else f"{value:.6g}")
        out.print(shown)
        if place is not None:
            recipe = describe(posterior.recipe)
            record = {"data": file.name, "checksum": digest, "recipe": recipe, "members": len(posterior), "seed": seed}
            append_record(place, {**record, "trained_on": fitted.checksum, "scores": scores})
            out.print(f"Record: {place}", **PLAIN)
