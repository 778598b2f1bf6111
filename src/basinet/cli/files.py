"""Commands on files: fit a method, predict and evaluate from what was fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from .app import app
from .console import clear_errors, out, tell, tell_strangers, warn
from .network import user_network
from .settings import make_recipe
from .sharing import Given, with_options
from .words import (
    DESIGN,
    FOLDER,
    RULES,
    Device,
    Members,
    Network,
    Samples,
    Settings,
    Target,
    check_conformal,
    make_engine,
)


@app.command()
@with_options(design=DESIGN, rules=RULES)
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
    ] = 0.1,
    conformal: Annotated[
        float | None,
        typer.Option(
            help="Calibrate on the validation rows: predictions get sets or intervals that hold the truth with this "
            "probability. Not for methods that tune on those rows."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the validation rows and the members.")] = 0,
    device: Device = None,
    *,
    rules: Given,
    design: Given,
) -> None:
    """Fit one method to a file and save the posterior, with all that is needed to predict from new files.

    Numbers are standardised by the training rows, text becomes one input a value, dates become years and their place in
    year and week. The folder also holds the pool of members: after an interruption the same command goes on, and asking
    for more members trains only those that are missing.
    """
    from ..compare.api import target_name
    from ..conformal import conformal as calibrated
    from ..data import fit_table, read_table
    from ..data.doubts import leaks
    from ..data.tables import named
    from ..engine.method import short
    from ..fit import fit as fit_members
    from ..fitted import Fitted, checksum, problem_for, said
    from ..scoring import score

    where = folder or Path("runs") / f"{file.stem}-{method.lower()}"
    with clear_errors(f"members that were done are in {where / 'pool'}; the same command goes on from there"):
        recipe, engine, chosen = make_recipe(method, setting or ()), make_engine(device), design()
        goal, how = target_name(file, target), rules()
        table = read_table(file, named(goal))
        share = max(val, 1 / table.n)  # one row at least
        fractions = (1 - share, share) if val else (1.0,)
        encoder, parts = fit_table(table, goal, how, fractions, seed=seed, say=warn)
        names, what = encoder.class_names, encoder.target.what
        for line in leaks(parts[0], parts[1] if val else None, encoder.features, what):
            warn(line)
        of = (len(encoder.features), encoder.target.outputs, what)
        problem = problem_for(*of, chosen.make, chosen.likelihood, chosen.prior)
        rows = parts[1].n if val else 0
        if conformal is not None:
            check_conformal(conformal, recipe, what, rows)
        sizes = f"{parts[0].n:,} training, {rows:,} validation rows"
        inputs = f"{len(encoder.columns):,} columns, {len(encoder.features):,} inputs"
        tell(f"{table.name}: {goal} ({encoder.target.told}) from {inputs}; {sizes}; seed {seed}")
        tell(f"{members:,} x {short(recipe)}; {said(problem)}")
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
            posterior = calibrated(posterior, parts[1], level=conformal, seed=seed)
        Fitted(posterior, encoder, file.name, checksum(file), chosen.model, chosen.hidden).save(where)
        if val:
            scores = encoder.scores(score(posterior, parts[1]))
            shown = ("nll", "accuracy") if names else ("nll", "rmse")
            tell("Validation: " + ", ".join(f"{name} {scores[name]:.4g}" for name in shown))
        tell(f"Posterior: {where}")


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
    run. Names that a spreadsheet would take for formulas get an apostrophe in a csv.
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
        if empty := fitted.encoder.empty_rows(table):
            warn(f"{empty:,} of {table.n:,} rows have no input at all: their predictions are those of a typical row")
        rule = fitted.posterior.conformal
        if rule is not None and samples is not None:
            warn("conformal columns hold what they promise for the samples of calibration: leave --samples out")
        columns = fitted.predict(table, level, samples, seed)
        atomically(place, lambda temporary: write_table(columns, temporary, place.suffix))
        rows = f"{table.n:,} row" + ("" if table.n == 1 else "s")
        tell(f"Predictions of {fitted.encoder.target.name} for {rows}: {place}")
        if rule is not None:
            told = f"conformal columns hold the truth with probability {rule.level:g}, calibrated on {rule.n:,} rows"
            tell(f"{told}, for rows that are like those")


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
    from ..compare.folder import finite
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
            append_record(place, finite({**record, "trained_on": fitted.checksum, "scores": scores}))
            tell(f"Record: {place}")
