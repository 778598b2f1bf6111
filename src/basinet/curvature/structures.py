"""The curvature of the negative log likelihood in the parameters, of all N examples, in four structures.

    full         sum_n J_n' H_n J_n, a matrix over all parameters
    diagonal     its diagonal
    kronecker    for the matrix of each layer, G x A: A from what goes in, G from the gradients of what comes out
    low rank     its largest eigenvalues and their eigenvectors

Kronecker factors are those of KFAC-expand (Eschenhagen et al. 2023): places share the weight as if they were examples.
Biases have their exact block. Norm layers, grouped convolutions and whatever is no matrix have their diagonal.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.lift import lift
from ..core.tree import Params, ravel, unravel
from .calls import Layer
from .passes import ELEMENTS, Chunk, Pass, Passes, tried_again
from .symmetric import WIDE, Linear, gram

SWEEPS = 30  # passes over the data in which the low-rank structure converges, at most


class Diagonals(NamedTuple):
    """The diagonal, in the shapes of the params."""

    values: Params
    run: Pass  # what was counted on the way


class Matrix(NamedTuple):
    """The matrix over all elements of the params, in their order."""

    values: Tensor  # (P, P)
    run: Pass


class Factors(NamedTuple):
    """For matrices the factors, whose Kronecker product G x A is the block; for biases G alone; else the diagonal."""

    left: Params  # G, (o, o)
    right: Params  # A, (i, i)
    diagonal: Params
    run: Pass


class Directions(NamedTuple):
    """Eigenvalues, falling, and eigenvectors."""

    values: Tensor  # (K,)
    basis: Params  # leaves (K, *shape)
    run: Pass


@tried_again
def diagonal(passes: Passes, left: Params | None = None, right: Params | None = None) -> Diagonals:
    """The diagonal; of parameters that have a basis in `left` and `right`, (o, o) and (i, i), the diagonal in that
    basis: what corrects the eigenvalues of Kronecker factors (George et al. 2018)."""
    params = passes.params
    values = {n: torch.zeros(x.shape, dtype=WIDE, device=x.device) for n, x in params.items()}
    bases = (left or {}, right or {})
    run = passes.run()
    for chunk in run:
        if chunk.head is not None:
            _add(values, _of_head(chunk, chunk.head, bases))
        inputs = [_turned(layer.inputs(), bases[1].get(layer.weight or "")) for layer in chunk.layers]
        for each in chunk.gradients():
            for layer, a, g in zip(chunk.layers, inputs, each):
                g = _turned(g, bases[0].get(layer.weight or ""))
                if a.shape[1] == 1:
                    _add(values, _pooled(layer, a, g.square().sum(0)))
                else:
                    for column in g:
                        _add(values, _squares(layer, a, column, params))
        for rows in chunk.singly():
            _add(values, {n: _in_basis(x, bases[0].get(n), bases[1].get(n)) for n, x in rows.items()})
    return Diagonals({n: x * run.scale for n, x in values.items()}, run)


@tried_again
def kronecker(passes: Passes) -> Factors:
    """Kronecker factors, with the number of examples and places divided out of A: those whose weight is not zero."""
    left: Params = {}
    right: Params = {}
    plain: Params = {}
    count: dict[str, float] = {}  # examples times places, weighted
    run = passes.run()
    for chunk in run:
        reached: dict[str, Tensor] = {}  # (B, T), the places of a weight to which gradients go back
        if chunk.head is not None:
            _add(left, dict.fromkeys(chunk.head.names, chunk.root.gram()))
        inputs = [None if layer.dense else layer.inputs() for layer in chunk.layers]
        for each in chunk.gradients():
            for layer, a, g in zip(chunk.layers, inputs, each):
                if layer.dense and layer.weight is not None and chunk.masked:
                    here = (g != 0).flatten(3).any(-1).any(0)
                    reached[layer.weight] = here | reached.get(layer.weight, here)
                if a is not None:
                    for column in g:
                        _add(plain, _squares(layer, a, column, passes.params))
                    continue
                g = g.squeeze(3)  # (K, B, T, o)
                over_places = gram(g.flatten(0, 2))
                if layer.weight is not None:
                    _add(left, {layer.weight: over_places})
                if layer.bias is not None:
                    _add(left, {layer.bias: over_places if g.shape[2] == 1 else gram(g.sum(2).flatten(0, 1))})
        for layer in [*chunk.layers, *([chunk.head] if chunk.head is not None else [])]:
            if layer.dense and layer.weight is not None:
                total, number = _inputs_of(chunk, layer, reached.get(layer.weight))
                _add(right, {layer.weight: total})
                count[layer.weight] = count.get(layer.weight, 0.0) + number
        for rows in chunk.singly():
            _add(plain, {n: x.square().sum(0) for n, x in rows.items()})
    left = {n: x * run.scale for n, x in left.items()}
    right = {n: x / max(count[n], torch.finfo(WIDE).tiny) for n, x in right.items()}
    unseen = {n: torch.zeros_like(x, dtype=WIDE) for n, x in passes.params.items() if n not in left | plain}
    return Factors(left, right, {n: x * run.scale for n, x in plain.items()} | unseen, run)


@tried_again
def full(passes: Passes) -> Matrix:
    """The whole matrix. Of one linear layer whose examples have one place each, it is sum_n H_n x a_n a_n', which
    takes as many times less work as there are outputs."""
    params = passes.params
    total = sum(x.numel() for x in params.values())
    matrix: Tensor | None = None
    run = passes.run(max(1, ELEMENTS // total))
    linear = Linear(params)
    for chunk in run:
        if (single := _single(chunk)) is not None:
            linear.take(*single)
            continue
        if matrix is None:
            matrix = torch.zeros(total, total, dtype=WIDE, device=chunk.outputs.device)
        inputs = [layer.inputs() for layer in chunk.layers]
        head = None if chunk.head is None else chunk.head.inputs()
        columns = (column for each in chunk.gradients() for column in zip(*each))
        singles = chunk.singly()
        for k in range(chunk.root.count):
            rows: Params = next(singles) if chunk.others else {}
            for layer, a, g in zip(chunk.layers, inputs, next(columns) if chunk.layers else ()):
                rows = rows | layer.rows(a, g, params)
            if chunk.head is not None and head is not None:
                rows = rows | chunk.head.rows(head, chunk.root.columns(k, k + 1)[0, :, None, None], params)
            zero = {n: x.new_zeros(len(chunk.outputs), *x.shape) for n, x in params.items() if n not in rows}
            matrix += gram(ravel({n: (rows | zero)[n] for n in params}, 1))
    parts = [x for x in (matrix, linear.done()) if x is not None]
    return Matrix(torch.stack(parts).sum(0).mul_(run.scale) if len(parts) > 1 else parts[0].mul_(run.scale), run)


@tried_again
def low_rank(passes: Passes, rank: int, sweeps: int = SWEEPS, tolerance: float = 1e-6) -> Directions:
    """The `rank` largest eigenvalues by subspace iteration with matrix-vector products: a Jacobian-vector and a
    vector-Jacobian product a vector and pass. It ends when no eigenvalue moves by more than `tolerance` of the
    largest, and after `sweeps` passes in any case."""
    params = passes.params
    total = sum(x.numel() for x in params.values())
    rank = min(rank, total)
    wide = wide_of(rank, total)
    like = next(iter(params.values()))
    vectors = passes.noise.split("vectors").normal(torch.empty(wide, total, dtype=like.dtype, device=like.device))
    vectors = torch.linalg.qr(vectors.double().mT)[0].mT
    before = torch.zeros(rank, dtype=WIDE, device=like.device)
    for _ in range(sweeps):
        products, run = _products(passes, vectors.to(like.dtype), params)
        values, turn = torch.linalg.eigh((products @ vectors.mT + vectors @ products.mT) / 2)
        values, turn = values.flip(0)[:rank], turn.flip(1)
        rotated = turn.mT @ vectors
        if bool((values - before).abs().max() <= tolerance * values[0].abs()):
            break
        before = values
        vectors = torch.linalg.qr((turn.mT @ products).mT)[0].mT
    basis = {n: torch.stack([unravel(v, params)[n] for v in rotated[:rank]]) for n in params}
    return Directions(values.clamp(min=0), basis, run)


def wide_of(rank: int, total: int) -> int:
    """How many vectors are iterated: more than are asked for, since those converge faster."""
    return min(total, rank + max(5, rank // 2))


def _products(passes: Passes, vectors: Tensor, params: Params) -> tuple[Tensor, Pass]:
    """The matrix times vectors (K, P)."""
    products = torch.zeros(vectors.shape, dtype=WIDE, device=vectors.device)
    run = passes.run()
    for chunk in run:
        products += _batch_products(passes, chunk, vectors, params)
    return products * run.scale, run


def _batch_products(passes: Passes, chunk: Chunk, vectors: Tensor, params: Params) -> Tensor:
    """J' H J v. What pulls back, u -> J' u, is linear in u, so that pulling back through it gives J v."""

    def outputs(some: Params) -> Tensor:
        point = passes.point
        outputs = passes.problem.outputs(point.params | some, point.buffers, chunk.piece.inputs)[0]
        return outputs.reshape(len(outputs), -1)

    with sdpa_kernel(SDPBackend.MATH):  # attention's other kernels have no second derivatives
        back = torch.func.vjp(outputs, params)[1]
        push = torch.func.vjp(lambda u: back(u)[0], torch.zeros_like(chunk.outputs.reshape(len(chunk.outputs), -1)))[1]
        return lift(lambda v: ravel(back(chunk.root.apply(push(unravel(v, params))[0]))[0]))(vectors)


def _inputs_of(chunk: Chunk, layer: Layer, reached: Tensor | None) -> tuple[Tensor, float]:
    """The sum of a a' over the examples and places of a batch, weighted, and of the weights."""
    a = layer.inputs().squeeze(2)  # (B, T, i)
    weights = chunk.piece.weights
    if weights is None:
        return gram(a.flatten(0, 1)), float(a.shape[0] * a.shape[1])
    if reached is None:  # one place per example, or one weight for all
        reached = torch.ones(a.shape[:2], dtype=torch.bool, device=a.device)
    counts = layer.counts(weights.to(a), reached)
    return gram((a * counts.sqrt().unsqueeze(-1)).flatten(0, 1)), float(counts.double().sum())


def _of_head(chunk: Chunk, head: Layer, bases: tuple[Params, Params]) -> Params:
    """The diagonal of the layer whose outputs are the network's."""
    a = head.inputs()[:, 0, 0]  # (B, i)
    values = {}
    if head.weight is not None:
        basis = bases[1].get(head.weight)
        a = a if basis is None else a @ basis.to(a)
        turned = bases[0].get(head.weight)
        values[head.weight] = chunk.root.diagonal(None if turned is None else turned.to(a)).mT @ a.square()
    if head.bias is not None:
        values[head.bias] = chunk.root.diagonal().sum(0)
    return values


def _single(chunk: Chunk) -> tuple[Layer, Tensor] | None:
    """The one matrix that the curvature is about, where it is one with one place per example; and sum_k g g' of its
    outputs, (B, o, o)."""
    layers = chunk.layers if chunk.head is None else [*chunk.layers, chunk.head]
    if chunk.others or len(layers) != 1 or not layers[0].dense or layers[0].weight is None:
        return None
    layer: Layer = layers[0]
    if layer is chunk.head:
        return layer, chunk.root.matrices()
    if layer.inputs().shape[1] != 1:
        return None
    g = torch.cat([each[0][:, :, 0, 0] for each in chunk.gradients()]).transpose(0, 1)  # (B, K, o)
    return layer, g.mT @ g


def _pooled(layer: Layer, a: Tensor, squared: Tensor) -> Params:
    """The sum over examples of squared gradients, where each example has one place: g_o^2 a_i^2, summed over columns
    beforehand."""
    sums = {}
    if layer.weight is not None:
        if layer.dense:
            sums[layer.weight] = squared[:, 0, 0].mT @ a[:, 0, 0].square()
        else:
            formula = "btgi,btgo->goi" if layer.kind == "matrix" else "btgi,btgi->gi"
            sums[layer.weight] = torch.einsum(formula, a.square(), squared)
    if layer.bias is not None:
        sums[layer.bias] = squared.sum(0)
    return sums


def _squares(layer: Layer, a: Tensor, g: Tensor, params: Params) -> Params:
    """The sum over examples of squared gradients, for a few examples at a time."""
    most = max(1, ELEMENTS // sum(params[n].numel() for n in layer.names))
    sums: Params = {}
    for begin in range(0, len(a), most):
        here = slice(begin, begin + most)
        _add(sums, {n: x.square().sum(0) for n, x in layer.rows(a[here], g[here], params).items()})
    return sums


def _in_basis(rows: Tensor, left: Tensor | None, right: Tensor | None) -> Tensor:
    """The sum over examples of squared gradients (B, *shape), each seen as a matrix and turned: L' x R."""
    x = rows.reshape(len(rows), rows.shape[1] if rows.dim() > 1 else 1, -1)
    x = x if left is None else left.to(x).mT @ x
    return _turned(x, right).square().sum(0).reshape(rows.shape[1:])


def _turned(x: Tensor, basis: Tensor | None) -> Tensor:
    return x if basis is None else x @ basis.to(x)


def _add(sums: Params, more: Params) -> None:
    """Adds into sums of our own, which are kept in doubles."""
    for n, x in more.items():
        if n in sums:
            sums[n] += x.reshape(sums[n].shape)
        else:
            sums[n] = x.to(WIDE, copy=True)
