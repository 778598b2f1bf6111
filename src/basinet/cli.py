"""The command `basinet`."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from .core.documented import documented_fields, summary
from .core.version import VERSION

if TYPE_CHECKING:
    from .compare import Maker
    from .data import Rules
    from .engine import Method

app = typer.Typer(
    help="Bayesian neural networks and deep ensembles: posteriors that are tested to be posteriors.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
out = Console(width=None if sys.stdout.isatty() else 120)
err = Console(stderr=True)
PLAIN: dict[str, Any] = {"soft_wrap": True, "markup": False, "highlight": False}  # words of users, printed as they are


def _version(wanted: bool) -> None:
    if wanted:
        out.print(VERSION, highlight=False)
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")]


@app.callback()
def _root(version: Version = False) -> None:
    pass


Target = Annotated[str | None, typer.Option(help="The column to predict.")]
Kind = Annotated[
    str | None,
    typer.Option(
        help="classes or real: what the target is. Default: text, true/false and up to 20 different whole numbers are "
        "classes, other numbers are real."
    ),
]
Missing = Annotated[
    str,
    typer.Option(
        help="refuse, or impute: cells without a value (empty, NA, N/A, NaN, null, ?) become the training rows' median "
        "or most frequent value, and a further input says where."
    ),
]
Unseen = Annotated[
    str,
    typer.Option(
        help="refuse, or other: values of a category that training had once or never share one input, so that new ones "
        "can be predicted."
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="A column to use though it is constant or looks like an identifier; repeat for several."),
]
Drop = Annotated[list[str] | None, typer.Option(help="A column not to use; repeat for several.")]
Categories = Annotated[
    list[str] | None,
    typer.Option("--category", help="A column of numbers or dates whose values are names; repeat for several."),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="FILE.py:NAME, a function that returns the network as an nn.Module: of (inputs, outputs), called with how "
        "many there are, or of nothing. Default: an MLP with two hidden layers, of 200 for classes, of 50 for real "
        "targets.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ... Default: the GPU where there is one.")]
Samples = Annotated[
    int | None, typer.Option(min=1, help="Samples a member. Default: what the method says; all where they are few.")
]
FOLDER = Annotated[Path, typer.Argument(help="The folder that `basinet fit` wrote.")]


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
    from . import compare as study
    from .data import datasets, load_table
    from .data.table import READ

    file = target is not None or Path(data).suffix.lower() in READ
    where = place or Path("runs") / f"{Path(data).stem if file else data}-{seed}"
    with _clear_errors(f"members that were done are in {where / 'pool'}; the same command goes on from there"):
        entries = study.entries_of(method or (), members)
        engine = _engine(device)
        encoder = None
        if file:
            goal = _target(Path(data), target)
            splits, encoder = load_table(
                data, goal, _rules(kind, missing, unseen, keep, drop, category), seed=seed, say=_warn
            )
        else:
            splits = datasets.load(data, seed=seed, folder=folder)
        out.print(f"[bold]{escape(splits.name)}[/bold]: {escape(splits.description)}")
        sizes = f"{splits.train.n:,} training, {splits.val.n:,} validation, {splits.test.n:,} test examples"
        out.print(f"{sizes}; seed {seed}", highlight=False)
        problem = study.default_problem(splits, None if model is None else _network(model))
        run = study.compare(
            splits, entries, out=where, problem=problem, encoder=encoder, seed=seed, engine=engine, say=_say
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
    from .compare import Fitted, checksum, problem_for
    from .data import fit_table, read_table
    from .fit import fit as fit_members
    from .scoring import score

    where = folder or Path("runs") / f"{file.stem}-{method.lower()}"
    with _clear_errors(f"members that were done are in {where / 'pool'}; the same command goes on from there"):
        recipe, engine = _recipe(method, setting or ()), _engine(device)
        goal, rules = _target(file, target), _rules(kind, missing, unseen, keep, drop, category)
        table = read_table(file, [goal])
        share = max(val, 1 / table.n)  # one row at least
        fractions = (1 - share, share) if val else (1.0,)
        encoder, parts = fit_table(table, goal, rules, fractions, seed=seed, say=_warn)
        names = encoder.class_names
        make = None if model is None else _network(model)
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
    from .compare import Fitted
    from .data import read_table, write_table
    from .data.table import WRITTEN
    from .pool.files import atomically

    with _clear_errors():
        if place.suffix.lower() not in WRITTEN:
            raise ValueError(f"{place}: expected --out to end in {' or '.join(WRITTEN)}")
        if not 0 < level < 1:
            raise ValueError(f"expected --level between 0 and 1, got {level}")
        if place.exists() and file.exists() and place.samefile(file):
            raise ValueError(f"{place}: expected --out to be another file than the one that is read")
        fitted = Fitted.load(folder, None if model is None else _network(model), _engine(device).place)
        table = read_table(file, [column.name for column in fitted.encoder.columns])
        _tell_strangers(fitted.encoder.strangers(table))
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
    from .compare import Fitted, checksum
    from .data import read_table
    from .pool import append_record, describe
    from .scoring import score

    with _clear_errors():
        fitted = Fitted.load(folder, None if model is None else _network(model), _engine(device).place)
        encoder, posterior = fitted.encoder, fitted.posterior
        table = read_table(file, [encoder.target.name])
        _tell_strangers(encoder.strangers(table))
        digest = checksum(file)
        if digest == fitted.checksum:
            _warn(f"{file} is the file it was fitted to: these are not scores on new data")
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
    err.print(line, style="dim", markup=False, highlight=False)


def _warn(line: str) -> None:
    err.print(f"warning: {line}", style="yellow", **PLAIN)


def _tell_strangers(names: tuple[str, ...]) -> None:
    from .data.values import listed

    if names:
        _say(f"columns that training had not, ignored: {listed(names)}")


def _target(file: Path, target: str | None) -> str:
    """The target's name; without one, an error that says which columns there are."""
    from .data import read_table
    from .data.values import listed

    if target is None:
        raise ValueError(
            f"{file}: expected --target with the column to predict, one of {listed(read_table(file).columns)}"
        )
    return target


def _rules(
    kind: str | None,
    missing: str,
    unseen: str,
    keep: list[str] | None,
    drop: list[str] | None,
    categories: list[str] | None,
) -> Rules:
    from .data import Rules

    words: dict[str, Any] = {"kind": kind, "missing": missing, "unseen": unseen}  # Rules knows which words there are
    return Rules(**words, keep=tuple(keep or ()), drop=tuple(drop or ()), categories=tuple(categories or ()))


def _recipe(name: str, settings: Sequence[str]) -> Method:
    """A method with the hyperparameters of NAME=VALUE."""
    from .core.nearest import did_you_mean
    from .methods import find

    cls = find(name)
    plain = {
        f.name: f.default for f in fields(cls) if f.default is None or isinstance(f.default, (bool, int, float, str))
    }
    found: dict[str, Any] = {}
    for setting in settings:
        key, equals, text = setting.partition("=")
        if not equals or key not in plain:
            raise ValueError(f"expected --set NAME=VALUE of {cls.__name__}, got {setting!r}.{did_you_mean(key, plain)}")
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError):
            value = text
        default = plain[key]
        fits = value is None or isinstance(value, (int, float) if isinstance(default, float) else type(default))
        if not fits and default is not None:
            raise ValueError(f"expected {key} of {cls.__name__} as {type(default).__name__}, got {text!r}")
        found[key] = value
    return cls(**found)


def _engine(device: str | None) -> Any:
    from .engine import Engine

    try:
        return Engine(device=device, progress=True)
    except RuntimeError as error:  # torch's, for a device it has never heard of
        raise ValueError(f"expected a device such as cpu, cuda or cuda:1, got {device!r}") from error


def _network(place: str) -> Maker:
    """The network that FILE.py:NAME makes, as a function of (inputs, outputs)."""
    from torch import nn

    path, _, name = place.rpartition(":")
    if not path or not name:
        raise ValueError(f"expected --model FILE.py:NAME, got {place!r}")
    if not Path(path).is_file():
        raise ValueError(f"--model {place}: there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"basinet_model_{Path(path).stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"--model {place}: expected a Python file, got {path}")
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))  # what it imports lies beside it, as for a script
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever the user's file raises
        raise ValueError(f"--model {place}: {path} cannot be run: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    function = vars(module).get(name)
    if not callable(function):
        raise ValueError(f"--model {place}: {path} has no function {name!r}")
    sized = _takes_sizes(function, place)

    def make(inputs: int, outputs: int) -> nn.Module:
        try:
            network = function(inputs, outputs) if sized else function()
        except Exception as error:  # whatever the user's function raises
            raise ValueError(f"--model {place}: {name} failed: {type(error).__name__}: {error}") from error
        if not isinstance(network, nn.Module):
            raise ValueError(f"--model {place}: expected {name} to return an nn.Module, got {type(network).__name__}")
        return network

    return make


def _takes_sizes(function: Any, place: str) -> bool:
    """Whether a user's function wants (inputs, outputs): it requires two arguments, or names its first two so."""
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    arguments = list(inspect.signature(function).parameters.values())
    required = [p for p in arguments if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    first = [p for p in arguments if p.kind in positional][:2]
    if [p.name for p in first] == ["inputs", "outputs"] and all(p in first for p in required):
        return True
    if len(required) == 2 and required == first:
        return True
    if not required:
        return False
    told = ", ".join(p.name for p in required)
    raise ValueError(f"--model {place}: expected a function of (inputs, outputs) or of nothing, got one of ({told})")


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
