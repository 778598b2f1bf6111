"""Runs the samples of many members on many inputs, in chunks that fit in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..core.model import Mode
from ..core.noise import Noise
from ..core.tree import Params, Point, leaves, nbytes, take, tree_map
from ..families import Family
from ..problem import Problem

CACHE = 256 * 2**20  # bytes: samples are drawn once and kept where all of them fit in this
CHUNK = 1000  # inputs a pass on a CPU, whose caches hold that many activations


@dataclass(frozen=True)
class Draws:
    """S draws from each of M members, by key: the same draws whatever is asked of them, in whatever order."""

    problem: Problem
    family: Family  # stacked, leaves (M, ...)
    keys: Tensor  # (M, 2), one key a member
    samples: int  # S
    mode: Mode = "eval"
    refresh: Any = None  # training inputs from which norm statistics are recomputed for each draw; None: as they are

    def __len__(self) -> int:
        return self.keys.shape[0]

    def __iter__(self) -> Iterator[tuple[int, int, Point]]:
        """(m, s, point) one after another; points are drawn when they are reached."""
        for m in range(len(self)):
            member = take(self.family, m)
            noise = Noise(self.keys[m])
            for s in range(self.samples):
                point = member.draw(noise.split("draw"), s)
                if self.refresh is not None:
                    point = refreshed(self.problem, point, self.refresh, noise.split("refresh").split(s))
                yield m, s, point

    def kept(self) -> Draws | list[tuple[int, int, Point]]:
        """The draws in memory where they fit, so that several passes draw once; else themselves."""
        each = nbytes(take(self.family, 0).mean())
        return list(self) if each * len(self) * self.samples <= CACHE else self

    def forward_key(self, m: int, s: int) -> Noise | None:
        """The key of dropout masks that belong to a draw, where dropout is on."""
        return Noise(self.keys[m]).split("mask").split(s) if self.mode == "dropout" else None


def forward(draws: Draws, inputs: Any, points: Any = None, batch_size: int | None = None) -> tuple[Tensor, Params]:
    """Outputs (M, S, B, *event) of all draws on the inputs, and the likelihood's learned parameters, leaves (M, S,
    ...)."""
    n = leaves(inputs)[0].shape[0]
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"expected a batch_size of at least 1, got {batch_size}")
    step = batch_size or CHUNK
    outputs: Tensor | None = None
    learned: Params = {}
    with torch.no_grad():
        for m, s, point in draws if points is None else points:
            noise = draws.forward_key(m, s)
            for begin in range(0, n, step):
                rows = tree_map(lambda x, b=begin: x[b : b + step], inputs)
                out, _ = draws.problem.outputs(
                    point.params, point.buffers, rows, noise and noise.split(begin), draws.mode
                )
                if outputs is None:
                    outputs = out.new_empty((len(draws), draws.samples, n, *out.shape[1:]))
                outputs[m, s, begin : begin + step] = out
            for name, x in draws.problem.split(point.params)[1].items():
                if name not in learned:
                    learned[name] = x.new_empty((len(draws), draws.samples, *x.shape))
                learned[name][m, s] = x
    assert outputs is not None
    return outputs, learned


def refreshed(problem: Problem, point: Point, inputs: Any, noise: Noise, batch_size: int = 256) -> Point:
    """The point with its norm statistics recomputed: the average over batches of `inputs`, weighted by their size."""
    norms = problem.network.norms
    n = leaves(inputs)[0].shape[0]
    count = max(1, round(n / batch_size))
    fresh = {k: torch.zeros_like(x) if k.rpartition(".")[0] in norms else x for k, x in point.buffers.items()}
    totals = {k: x for k, x in fresh.items() if k.rpartition(".")[0] in norms and x.is_floating_point()}
    with torch.no_grad():
        for i in range(count):
            rows = tree_map(lambda x, i=i: x[i * n // count : (i + 1) * n // count], inputs)
            share = leaves(rows)[0].shape[0] / n
            after = problem.outputs(point.params, fresh, rows, noise.split(i), "train")[1]
            for k in totals:  # a fresh start moves by momentum * (batch - 0)
                totals[k] = totals[k] + share * after[k] / norms[k.rpartition(".")[0]]
    return Point(point.params, point.buffers | totals)
