"""Commands that say beforehand what methods cost and which to use."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.markup import escape
from rich.table import Table

from .app import app
from .console import clear_errors, out, tell, warn
from .settings import make_recipe
from .sharing import Given, with_options
from .words import DESIGN, RULES, Design, Device, Images, Members, Settings, Target, make_engine

if TYPE_CHECKING:
    from ..cost.cost import Cost
    from ..data import Splits
    from ..engine import Method
    from ..problem import Problem
    from ..tables import Rules

Where = Annotated[str, typer.Argument(help="A file with --target, a built-in set, or with --folder an image set.")]


@app.command()
@with_options(design=DESIGN, rules=RULES)
def cost(
    data: Where = "digits",
    target: Target = None,
    method: Annotated[
        str | None,
        typer.Option(help="Show every structure of this method. Default: all methods with their default structures."),
    ] = None,
    members: Members = 10,
    setting: Settings = None,
    folder: Images = None,
    device: Device = None,
    *,
    rules: Given,
    design: Given,
) -> None:
    """Estimate memory and time of fitting and predicting, and show what would be refused, before anything large is
    made.

    Memory follows from shapes; seconds are those of a few steps and passes that are timed here, scaled to what the
    recipe plans. Predicting is of the test part.
    """
    from ..cost.cost import Meter
    from ..engine.memory import readable
    from ..methods import discover

    with clear_errors():
        engine = make_engine(device)
        splits, problem = _problem(data, target, folder, rules(), design())
        if method is None and setting:
            raise ValueError("expected --method with --set: settings are those of one method")
        if method is None:
            recipes = {name: cls() for name, cls in discover().items() if cls.__module__.startswith("basinet.")}
        else:
            recipes = _rows(make_recipe(method, setting or ()))
        meter = Meter(problem, splits.train, val=splits.val, inputs=splits.test.n, engine=engine)
        costs = {}
        for name, recipe in recipes.items():
            try:
                costs[name] = meter(recipe, members)
            except ValueError:  # another structure may be none of this network, which may have no last layer, say
                if not costs:
                    raise
        first = next(iter(costs.values()))
        tell(
            f"{splits.name}: {first.parameters:,} parameters, {splits.train.n:,} training examples, {members} "
            f"member{'s' if members > 1 else ''}; {readable(first.free_bytes)} of memory may be used",
        )
        shown = Table(box=SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
        for head in ("recipe", "fit", "", "kept", f"predict {splits.test.n:,}", "", "verdict"):
            shown.add_column(head, justify="left" if head in ("recipe", "verdict") else "right", no_wrap=True)
        for name, c in costs.items():
            sizes = [readable(x) for x in (c.fit_bytes, c.kept_bytes, c.predict_bytes)]
            fit, predict = (_time(x) for x in (c.fit_seconds, c.predict_seconds))
            shown.add_row(escape(name), sizes[0], fit, sizes[1], sizes[2], predict, "fits" if c.fits else "refused")
        out.print(shown)
        for name, c in costs.items():
            if not c.fits:
                tell(f"{name} is refused: {_other(c)}")
        out.print("Estimates. Fit: the most memory at once, and time, base recipes included.", highlight=False)
        for line in dict.fromkeys(x for c in costs.values() for x in c.basis.split("; ") if x and method):
            tell(f"  {line}")


@app.command()
@with_options(design=DESIGN, rules=RULES)
def advise(
    data: Where = "digits",
    target: Target = None,
    seconds: Annotated[
        float | None, typer.Option(help="At most this many seconds to fit, on this machine. Default: no limit.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="At most this many training steps, all members together. Default: no limit.")
    ] = None,
    passes: Annotated[
        int | None, typer.Option(help="At most this many forward passes per prediction. Default: no limit.")
    ] = None,
    weights: Annotated[
        Path | None, typer.Option(help="A safetensors file with trained weights of the network.")
    ] = None,
    folder: Images = None,
    device: Device = None,
    *,
    rules: Given,
    design: Given,
) -> None:
    """Recommend two recipes within a budget, with reasons that can be looked up and what they will cost."""
    from ..advice import Budget
    from ..advice import advise as two
    from ..networks import with_weights
    from ..posterior import Posterior

    with clear_errors():
        engine, budget = make_engine(device), Budget(seconds, steps, passes)
        splits, problem = _problem(data, target, folder, rules(), design())
        start = None
        if weights is not None:
            start = Posterior.of(with_weights(copy.deepcopy(problem.network.module), weights), problem)
        suggestions = two(problem, splits.train, budget, val=splits.val, start=start, engine=engine)
        for number, advice in enumerate(suggestions, 1):
            tell(f"{number}. {advice}")
            out.print()
        tell("The records are few: compare the two on your own data before you rely on either.")


def _problem(
    data: str, target: str | None, folder: Path | None, rules: Rules, design: Design
) -> tuple[Splits, Problem]:
    """A built-in set or a file, and what is to be learned of it."""
    from ..compare import default_problem
    from ..compare.api import is_file, target_name
    from ..data import datasets
    from ..tables import load_table

    if is_file(data, target):
        splits, _ = load_table(data, target_name(Path(data), target), rules, say=warn)
    else:
        splits = datasets.load(data, folder=folder)
    return splits, default_problem(splits, design.make, design.likelihood, design.prior, design.hidden)


def _rows(recipe: Method) -> dict[str, Method]:
    """All structures of a recipe, by what they differ in; itself first."""
    from ..cost.recipe import differences

    return {f"{type(recipe).__name__} as given": recipe} | {
        differences(recipe, x): x for x in recipe.variants() if x != recipe
    }


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    for unit, size in (("h", 3600.0), ("min", 60.0)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.2g} s"


def _other(refused: Cost) -> str:
    """What to use in place of a recipe that does not fit."""
    from ..cost.recipe import differences

    if refused.instead is None:
        return "no other structure of it fits"
    return f"{differences(refused.method, refused.instead)} fits"
