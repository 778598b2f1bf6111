"""Commands on files: fit a method, predict and evaluate from what was fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

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
    On,
    OwnNetwork,
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
        Path | None,
        typer.Option("--out", help="Folder for the posterior. Default: runs/FILE-METHOD, the method in lower case."),
    ] = None,
    setting: Settings = None,
    val: Annotated[
        float,
        typer.Option(min=0.0, max=0.9, help="Share of the rows held out to stop training and to tune; 0: none."),
    ] = 0.15,
    conformal: Annotated[
        float | None,
        typer.Option(
            help="Hold out as many rows again for calibration; predictions then have sets or intervals that contain "
            "the truth with this probability."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the validation rows and the members.")] = 0,
    shard: Annotated[
        str | None,
        typer.Option(
            help="I/N: train only share I of N of the members (I counts from 0), in a job array for example; run the "
            "command without it to gather them."
        ),
    ] = None,
    device: Device = None,
    on: On = None,
    *,
    rules: Given,
    design: Given,
) -> None:
    """Fit one method to a file and save the posterior, with all that is needed to predict from new files.

    Numbers are standardised by the training rows, text becomes one input per value, and dates become the year, the day
    of the year and the day of the week. The folder also holds the pool of members: the same command resumes after an
    interruption, and asking for more members trains only those that are missing.
    """
    from ..calibrate.conformal import conformal as calibrated
    from ..calibrate.temper import temper
    from ..compare.api import target_name
    from ..defaults import DefaultNetwork, Design, candidates_for, embeds_numbers, said
    from ..fit import fit as fit_members
    from ..pilot import in_a_line, pilot
    from ..scoring import score
    from ..tables import fit_table, read_table
    from ..tables.crossed import APART, crossed
    from ..tables.doubts import leaks
    from ..tables.fitted import Fitted, checksum
    from ..tables.load import named

    where = folder or Path("runs") / f"{file.stem}-{method.lower()}"
    with clear_errors(f"finished members are in {where / 'pool'}: run the same command again to resume"):
        recipe, engine, chosen = make_recipe(method, setting or ()), make_engine(device, on), design()
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
        train, held = parts[0], parts[1] if val else None
        if what != "labels" and held is not None and how.exchangeable:
            train, held = crossed(train, held, members, seed)
        shape = (train.inputs, encoder.target.outputs, what)
        zero = getattr(encoder.target, "zero", None)
        given = Design(chosen.make, chosen.likelihood, chosen.prior, chosen.hidden)
        problems = candidates_for(*shape, given, targets=train.targets, zero=zero)
        rows = parts[1].n if val else 0
        if conformal is not None:
            check_conformal(conformal, what, parts[2].n if val else 0)
        sizes = f"{parts[0].n:,} training, {rows:,} validation rows"
        if held is not None and (held.rows is not None or not how.exchangeable):
            sizes += " (different ones for each member)" if held.rows is not None else f": one part for all, {APART}"
        sizes += f", {parts[2].n:,} to calibrate on" if calibrate else ""
        inputs = f"{len(encoder.columns):,} columns, {len(encoder.features):,} inputs"
        tell(f"{table.name}: {goal} ({encoder.target.in_words}) from {inputs}; {sizes}; seed {seed}")
        problem, recipe, why = pilot(
            problems, train, held, recipe=recipe, seed=seed, engine=engine, pool=where / "pilot"
        )
        if why:
            tell(why)
        tell(f"{members:,} x {in_a_line(recipe)}; {said(problem)}")
        posterior = fit_members(
            recipe,
            problem,
            train,
            val=held,
            members=members,
            seed=seed,
            pool=where / "pool",
            only=shard,
            engine=engine,
        )
        if shard is not None:
            tell(f"{len(posterior):,} of {members:,} members are in {where / 'pool'}: share {shard}")
            tell("When all shares are done, the same command without --shard gathers them")
            return
        if held is not None and what == "real":
            posterior = temper(posterior, held, seed=seed)
            assert posterior.temperature is not None
            tell(f"Spread of the mixture: multiplied by {float(posterior.temperature.values):.3g}, by validation")
        if conformal is not None:
            posterior = calibrated(posterior, parts[2], level=conformal, seed=seed)
        form = (problem.likelihood, chosen.hidden, embeds_numbers(problem))
        network = None if chosen.make else DefaultNetwork.of(*shape, *form)
        Fitted(posterior, encoder, file.name, checksum(file), chosen.model, network).save(where)
        if held is not None:
            scores = encoder.scores(score(posterior, held))
            shown = ("nll", "accuracy") if names else ("nll", "rmse")
            judged = "" if held.rows is None else ", of members one by one on rows they have not seen"
            tell(f"Validation{judged}: " + ", ".join(f"{name} {scores[name]:.4g}" for name in shown))
        tell(f"Posterior: {where}")


@app.command()
def predict(
    folder: FOLDER,
    file: Annotated[Path, typer.Argument(help="A csv, parquet or npz file with the columns of training.")],
    place: Annotated[Path, typer.Option("--out", help="File for the predictions: csv or parquet.")] = Path(
        "predictions.csv"
    ),
    level: Annotated[
        float, typer.Option(help="Probability that the target lies between low and high; for real targets.")
    ] = 0.9,
    samples: Samples = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    model: OwnNetwork = None,
    device: Device = None,
) -> None:
    """Predict each row of a file, in the target's own units and names.

    Real targets: mean, sd, aleatoric and epistemic (variances; they add up to sd squared), low and high. Classes: class
    (the most probable), entropy = aleatoric + epistemic (in nats), and a probability p_NAME for each class. Labels: the
    same without class, with entropies summed over labels. A posterior that is calibrated (fit --conformal) adds
    conformal_low and conformal_high, or conformal_set, the names of the classes inside with bars between them, at the
    level of its calibration. Columns are found by name: their order does not matter, and new ones are ignored. If the
    network came from --model, pass it again: nothing in a folder is executed. Names that a spreadsheet would take for
    formulas get an apostrophe in a csv.
    """
    from ..pool.files import atomically
    from ..tables import read_table, write_table
    from ..tables.fitted import Fitted
    from ..tables.table import WRITTEN

    with clear_errors():
        if place.suffix.lower() not in WRITTEN:
            raise ValueError(f"{place}: expected --out to end in {' or '.join(WRITTEN)}")
        if not 0 < level < 1:
            raise ValueError(f"expected --level between 0 and 1, got {level}")
        if place.exists() and file.exists() and place.samefile(file):
            raise ValueError(f"{place}: expected --out to differ from the file that is read")
        fitted = Fitted.load(folder, None if model is None else user_network(model), make_engine(device).place)
        table = read_table(file, [column.name for column in fitted.encoder.columns])
        tell_strangers(fitted.encoder.strangers(table))
        if empty := fitted.encoder.empty_rows(table):
            warn(f"{empty:,} of {table.n:,} rows are empty: they are predicted as a typical row")
        rule = fitted.posterior.conformal
        if rule is not None and samples is not None:
            warn("conformal columns are calibrated for the default number of samples: leave --samples out")
        columns = fitted.predict(table, level, samples, seed)
        atomically(place, lambda temporary: write_table(columns, temporary, place.suffix))
        rows = f"{table.n:,} row" + ("" if table.n == 1 else "s")
        tell(f"Predictions of {fitted.encoder.target.name} for {rows}: {place}")
        if rule is not None:
            promise = (
                f"conformal columns contain the truth with probability {rule.level:g} (calibrated on {rule.n:,} rows)"
            )
            tell(f"{promise}, for rows like those")


@app.command()
def evaluate(
    folder: FOLDER,
    file: Annotated[
        Path, typer.Argument(help="A csv, parquet or npz file with the columns of training and the target.")
    ],
    place: Annotated[
        Path | None, typer.Option("--out", help="Append the record to this file of JSON lines. Default: none.")
    ] = None,
    samples: Samples = None,
    seed: Annotated[int, typer.Option(help="Seed of the samples.")] = 0,
    model: OwnNetwork = None,
    device: Device = None,
) -> None:
    """Score the predictions for a file against its target, in the target's units.

    If the posterior is calibrated (fit --conformal), it also shows how often its sets or intervals contain the truth,
    and how large they are.
    """
    from ..compare.folder import finite
    from ..compare.sets import held_by
    from ..compare.units import Unit
    from ..pool import append_record, describe
    from ..scoring import score
    from ..tables import read_table
    from ..tables.fitted import Fitted, checksum

    with clear_errors():
        fitted = Fitted.load(folder, None if model is None else user_network(model), make_engine(device).place)
        encoder, posterior = fitted.encoder, fitted.posterior
        table = read_table(file, encoder.target.sources)
        tell_strangers(encoder.strangers(table))
        digest = checksum(file)
        if digest == fitted.checksum:
            warn(f"{file} is the file it was fitted to: these scores are not for new data")
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
            tell(_promise(sets, encoder.target.what))
        if place is not None:
            recipe = describe(posterior.recipe)
            record = {"data": file.name, "checksum": digest, "recipe": recipe, "members": len(posterior), "seed": seed}
            held_sets = {} if sets is None else {"sets": [sets]}
            append_record(place, finite({**record, "trained_on": fitted.checksum, "scores": scores, **held_sets}))
            tell(f"Record: {place}")


def _promise(sets: dict[str, Any], what: str) -> str:
    """Whether conformal sets contain the truth as often as they promise; to contain it more often keeps the promise."""
    size, name = ("classes on average", "sets") if what == "classes" else ("wide on average", "intervals")
    promise = f"Conformal {name} ({sets['kind']}, calibrated on {sets['n']:,} rows) promise {sets['level']:.1%}"
    held = f"they contain the truth in {sets['coverage']:.1%} of rows here"
    interval = f"95 % interval {sets['low']:.1%} to {sets['high']:.1%}"
    kept = "kept" if sets["level"] <= sets["high"] else "NOT KEPT"
    return f"{promise}: {held} ({sets['size']:.4g} {size}; {interval}): {kept}"
