"""Runs the draws of many members on many inputs, in chunks that fit in caches and in memory.

On a CPU draws run one after another, on as many inputs at a time as keep the widest activation in the caches; where
one call would be mostly overhead, a stack of draws runs at once instead. On a GPU stacks run, as large as fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from ..core.keyed import KeyedRandomness
from ..core.lift import at_once_or, lift
from ..core.noise import Noise
from ..core.tree import Params, leaves, nbytes, take, tree_map
from ..cost.demand import Widths
from .draws import Collected, DrawBlock, Drawn, Draws

CPU = 2 * 2**20  # bytes of weights and widest activations in a call on a CPU: what lies in the caches
GPU = 2 * 2**30  # the same on a GPU, where an eighth of what is free is not less
MANY = 16  # draws that must fit in a call for a stack of them to beat one after another on a CPU
FEW = 11  # inputs on which widths are measured: a number that axes of weights are seldom multiples of


def forward(
    draws: Draws,
    inputs: Any,
    blocks: Iterable[DrawBlock] | None = None,
    batch_size: int | None = None,
    begin: int = 0,
) -> tuple[Tensor, Params]:
    """Outputs (M, S, B, *event) of all draws on the inputs, and the likelihood's learned parameters, leaves (M, S,
    ...).

    `blocks` are the draws where they are kept, `batch_size` the inputs of a call (default: planned), `begin` the place
    of the first input among all, where these are a part of them. A dropout mask belongs to a draw and to an input's
    place: neither parts nor `batch_size` change it, where the network has its examples on the first axis as it drops.
    """
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"expected a batch_size of at least 1, got {batch_size}")
    n, collected = leaves(inputs)[0].shape[0], Collected(draws)
    plan: CallSize | None = None
    with torch.no_grad():
        for block in draws.blocks() if blocks is None else blocks:
            plan = plan or _call_size(draws, block, inputs, batch_size)
            for i in range(0, len(block), plan.draws):
                drawn = take(block.drawn, slice(i, i + plan.draws) if plan.draws > 1 else i)
                here = slice(block.first + i, block.first + min(i + plan.draws, len(block)))
                for b in range(0, n, plan.inputs):
                    run = _network(draws, _rows(inputs, b, b + plan.inputs), begin + b)
                    out = lift(run)(drawn) if plan.draws > 1 else run(drawn).unsqueeze(0)
                    if out.dim() < 2 or out.shape[1] != min(plan.inputs, n - b):
                        raise ValueError(
                            f"expected one output row for each input, got outputs {tuple(out.shape[1:])} for "
                            f"{min(plan.inputs, n - b)} inputs: the leading axis of inputs counts them, x[None] is one"
                        )
                    collected.put(here, b, n, out)
            collected.learn(block)
    return collected.all()


def inputs_at_once(draws: Draws, block: DrawBlock, inputs: Any) -> int:
    """How many inputs go through the network in a call."""
    return _call_size(draws, block, inputs, None).inputs


class CallSize(NamedTuple):
    """What goes into one call of the network."""

    draws: int  # stacked; 1: one after another
    inputs: int


def _call_size(draws: Draws, block: DrawBlock, inputs: Any, batch_size: int | None) -> CallSize:
    """The chunks that fit, from the width of activations; whether to stack draws, from the work of a call."""
    n, total = leaves(inputs)[0].shape[0], len(draws) * draws.samples
    if n * total <= 10 * FEW:  # measuring would take as long as running
        return CallSize(1, batch_size or n)
    few = _network(draws, _rows(inputs, 0, FEW), 0)
    drawn = take(block.drawn, 0)
    with Widths(min(n, FEW)) as widths:
        few(drawn)
    device = draws.keys.device
    on_gpu = device.type == "cuda"
    most = min(GPU, torch.cuda.mem_get_info(device)[0] // 8) if on_gpu else CPU
    width = -(-widths.widest // min(n, FEW))  # bytes per input
    rows = batch_size or _even(n, most // width)
    fit = most // (min(n, rows) * width + nbytes(drawn))
    pays = fit > 1 if on_gpu else fit >= MANY and not _has_convolutions(draws.problem.network.module)
    stacked = total > 1 and pays and _stacks(few, take(block.drawn, slice(0, 2)))
    return CallSize(fit if stacked else 1, rows)


def _even(n: int, most: int) -> int:
    """Inputs of a chunk, of which there are as few as `most` allows, all about as long."""
    return -(-n // -(-n // max(1, most)))


def _stacks(run: Callable[[Drawn], Tensor], drawn: Drawn) -> bool:
    """Whether the network runs under vmap."""

    def stacked() -> bool:
        lift(run)(drawn)
        return True

    return at_once_or(stacked, lambda: False)


def _has_convolutions(module: nn.Module) -> bool:
    """Stacked they become grouped convolutions, which are slow on a CPU."""
    return any(isinstance(m, nn.modules.conv._ConvNd) for m in module.modules())


def _network(draws: Draws, rows: Any, begin: int) -> Callable[[Drawn], Tensor]:
    """The network on some inputs, the first of which has place `begin` among all."""
    part = (begin, begin + leaves(rows)[0].shape[0])

    def run(drawn: Drawn) -> Tensor:
        point, keys = drawn
        keyed = KeyedRandomness(Noise(keys["mask"]), always=True, part=part, held=draws.held) if keys else nullcontext()
        with keyed:
            return draws.problem.outputs(point.params, point.buffers, rows, None, draws.mode)[0]

    return run


def _rows(inputs: Any, begin: int, end: int) -> Any:
    return tree_map(lambda x: x[begin:end], inputs)
