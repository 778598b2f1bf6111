"""The words of the command line: options that commands share, and what they stand for."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from .network import hidden_widths, user_network
from .settings import make_likelihood, make_prior
from .sharing import Group

if TYPE_CHECKING:
    from ..defaults import Maker
    from ..problem.likelihoods import Likelihood
    from ..problem.priors import Prior
    from ..tables import Rules

MOST = 10_000  # members

Target = Annotated[
    str | None,
    typer.Option(
        help="The column to predict; or several columns of labels, 0 or 1, such as rain,wind; or an array of labels in "
        "an npz file."
    ),
]
Kind = Annotated[
    str | None,
    typer.Option(
        help="classes, labels or real: the type of the target. Default: several columns are labels; text, true/false "
        "and up to 20 different whole numbers are classes; other numbers are real."
    ),
]
Missing = Annotated[
    str,
    typer.Option(
        help="refuse, or impute: cells without a value (empty, NA, N/A, NaN, null, ?) become the training rows' median "
        "or most frequent value, and an extra input marks them."
    ),
]
Unseen = Annotated[
    str,
    typer.Option(
        help="refuse, or other: values of a category that occur at most once in training share one input, so rows with "
        "new values can be predicted."
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(help="A column to use although it is constant or looks like an identifier; repeat for several."),
]
Drop = Annotated[list[str] | None, typer.Option(help="A column to ignore; repeat for several.")]
Categories = Annotated[
    list[str] | None,
    typer.Option("--category", help="A column of numbers or dates to treat as categories; repeat for several."),
]
SplitBy = Annotated[
    str | None,
    typer.Option(
        "--split",
        help="random; time, or time:COL: the earliest rows train, the latest test; group:COL: rows that share a value "
        "stay together; column:COL: the column says train, val or test. Default: random, with a warning if there are "
        "dates.",
    ),
]
Duplicates = Annotated[
    bool,
    typer.Option("--group-duplicates", help="Keep rows with the same inputs together in a random split."),
]
Network = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="FILE.py:NAME, a function that returns the network as an nn.Module. It takes two numbers, of inputs and "
        "of outputs, or no arguments. The file is executed, so use only files you trust. Default: for real targets a "
        "network that embeds numbers and predicts its noise; for classes an MLP, or such a network where validation "
        "prefers it; for labels an MLP.",
    ),
]
OwnNetwork = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="FILE.py:NAME, the same as in fit, if the posterior was fitted with --model. The file is executed, so "
        "use only files you trust.",
    ),
]
Width = Annotated[
    str | None,
    typer.Option(
        help="Widths of the hidden layers of the built-in network, such as 100,100. Default: three layers of 128 for "
        "real targets, else two of 200."
    ),
]
PriorOf = Annotated[
    str | None,
    typer.Option(
        "--prior",
        help="Prior of the weights: the scale of a Normal (0.5, lecun, he or xavier), or a name with fields, such as "
        "StudentT:df=3,scale=0.5. Default: Normal of scale 1; of scale 3 for the built-in network of real targets.",
    ),
]
LikelihoodOf = Annotated[
    str | None,
    typer.Option(
        "--likelihood",
        help="Heteroscedastic (noise that depends on the inputs), Gaussian or StudentT (heavy tails), for classes "
        "Categorical or NoisyDirichlet; with fields, such as StudentT:df=3. Noise is in standard deviations of the "
        "target. Default: Categorical for classes; for real targets Gaussian with --model, else Heteroscedastic or "
        "Gaussian, of the target or a function of it, as validation chooses; noise is learned.",
    ),
]
Images = Annotated[Path | None, typer.Option("--folder", help="Folder with the files of an image set.")]
Members = Annotated[int, typer.Option(min=1, max=MOST, help="Size of the ensemble.")]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        help="NAME=VALUE, a hyperparameter of the method, such as epochs=100, optimizer.lr=0.01 (at every step), "
        "optimizer.lr.peak=0.01 (along its schedule), optimizer=SGD:lr=0.1 or base.epochs=50; repeat for several.",
    ),
]
Device = Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 ... Default: the GPU if there is one.")]
On = Annotated[
    str | None,
    typer.Option(
        "--on", help="ray, or ray:ADDRESS such as ray:10.0.0.1:6379: train on a Ray cluster. Default: this machine."
    ),
]
Samples = Annotated[
    int | None,
    typer.Option(
        min=1, help="Samples per member. Default: as many as the method says; all, if a member has only a few."
    ),
]
FOLDER = Annotated[Path, typer.Argument(help="The folder that `basinet fit` wrote.")]


class Design(NamedTuple):
    """The network, the likelihood and the prior that options ask for."""

    model: str | None  # as it was written
    make: Maker | None
    hidden: tuple[int, ...] | None
    likelihood: Likelihood | None
    prior: Prior | None


def make_rules(
    kind: str | None,
    missing: str,
    unseen: str,
    keep: list[str] | None,
    drop: list[str] | None,
    category: list[str] | None,
    split: str | None,
    group_duplicates: bool,
) -> Rules:
    from ..tables import Rules

    words: dict[str, Any] = {"kind": kind, "missing": missing, "unseen": unseen, "split": split}  # which Rules knows
    columns: dict[str, Any] = {"keep": tuple(keep or ()), "drop": tuple(drop or ())}
    return Rules(**words, **columns, categories=tuple(category or ()), group_duplicates=group_duplicates)


def make_design(model: str | None, width: str | None, prior: str | None, likelihood: str | None) -> Design:
    hidden = hidden_widths(width)
    if hidden is not None and model is not None:
        raise ValueError("expected --width or --model, got both: a network of your own has its own widths")
    make = None if model is None else user_network(model)
    return Design(model, make, hidden, make_likelihood(likelihood), make_prior(prior))


RULES = Group(
    make_rules,
    {
        "kind": (Kind, None),
        "missing": (Missing, "refuse"),
        "unseen": (Unseen, "refuse"),
        "keep": (Keep, None),
        "drop": (Drop, None),
        "category": (Categories, None),
        "split": (SplitBy, None),
        "group_duplicates": (Duplicates, False),
    },
)
IN_ORDER = Group(  # the rules of a stream, whose rows are split by time
    partial(make_rules, split=None, group_duplicates=False),
    {name: option for name, option in RULES.options.items() if name not in ("split", "group_duplicates")},
)
DESIGN = Group(
    make_design,
    {
        "model": (Network, None),
        "width": (Width, None),
        "prior": (PriorOf, None),
        "likelihood": (LikelihoodOf, None),
    },
)


def check_conformal(level: float, kind: str, rows: int) -> None:
    """Refuses, before training, a calibration for which there are too few rows."""
    from ..calibrate.conformal_sets import needed

    if not 0 < level < 1:
        raise ValueError(f"expected --conformal between 0 and 1, such as 0.9, got {level:g}")
    if kind == "labels":
        raise ValueError("--conformal is for classes and numbers, and the target is labels: leave it out")
    if rows < needed(level):
        raise ValueError(
            f"--conformal {level:g} needs at least {needed(level):,} rows to calibrate on, got {rows:,}: raise --val"
        )


def make_engine(device: str | None, on: str | None = None) -> Any:
    from ..engine import Engine

    return Engine(device=device, executor=on, progress=True)
