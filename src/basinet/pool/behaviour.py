"""What a problem computes, in a few numbers: networks that print alike may still differ.

The network is run on the first training examples (of a stream, on numbers drawn in their shapes), at parameters that
follow only from their names (so that no version of torch and no device changes them) and at its own start, in
evaluation and in training; the numbers are what its outputs, the likelihood and the prior give there. It is run again
with parameters and inputs several times as large, and with whole numbers drawn from all that the data hold, the edges
often: a clamp, a mask and a branch that is rarely taken are seen there. They are computed on the CPU in double
precision, where that can be, and compared up to rounding; what a change of the parameters in their last digits alters
is left out. A source that differs is accepted where all of these agree, and decides where they could
not be computed.
"""

from __future__ import annotations

import ast
import inspect
import math
import textwrap
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from ..core.model import seeded
from ..core.noise import Noise
from ..core.tree import Params, Point, leaves, move, size, take, tree_map
from ..data import Data, Stream, some
from ..problem import Batch, Problem
from .codec import digest

OUTPUT, TRAINING, FURTHER = "the network's output", "its output in training", "its output with "
FEW, MANY = 4, 64  # examples that a network of any size is run on, and one that takes little
FLOPS = (
    1e9  # that the runs on larger parameters and inputs may take, half a second: of larger networks they are left out
)
SIZES = 1, 3, 10  # of parameters and inputs
RUNS = 2 * (3 * 3 + 3 + 2)  # how often the network is run on them, about
NUMBERS = 4  # that stand for the outputs of a run
OURS = ("torch", "basinet")  # whose layers are identified by how they print, and whose source changes with versions

Numbers = list[float | None] | None  # None for one that is not finite, or where there are none

_known: WeakKeyDictionary[Problem, dict[str, dict[str, Any]]] = WeakKeyDictionary()
_counts: WeakKeyDictionary[Problem, tuple[int, bool]] = WeakKeyDictionary()


def behaviour(problem: Problem, data: Data | Stream | None) -> dict[str, Any] | None:
    """What the problem computes on the first of some data, as JSON; None without data."""
    if data is None:
        return None
    seen = _in_its_place(some(data)) if isinstance(data, Stream) else data
    if problem not in _counts:
        _counts[problem] = _affordable(problem, seen)
    count, further = _counts[problem]
    few = Data(*move(take((seen.inputs, seen.targets), slice(count)), "cpu"))
    drawn = _drawn(seen.inputs, few.inputs) if further else ()
    rows = digest({str(i): x for i, x in enumerate((*leaves(few.inputs), few.targets, *leaves(drawn)))})[:16]
    known = _known.setdefault(problem, {})
    if rows not in known:
        measured = _measured(problem, few, _others(few.inputs, drawn) if further else {})
        known[rows] = {"rows": rows, "source": _source(problem.network.module), **measured}
    return known[rows]


def unlike(old: dict[str, Any], new: dict[str, Any]) -> str:
    """In words, how what was computed differs; empty where it does not."""
    double, same = old["dtype"] == new["dtype"] == "float64", old["dtype"] == new["dtype"]
    a, b = old["numbers"], new["numbers"]
    compared = [n for n in a if a[n] is not None and b.get(n) is not None]
    for name in (n for n in compared if same or TRAINING not in n):  # noise has other bits in another precision
        if not _close(a[name], b[name], 1e-6 if double else 1e-3):
            was, now = (" ".join("nan" if x is None else f"{x:.6g}" for x in y[name]) for y in (a, b))
            return f"{name}, on the same examples, was {was} and is {now}"
    if None in (old["source"], new["source"]) or old["source"] == new["source"]:
        return ""
    tried = OUTPUT in compared and any(n.startswith(FURTHER) for n in compared)
    everywhere = tried and all((a.get(n) is None) == (b.get(n) is None) for n in (*a, *b))
    return "" if everywhere else "the source code of its network has changed"


def _in_its_place(first: Data) -> Data:
    """Examples in the shapes of a stream's, whose first batch may be another one each time: normal numbers, and 0 and 1
    for whole ones."""

    def drawn(x: Tensor) -> Tensor:
        z = Noise.seed(4).normal(torch.empty(MANY, *x.shape[1:]))
        return (z if x.is_floating_point() else z > 0).to(x.dtype)

    return Data(tree_map(drawn, first.inputs), drawn(first.targets))


class _Work(TorchFunctionMode):
    """Counts flops of products with some weights, about."""

    def __init__(self, weights: Params) -> None:
        super().__init__()
        self.weights = {id(x) for x in weights.values() if x.dim() > 1}
        self.flops = 0.0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        returned = func(*args, **(kwargs or {}))
        outputs = next((x.numel() for x in leaves(returned) if isinstance(x, Tensor)), 0)
        used = [x for x in leaves((args, kwargs)) if id(x) in self.weights]
        self.flops += sum(2.0 * x.numel() * outputs / x.shape[0] for x in used)
        return returned


def _affordable(problem: Problem, seen: Data) -> tuple[int, bool]:
    """On how many examples the network is run, and whether on larger parameters and inputs too: by what it takes."""
    start, one = problem.init(Noise.seed(0)), take(seen.inputs, slice(1))
    place = next(iter(start.params.values())).device
    work = _Work(start.params)
    try:
        with torch.no_grad(), work:
            problem.outputs(start.params, start.buffers, move(one, place), Noise.seed(2, place))
    except Exception:  # whatever a user's network raises: training will say it
        return FEW, False
    flops = max(work.flops, 2 * size(start.params))
    count = next((n for n in (MANY, MANY // 4, FEW) if n * RUNS * flops <= FLOPS), 0)
    return (count, True) if count else (FEW, False)


def _drawn(inputs: Any, few: Any) -> Any:
    """Inputs whose whole numbers are drawn from those between the least and the largest in the data, a quarter of each
    example at the edges and next to them, where paddings and unknowns are; () where there are none."""
    key = Noise.seed(3)

    def draw(every: Tensor, like: Tensor) -> Tensor:
        if every.is_floating_point() or every.is_complex() or every.dtype == torch.bool:
            return like
        low, high = int(every.min()), int(every.max())
        values = low + key.split("values").integers(like.numel(), high - low + 1).reshape(like.shape)
        edges = torch.tensor([low, min(low + 1, high), max(high - 1, low), high])
        row = torch.arange(len(like)).reshape(-1, *[1] * (like.dim() - 1)) % len(edges)
        return torch.where(key.split("edges").bernoulli(0.25, like.cpu()), edges[row], values).to(like.dtype)

    drawn = tree_map(draw, inputs, few)
    return () if all(x is y for x, y in zip(leaves(drawn), leaves(few))) else drawn


def _others(inputs: Any, drawn: Any) -> dict[str, tuple[int, Any]]:
    """By name, how many times larger the parameters are of each further run, and on what it is."""

    def larger(by: int) -> Any:
        return tree_map(lambda x: x * by if x.is_floating_point() else x, inputs)

    real = any(x.is_floating_point() for x in leaves(inputs))
    runs = {f"{p} x parameters, {x} x inputs": (p, larger(x)) for p in SIZES for x in (SIZES if real else (1,))}
    if leaves(drawn):
        runs |= {f"{p} x parameters, other whole numbers": (p, drawn) for p in SIZES}
    return runs


def _measured(problem: Problem, few: Data, others: dict[str, tuple[int, Any]]) -> dict[str, Any]:
    """The numbers, and the precision they were computed in: the first that the network runs in."""
    own = next(iter(problem.network.module.parameters()))
    numbers: dict[str, Numbers] = {}
    ways = ((torch.device("cpu"), torch.float64), (torch.device("cpu"), own.dtype), (own.device, own.dtype))
    for place, dtype in ways:
        least, tolerance = (1e-12, 1e-6) if dtype == torch.float64 else (1e-6, 1e-3)
        once = _numbers(problem, few, others, place, dtype, 0.0)
        if once[OUTPUT] is None and (place, dtype) != ways[-1]:
            continue
        again = _numbers(problem, few, others, place, dtype, least)  # what is drawn without a key is left out, too
        numbers = {n: x if _close(x, again[n], tolerance / 10) else None for n, x in once.items()}
        if numbers[OUTPUT] is not None:
            return {"dtype": str(dtype).removeprefix("torch."), "numbers": numbers}
    return {"dtype": "none", "numbers": {n: None if n.startswith(FURTHER) else x for n, x in numbers.items()}}


def _numbers(
    problem: Problem,
    few: Data,
    others: dict[str, tuple[int, Any]],
    place: torch.device,
    dtype: torch.dtype,
    change: float,
) -> dict[str, Numbers]:
    start, data = problem.init(Noise.seed(0)), few.to(place, dtype)
    built = all(x.device.type == "cpu" for x in start.params.values())  # else its start depends on the device
    point: Point = move(start, place, dtype)
    keyed = {n: _at(n, x) + change * _at(f"{n}, changed", x) for n, x in point.params.items()}
    noise, directions = Noise.seed(2, place), dict[int, list[Tensor]]()

    def sums(compute: Callable[[], Tensor]) -> Numbers:
        return _sums(compute, directions)

    def at(params: Params, mode: Any, inputs: Any = data.inputs) -> Tensor:
        return problem.outputs(params, point.buffers, inputs, noise, mode)[0]

    def likelihood() -> Tensor:
        index = torch.arange(len(data.targets), device=place)
        batch = Batch(data.inputs, data.targets, index, torch.zeros((), device=place), len(data.targets))
        return problem.log_densities(at(keyed, "eval"), keyed, batch)

    energy = sums(lambda: problem.term_potential(keyed, point.buffers, None, "eval"))
    numbers: dict[str, Numbers] = {"the energy of its terms": energy} if problem.terms else {}
    for name, (times, inputs) in others.items():
        of = partial(at, {n: x * times for n, x in keyed.items()}, inputs=move(inputs, place, dtype))
        numbers[FURTHER + name] = sums(partial(of, "eval"))
        if times == max(SIZES):
            numbers[f"{FURTHER}{name}, and {TRAINING}"] = sums(partial(of, "train"))
    return {
        OUTPUT: sums(lambda: at(keyed, "eval")),
        TRAINING: sums(lambda: at(keyed, "train")),
        "its output at the start": sums(lambda: at(point.params, "eval")) if built else None,
        "the log likelihood": sums(likelihood),
        "the prior's energy": sums(lambda: problem.prior.energy(problem.split(keyed)[0])),
    } | numbers


def _at(name: str, like: Tensor) -> Tensor:
    """Values of a parameter that follow from its name: normal, of the size that keeps outputs near 1."""
    fan = like[0].numel() if like.dim() > 1 else 4
    return (Noise.seed(0, like.device).split(name).normal(like.double()) / math.sqrt(max(fan, 1))).to(like.dtype)


def _sums(compute: Callable[[], Tensor], directions: dict[int, list[Tensor]]) -> Numbers:
    """A few numbers that stand for a tensor: random sums of its elements. None where it cannot be computed."""
    try:
        with torch.no_grad(), seeded(0):
            flat = compute().detach().double().flatten()
    except Exception:  # whatever a user's network raises: training will say it
        return None
    n = flat.numel()
    if n not in directions:
        directions[n] = [Noise.seed(1, flat.device).split(i).normal(flat) for i in range(NUMBERS)]
    sums = [float(flat @ direction) / math.sqrt(max(n, 1)) for direction in directions[n]]
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
