"""What a problem computes, in a few numbers: networks that print alike need not be alike.

The network is run on the first training examples, at parameters that follow only from their names (so that no
version of torch and no device changes them) and at its own start, in evaluation and in training; the numbers are what
its outputs, the likelihood and the prior give there. They are computed on the CPU in double precision, where that can
be, and compared up to rounding. The source of its classes decides where nothing can be run.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from ..core.model import seeded
from ..core.noise import Noise
from ..core.tree import Params, Point, leaves, move, take
from ..data import Data, Stream, some
from ..problem import Batch, Problem
from .codec import digest

TRAINING = "its output in training"
ROWS = 4  # examples that the network is run on
NUMBERS = 4  # that stand for the outputs of a run
OURS = ("torch", "basinet")  # whose layers are identified by how they print, and whose source changes with versions

Numbers = list[float | None] | None  # None for one that is not finite, or where there are none

_known: WeakKeyDictionary[Problem, dict[str, dict[str, Any]]] = WeakKeyDictionary()


def behaviour(problem: Problem, data: Data | Stream | None) -> dict[str, Any] | None:
    """What the problem computes on the first of some data, as JSON; None without data."""
    if data is None:
        return None
    seen = some(data)
    few = Data(*move(take((seen.inputs, seen.targets), slice(ROWS)), "cpu"))
    rows = digest({str(i): x for i, x in enumerate((*leaves(few.inputs), few.targets))})[:16]
    known = _known.setdefault(problem, {})
    if rows not in known:
        known[rows] = {"rows": rows, "source": _source(problem.network.module), **_measured(problem, few)}
    return known[rows]


def unlike(old: dict[str, Any], new: dict[str, Any]) -> str:
    """In words, how what was computed differs; empty where it does not."""
    double, same = old["dtype"] == new["dtype"] == "float64", old["dtype"] == new["dtype"]
    compared = [n for n in old["numbers"] if old["numbers"][n] is not None and new["numbers"].get(n) is not None]
    for name in (n for n in compared if same or n != TRAINING):  # noise has other bits in another precision
        if not _close(old["numbers"][name], new["numbers"][name], 1e-6 if double else 1e-3):
            a, b = (" ".join("nan" if x is None else f"{x:.6g}" for x in y["numbers"][name]) for y in (old, new))
            return f"{name}, on the same examples, was {a} and is {b}"
    if not compared and None not in (old["source"], new["source"]) and old["source"] != new["source"]:
        return "the source of its network is another one"
    return ""


def _measured(problem: Problem, few: Data) -> dict[str, Any]:
    """The numbers, and the precision they were computed in: the first that the network runs in."""
    own = next(iter(problem.network.module.parameters()))
    numbers: dict[str, Numbers] = {}
    ways = ((torch.device("cpu"), torch.float64), (torch.device("cpu"), own.dtype), (own.device, own.dtype))
    for place, dtype in ways:
        once, again = (
            _numbers(problem, few, place, dtype) for _ in range(2)
        )  # what is drawn without a key is left out
        numbers = {n: x if _close(x, again[n], 1e-3) else None for n, x in once.items()}
        if numbers["the network's output"] is not None:
            return {"dtype": str(dtype).removeprefix("torch."), "numbers": numbers}
    return {"dtype": "none", "numbers": numbers}


def _numbers(problem: Problem, few: Data, place: torch.device, dtype: torch.dtype) -> dict[str, Numbers]:
    start, data = problem.init(Noise.seed(0)), few.to(place, dtype)
    built = all(x.device.type == "cpu" for x in start.params.values())  # else its start depends on the device
    point: Point = move(start, place, dtype)
    keyed = {n: _at(n, x) for n, x in point.params.items()}
    noise = Noise.seed(2, place)

    def at(params: Params, mode: Any) -> Tensor:
        return problem.outputs(params, point.buffers, data.inputs, noise, mode)[0]

    def likelihood() -> Tensor:
        index = torch.arange(len(data.targets), device=place)
        batch = Batch(data.inputs, data.targets, index, torch.zeros((), device=place), len(data.targets))
        return problem.log_densities(at(keyed, "eval"), keyed, batch)

    energy = _told(lambda: problem.term_potential(keyed, point.buffers, None, "eval"))
    terms: dict[str, Numbers] = {"the energy of its terms": energy} if problem.terms else {}
    return {
        "the network's output": _told(lambda: at(keyed, "eval")),
        TRAINING: _told(lambda: at(keyed, "train")),
        "its output at the start": _told(lambda: at(point.params, "eval")) if built else None,
        "the log likelihood": _told(likelihood),
        "the prior's energy": _told(lambda: problem.prior.energy(problem.split(keyed)[0])),
    } | terms


def _at(name: str, like: Tensor) -> Tensor:
    """Values of a parameter that follow from its name: normal, of the size that keeps outputs near 1."""
    fan = like[0].numel() if like.dim() > 1 else 4
    return (Noise.seed(0, like.device).split(name).normal(like.double()) / math.sqrt(max(fan, 1))).to(like.dtype)


def _told(compute: Callable[[], Tensor]) -> Numbers:
    """A few numbers that stand for a tensor: random sums of its elements. None where it cannot be computed."""
    try:
        with torch.no_grad(), seeded(0):
            flat = compute().detach().double().flatten()
    except Exception:  # whatever a user's network raises: training will say it
        return None
    directions = (Noise.seed(1, flat.device).split(i).normal(flat) for i in range(NUMBERS))
    sums = [float(flat @ direction) / math.sqrt(max(flat.numel(), 1)) for direction in directions]
    return [x if math.isfinite(x) else None for x in sums]


def _close(a: Numbers, b: Numbers, tolerance: float) -> bool:
    if a is None or b is None:
        return False
    size = math.sqrt(sum(x * x for x in (*a, *b) if x is not None) / (len(a) + len(b) or 1))
    return len(a) == len(b) and all(
        x is y is None or (x is not None and y is not None and abs(x - y) <= tolerance * size) for x, y in zip(a, b)
    )


def _source(module: nn.Module) -> str | None:
    """A digest of the source of a network's own classes, without comments and layout; None where it cannot be had."""
    texts = []
    for cls in sorted({type(m) for m in module.modules()}, key=lambda c: c.__qualname__):
        if cls.__module__.split(".")[0] not in OURS:
            try:
                texts.append(ast.unparse(ast.parse(textwrap.dedent(inspect.getsource(cls)))))
            except (OSError, TypeError, SyntaxError):  # typed at a prompt, or made by a program
                return None
    return sha256("\n".join(texts).encode()).hexdigest()[:16]
