"""What `fit` and `cost` refuse before anything is computed, and recipes in the batches of a stream."""

from __future__ import annotations

from collections.abc import Sized
from os import PathLike
from typing import Any

from torch.utils.data import DataLoader

from .core.noise import Noise
from .data import Data, Stream
from .engine import Based, Engine, Method
from .engine.method import patience_of
from .posterior import Posterior
from .problem import Problem


def check_arguments(
    method: Method,
    problem: Problem,
    data: Data | Stream | None,
    val: Data | Stream | None,
    members: int | None,
    start: Posterior | None,
) -> None:
    """Refuses arguments that are not a recipe, a problem, data or a start."""
    name = type(method).__name__
    if isinstance(method, type) and issubclass(method, Method):
        raise TypeError(f"expected a recipe such as {method.__name__}(), got the class {method.__name__}")
    if not isinstance(method, Method):
        raise TypeError(f"expected a recipe such as bn.MAP(), got {name}")
    if not isinstance(problem, Problem):
        raise TypeError(f"expected a bn.Problem, got {type(problem).__name__}")
    check_data("data", data)
    check_data("val", val)
    if members is not None and (isinstance(members, bool) or not isinstance(members, int) or members < 1):
        raise ValueError(f"expected members to be a positive integer, got {members!r}")
    if start is not None and not isinstance(start, Posterior):
        raise TypeError(
            f"expected start as a posterior, got {type(start).__name__}: use bn.Posterior.of(module, problem)"
        )
    if start is not None and members is not None and len(start) not in (1, members):
        raise ValueError(f"start has {len(start)} members and {members} were asked for: expected 1 or {members}")


def check_data(what: str, given: Any) -> None:
    """Refuses what is neither data nor a stream, and says how a DataLoader becomes one."""
    if isinstance(given, DataLoader):
        n = "len(loader.dataset)" if isinstance(given.dataset, Sized) else "how many examples it has"
        raise TypeError(
            f"expected {what} as bn.Data(inputs, targets), got a DataLoader: bn.Data.stream(loader, n={n}) reads one"
        )
    if given is not None and not isinstance(given, (Data, Stream)):
        raise TypeError(f"expected {what} as bn.Data(inputs, targets), got {type(given).__name__}")


def check_options(seed: Any, pool: Any, engine: Any, observe: Any) -> None:
    Noise.seed(seed)  # refuses what is none
    if pool is not None and not isinstance(pool, (str, PathLike)):
        raise TypeError(f"expected pool as the path of a folder, got {type(pool).__name__}")
    if engine is not None and not isinstance(engine, Engine):
        raise TypeError(f"expected engine as bn.Engine(device='cpu'), say, got {type(engine).__name__}")
    if observe is not None and not callable(observe):
        raise TypeError(f"expected observe as a function of an event, got {type(observe).__name__}")


def check_needs(method: Method, problem: Problem, data: Data | Stream | None, val: Data | Stream | None) -> None:
    """Refuses a fit without data that the recipe needs, or with terms that it does not use."""
    name = type(method).__name__
    if problem.terms and not method.terms:
        kinds = ", ".join(dict.fromkeys(type(term).__name__ for term in problem.terms))
        raise ValueError(
            f"{name} as given here uses only data and prior, and the problem has further terms "
            f"({kinds}): use a method that follows the potential, such as SWAG or MAP with members, or leave them out"
        )
    for what, kind, given in (("data", "training", data), ("val", "validation", val)):
        if given is None and what in method.needs:
            raise ValueError(f"{name} needs {kind} data: pass {what}=")
    if hasattr(method, "base") and not isinstance(method, Based):
        raise TypeError(f"{name} has a field base, which nothing reads: derive it from basinet.engine.Based")
    if patience_of(method) is not None and val is None and getattr(method, "patience", None) is not None:
        raise ValueError(f"{name} with patience stops on the validation NLL: pass val=, or patience=None")


def check_coupled(
    method: Method,
    recipes: int,
    parts: tuple[Data | Stream | None, Data | Stream | None],
    members: int | None,
    start: Posterior | None,
) -> None:
    """Refuses what members that see each other cannot have; `parts` are training and validation data."""
    name = method.label
    if members is None and start is None:
        raise ValueError(f"the members of {name} see each other, so their number matters: give members=10, say")
    if recipes > 1 and (members if members is not None else len(start or ())) < 2 * recipes:
        raise ValueError(
            f"members of {name} with the same recipe see each other, and its lists have {recipes} values: give "
            f"members={10 * recipes}, say, 10 for each"
        )
    if any(isinstance(part, Data) and part.rows is not None for part in parts):
        raise ValueError(f"the members of {name} see the same batches: give data without index lists per member")


def in_batches(method: Method, stream: Stream) -> Method:
    """The recipe with the stream's batches in place of its own, so that epochs and averages are counted in them."""
    size = len(stream.first().targets)
    batched = method.in_batches(size, stream.n)
    if batched is None and size < stream.n:
        raise ValueError(
            f"{type(method).__name__} takes all {stream.n:,} examples at each step, and the stream gives {size} at a "
            "time: give it a batch_size (of any value: the stream decides), use another method, or data in memory"
        )
    return batched or method
