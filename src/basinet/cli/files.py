"""Commands on data: compare methods, fit one, predict and evaluate from what was fitted."""

from __future__ import annotations

import sys
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
    Images,
    Keep,
    Kind,
    Members,
    Missing,
    Network,
    Samples,
    Settings,
    Target,
    Unseen,
    check_conformal,
    make_engine,
    make_recipe,
    make_rules,
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
        int | None, typer.Option(min=2, help="Size of the ensembles. Default: 5; with --methods what each says, 10.")
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            help="The same compute for every row: seconds of fitting, 60s, or training steps of one network, "
            "20000steps. Members and epochs are scaled to it. Default: what each method says."
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each row, from so many seeds on one split.")] = 1,
    seed: Annotated[int, typer.Option(help="Seed of the split, and the first one of members and samples.")] = 0,
    examples: Annotated[
        int | None,
        typer.Option(min=1, help="Train on so many examples at most, for a quick look; the test part stays whole."),
    ] = None,
    against: Annotated[
        str | None, typer.Option(help="The row that others are compared with. Default: that of the lowest NLL.")
    ] = None,
    place: Annotated[
        Path | None, typer.Option("--out", help="Run folder: records, arrays and the pool. Default: runs/DATA-SEED.")
    ] = None,
    folder: Images = None,
    model: Network = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Weights of that network, trained elsewhere (safetensors, or a state_dict of torch). Methods that "
            "begin at trained weights start there; those that train from scratch have to be asked for by --methods."
        ),
    ] = None,
    kind: Kind = None,
    missing: Missing = "refuse",
    unseen: Unseen = "refuse",
    keep: Keep = None,
    drop: Drop = None,
    category: Categories = None,
    device: Device = None,
) -> None:
    """Fit methods on a data set and compare their scores on its test part.

    Prints a table, and leaves a run folder: a record for each row and seed, arrays of predictions, and the pool of
    trained members, which rows that start from the same networks share. The same command again, after an interruption
    too, makes what is missing alone. A file is cut into 60 % training, 20 % validation and 20 % test rows; inputs and
    a real target are standardised by the training rows, and scores are in the target's units.
    """
    from ..compare import legend, table
    from ..compare.api import Asking, carry_out, is_file

    where = place or Path("runs") / f"{Path(data).stem if is_file(data, target) else data}-{seed}"
    with clear_errors(f"what was done is in {where}; the same command goes on from there"):
        names = [word.strip() for words in methods or () for word in words.split(",") if word.strip()]
        engine, make = make_engine(device), None if model is None else user_network(model)
        rules = make_rules(kind, missing, unseen, keep, drop, category)
        asking = Asking(target, rules, folder, make, None, weights, members, seeds, seed, engine, examples)
        setting, rows = asking.prepare(data, names or None, warn, ("basinet", *sys.argv[1:]))
        splits = setting.splits
        out.print(f"[bold]{escape(splits.name)}[/bold]: {escape(splits.description)}")
        sizes = f"{splits.train.n:,} training, {splits.val.n:,} validation, {splits.test.n:,} test examples"
        out.print(f"{sizes}; seed {seed}", highlight=False)
        found = carry_out(setting, rows, where, budget, against, say)
        heads, lines = table(found.summary)
        title = f"Test scores on {escape(splits.name)} (n = {splits.test.n:,})"
        shown = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False)
        for head in heads:
            shown.add_column(head, justify="left" if head == "method" else "right", no_wrap=True)
        for line in lines:
            shown.add_row(*line)
        out.print(shown)
        out.print(legend(found.summary), highlight=False)
        out.print(f"Run: {where}", **PLAIN)


@app.command()
def fit(
    file: Annotated[Path, typer.Argument(help="A csv, parquet or npz file.")],
    target: Target = None,
    method: Annotated[str, typer.Option(help="The method; `basinet methods` lists them.")] = "MAP",
    members: Members = 10,
    folder: Annotated[
        Path | None, typer.Option("--out", help="Folder for the posterior. Default: runs/FILE-METHOD.")
    ] = None,
    setting: Settings = None,
    val: Annotated[
        float,
        typer.Option(
            min=0.0, max=0.9, help="Share of the rows kept for validation, which only stops and tunes; 0: none."
        ),
    ] = 0.15,
    conformal: Annotated[
        float | None,
        typer.Option(
            help="Calibrate on further rows, as many as those kept for validation: predictions get sets or intervals "
            "that hold the truth with this probability."
        ),
    ] = None,
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
    from ..compare.api import target_name
    from ..conformal import conformal as calibrated
    from ..data import fit_table, read_table
    from ..data.tables import named
    from ..defaults import DefaultNetwork, problem_for
    from ..fit import fit as fit_members
    from ..fitted import Fitted, checksum
    from ..scoring import score

    where = folder or Path("runs") / f"{file.stem}-{method.lower()}"
    with clear_errors(f"members that were done are in {where / 'pool'}; the same command goes on from there"):
        recipe, engine = make_recipe(method, setting or ()), make_engine(device)
        goal, rules = target_name(file, target), make_rules(kind, missing, unseen, keep, drop, category)
        table = read_table(file, named(goal))
        share = max(val, 1 / table.n)  # one row at least
        calibrate = share if val and conformal is not None else 0.0
        if share + calibrate >= 1:
            raise ValueError(f"--val {val:g} is kept twice, to validate and to calibrate: expected less than 0.5")
        fractions = tuple(f for f in (1 - (share if val else 0) - calibrate, share if val else 0, calibrate) if f)
        encoder, parts = fit_table(table, goal, rules, fractions, seed=seed, say=warn)
        names = encoder.class_names
        make = None if model is None else user_network(model)
        shape = (parts[0].inputs, encoder.target.outputs, encoder.target.what)
        problem = problem_for(*shape, make)
        rows = parts[1].n if val else 0
        if conformal is not None:
            check_conformal(conformal, encoder.target.what, parts[2].n if val else 0)
        sizes = f"{parts[0].n:,} training, {rows:,} validation rows"
        sizes += f", {parts[2].n:,} to calibrate on" if calibrate else ""
        told = f"{len(encoder.columns):,} columns, {len(encoder.features):,} inputs; {sizes}; seed {seed}"
        out.print(f"{table.name}: {goal} ({encoder.target.told}) from {told}", **PLAIN)
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
        if conformal is not None:
            posterior = calibrated(posterior, parts[2], level=conformal, seed=seed)
        network = DefaultNetwork.of(*shape) if make is None else None
        Fitted(posterior, encoder, file.name, checksum(file), model, network).save(where)
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
    (the most probable), entropy = aleatoric + epistemic (in nats), and a probability p_NAME for each class. A posterior
    that is calibrated (fit --conformal) adds conformal_low and conformal_high, or conformal_set, the names of the
    classes inside with bars between them, at the level of its calibration. Columns are found by name: their order does
    not matter, and new ones are ignored. Where the network came from --model, pass it again: nothing in a folder is
    run.
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
        rule = fitted.posterior.conformal
        if rule is not None and samples is not None:
            warn("conformal columns hold what they promise for the samples of calibration: leave --samples out")
        columns = fitted.predict(table, level, samples, seed)
        atomically(place, lambda temporary: write_table(columns, temporary, place.suffix))
        rows = f"{table.n:,} row" + ("" if table.n == 1 else "s")
        out.print(f"Predictions of {fitted.encoder.target.name} for {rows}: {place}", **PLAIN)
        if rule is not None:
            told = f"conformal columns hold the truth with probability {rule.level:g}, calibrated on {rule.n:,} rows"
            out.print(f"{told}, for rows that are like those", **PLAIN)


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
        table = read_table(file, encoder.target.sources)
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
