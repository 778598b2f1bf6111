"""What each structure of the curvature takes in memory and in work, from shapes and a pass of four examples.

The numbers of copies are what was measured on MLPs of 3,000 to 1.8 million parameters and on ResNet-20: what lives at
once while sums over the data are made, factored and turned into a family.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..core.tree import leaves, tree_map
from ..curvature.passes import ELEMENTS, WIDTH, Passes
from ..curvature.structures import SWEEPS, wide_of
from ..layers import Taps
from .demand import Demand, Predicting, Widths

DOUBLE = 8  # bytes of a number in the sums over all data
MATRICES = 8  # full ones: sums and their symmetric form, precision, its factor, identity, inverse, copies of it
PAIRS = 3  # of Kronecker factors: sums, scaled sums or eigenvectors, and what finding those takes
SIDE = 3  # vectors over all parameters beside Kronecker factors: eigenvalues, precision, variance
PLAIN = 5  # vectors of a diagonal: sums, what is added, scaled sums, precision, scale
VECTORS = 8  # sets of directions of the low-rank structure: vectors, products, and both in single precision
GRAPHS = 3  # batches whose graphs live at once: that before, this one, and copies of what layers give
LIVE = 6  # of the widest activation, while a network runs without a graph
EIGEN = 20.0  # flops of eigenvectors of an n x n matrix, in n^3, counting that they run slower than products


def demand(structure: str, passes: Passes, rank: int) -> Demand:
    """Of the posterior over the parameters that the passes are about: with what a draw takes, not how it predicts."""
    return _DEMANDS[structure](_facts(structure, passes), rank)


class _Facts(NamedTuple):
    total: int  # parameters
    size: int  # bytes of one
    pairs: list[tuple[int, int]]  # outputs and inputs of each matrix that has Kronecker factors; of a bias, 0 inputs
    seen: int  # examples
    columns: int  # gradients per example that go back through the network; 0 for its last layer alone
    graph: int  # bytes that the graph of a batch holds
    running: int  # bytes of graphs and activations while passing over the data
    gradients: int  # bytes of gradients of single examples
    read: int  # bytes of what all layers are given, for a batch

    @property
    def passes(self) -> float:
        """Each column goes back through the network, and gives gradients in weights."""
        return self.seen * (1.0 + 2 * self.columns)

    @property
    def factored(self) -> int:
        """Numbers in all Kronecker factors."""
        return sum(o**2 + i**2 for o, i in self.pairs)

    @property
    def distinct(self) -> int:
        """Numbers in those that differ: a bias shares the factor of its matrix."""
        return sum(o**2 + i**2 for o, i in self.pairs if i)


def _full(x: _Facts, rank: int) -> Demand:
    flops = x.seen * max(1.0, 2 * x.columns) * x.total**2 + 4 / 3 * x.total**3  # sums; factor and inverse
    return Demand(
        kept=x.size * (x.total + x.total**2),
        finish=MATRICES * DOUBLE * x.total**2 + x.running,
        passes=x.passes,
        flops=flops,
        what=f"the full covariance of {x.total:,} parameters ({MATRICES} matrices of {x.total:,} x {x.total:,})",
        predict=Predicting(numbers=x.total, flops=2.0 * x.total**2),
    )


def _kronecker(x: _Facts, rank: int) -> Demand:
    return Demand(
        kept=x.size * (2 * x.total + x.factored),
        finish=DOUBLE * (PAIRS * x.distinct + SIDE * x.total) + x.running + x.gradients,
        passes=x.passes,
        flops=sum(EIGEN * (o**3 + i**3) + 2.0 * x.seen * (o**2 + i**2) for o, i in x.pairs),
        what=f"Kronecker factors of {x.total:,} parameters",
        predict=Predicting(numbers=x.total, flops=sum(2.0 * o * i * (o + i) for o, i in x.pairs)),
    )


def _corrected(x: _Facts, rank: int) -> Demand:
    kronecker = _kronecker(x, rank)
    more = DOUBLE * SIDE * x.total + x.read
    return kronecker._replace(finish=kronecker.finish + more, passes=2 * kronecker.passes)


def _diagonal(x: _Facts, rank: int) -> Demand:
    return Demand(
        kept=2 * x.size * x.total,
        finish=PLAIN * DOUBLE * x.total + x.running + x.gradients + x.read,
        passes=x.passes,
        what=f"the diagonal of {x.total:,} parameters",
        predict=Predicting(numbers=x.total),
    )


def _low_rank(x: _Facts, rank: int) -> Demand:
    wide = wide_of(rank, x.total)
    return Demand(
        kept=x.size * x.total * (1 + min(rank, x.total)),
        finish=VECTORS * DOUBLE * wide * x.total + x.running + wide * x.graph,
        passes=6.0 * SWEEPS * wide * x.seen,  # forward and back twice over, for each direction
        flops=4.0 * SWEEPS * wide**2 * x.total,
        what=f"{wide} directions of {x.total:,} parameters",
        predict=Predicting(numbers=x.total, flops=4.0 * rank * x.total),
    )


_DEMANDS: dict[str, Callable[[_Facts, int], Demand]] = {
    "full": _full,
    "kronecker": _kronecker,
    "eigen-corrected": _corrected,
    "diagonal": _diagonal,
    "low-rank": _low_rank,
}


def _facts(structure: str, passes: Passes) -> _Facts:
    params, seen, followed = passes.params, passes.subset or passes.data.n, passes.follow()
    total, size = sum(x.numel() for x in params.values()), leaves(params)[0].element_size()
    dense = [x for n, x in params.items() if n in followed.dense]
    pairs = [(len(x), x.numel() // len(x) if x.dim() > 1 else 0) for x in dense]
    graph, width, outputs = _of_network(passes)
    inside = not set(params) <= set(followed.head or ())  # the network goes on behind some of them
    every = {"fisher": 1, "hessian": 0}.get(passes.kind, passes.labels or outputs)
    pooled = followed.width <= 2 * sum(i for _, i in pairs)  # one place per example: sums are made without its rows
    row = sum(o for o, i in pairs if i) if pooled else total
    most = max(1, ELEMENTS // total) if structure == "full" else seen
    batch = max(1, min(passes.batch_size or seen, seen, most, WIDTH // followed.width))
    return _Facts(
        total,
        size,
        pairs,
        seen,
        columns=every if inside else 0,
        graph=batch * graph,
        running=batch * (GRAPHS * graph + LIVE * width),
        gradients=2 * size * min(ELEMENTS, every * batch * row) if inside else 0,
        read=2 * size * batch * followed.width if inside else 0,
    )


def _of_network(passes: Passes) -> tuple[int, int, int]:
    """For an example: bytes that the graph of the parameters holds, bytes of the widest activation, and outputs."""
    inputs = tree_map(lambda x: x.clone(), passes.few())  # storages of their own, and not those of all the data
    count = len(leaves(inputs)[0])
    free, buffers, fixed = passes.free()
    own = {x.untyped_storage().data_ptr() for x in (*free.values(), *fixed.values())}
    held: dict[int, int] = {}

    def note(x: Tensor) -> Tensor:
        if x.untyped_storage().data_ptr() not in own:
            held[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(note, lambda x: x), Widths(count) as widths, Taps(free, count):
        outputs = passes.problem.outputs(fixed | free, buffers, inputs)[0]
    return sum(held.values()) // count, widths.widest // count, math.prod(outputs.shape[1:])
