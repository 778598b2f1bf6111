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
    ] = 0.15,
    conformal: Annotated[
        float | None,
        typer.Option(
            help="Calibrate on further rows, as many as those kept for validation: predictions get sets or intervals "
            "that hold the truth with this probability."
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
    from ..defaults import DefaultNetwork, candidates_for, said
    from ..engine.method import short
    from ..fit import fit as fit_members
    from ..fitted import Fitted, checksum
    from ..pilot import pilot
    from ..scoring import score
    from ..temper import temper

    where = folder or Path("runs") / f"{file.stem}-{method.lower()}"
    with clear_errors(f"members that were done are in {where / 'pool'}; the same command goes on from there"):
        recipe, engine, chosen = make_recipe(method, setting or ()), make_engine(device), design()
        goal, how = target_name(file, target), rules()
        table = read_table(file, named(goal))
        share = max(val, 1 / table.n)  # one row at least
        calibrate = share if val and conformal is not None else 0.0
        if share + calibrate >= 1:
            raise ValueError(f"--val {val:g} is kept twice, to validate and to calibrate: expected less than 0.5")
        fractions = tuple(f for f in (1 - (share if val else 0) - calibrate, share if val else 0, calibrate) if f)
        encoder, parts = fit_table(table, goal, how, fractions, seed=seed, say=warn)
        names, what = encoder.class_names, encoder.target.what
        for line in leaks(parts[0], parts[1] if val else None, encoder.features, what):
            warn(line)
        shape = (parts[0].inputs, encoder.target.outputs, what)
        problems = candidates_for(*shape, chosen.make, chosen.likelihood, chosen.prior, chosen.hidden)
        rows = parts[1].n if val else 0
        if conformal is not None:
            check_conformal(conformal, what, parts[2].n if val else 0)
        sizes = f"{parts[0].n:,} training, {rows:,} validation rows"
        sizes += f", {parts[2].n:,} to calibrate on" if calibrate else ""
        inputs = f"{len(encoder.columns):,} columns, {len(encoder.features):,} inputs"
        tell(f"{table.name}: {goal} ({encoder.target.told}) from {inputs}; {sizes}; seed {seed}")
        known = (parts[0], parts[1] if val else None)
        problem, why = pilot(problems, *known, recipe=recipe, seed=seed, engine=engine, pool=where / "pilot")
        if why:
            tell(why)
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
        if val and what == "real":
            posterior = temper(posterior, parts[1], seed=seed)
            assert posterior.temperature is not None
            tell(f"Spread of the mixture: times {float(posterior.temperature.values):.3g}, by validation")
        if conformal is not None:
            posterior = calibrated(posterior, parts[2], level=conformal, seed=seed)
        network = None if chosen.make else DefaultNetwork.of(*shape, problem.likelihood, chosen.hidden)
        Fitted(posterior, encoder, file.name, checksum(file), chosen.model, network).save(where)
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
    """Score the predictions for a file against its target, in the target's units.

    Where the posterior is calibrated (fit --conformal), how often its sets or intervals hold the truth, and how large
    they are, is told beside the scores.
    """
    from ..compare.folder import finite
    from ..compare.sets import held_by
    from ..compare.units import Unit
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
        given = encoder.data(table)
        scores = encoder.scores(score(posterior, given, samples=samples, seed=seed))
        sets = held_by(posterior, given, Unit(sd=getattr(encoder.target, "sd", 1.0))) if posterior.conformal else None
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
        if sets is not None:
            size = "classes on average" if encoder.target.what == "classes" else "wide on average"
            told = f"Conformal sets ({sets['kind']}, calibrated on {sets['n']:,} rows) promise {sets['level']:.1%}"
            kept = "kept" if sets["low"] <= sets["level"] <= sets["high"] else "NOT KEPT"
            held = (
                f"they hold {sets['coverage']:.1%} here ({sets['size']:.4g} {size}; 95 % interval {sets['low']:.1%} to"
            )
            tell(f"{told}: {held} {sets['high']:.1%}): {kept}")
        if place is not None:
            recipe = describe(posterior.recipe)
            record = {"data": file.name, "checksum": digest, "recipe": recipe, "members": len(posterior), "seed": seed}
            held_sets = {} if sets is None else {"sets": [sets]}
            append_record(place, finite({**record, "trained_on": fitted.checksum, "scores": scores, **held_sets}))
            tell(f"Record: {place}")
