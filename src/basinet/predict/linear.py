"""The network as a linear function of its params around a member's mean: f(x, theta) = f(x, m) + J (theta - m).

Under a Gaussian family its outputs are Gaussian, with mean f(x, m) and covariance J Sigma J'. Layer by layer that needs
what a layer was given, a, and the gradients g of the outputs in what it gave, never J itself: a weight matrix with
variances V in the bases L and R has the part (g L) diag(V (a R)^2) (g L)'. Parameters that cannot be tapped have their
rows of J made, for some inputs at a time. Of several families that differ only in V, all but the last step is shared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.lift import lift
from ..core.tree import Params, Point, leaves, take
from ..families import Delta, Diagonal, Family, Full, Kronecker, Partial
from ..problem import Problem
from .jacobian import Gradient, Size, gradients, rows_of, run, tapped

ROOM = {"cpu": 2**26, "cuda": 2**30}  # bytes of gradients and activations held at once; on a GPU a quarter of what is
# free, where that is more


def moments(
    problem: Problem, family: Family, point: Point, inputs: Any, *, full: bool, batch_size: int | None = None
) -> Iterator[tuple[Tensor, Tensor]]:
    """For some inputs after others: outputs at the mean, (b, *event), and the covariance of the linear function's E
    outputs at each input, (b, E, E), or its diagonal, (b, E)."""
    for outputs, spread in moments_of_several(problem, [family], point, inputs, full=full, batch_size=batch_size):
        yield outputs, spread[0]


def moments_of_several(
    problem: Problem,
    families: Sequence[Family],
    point: Point,
    inputs: Any,
    *,
    full: bool,
    batch_size: int | None = None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """The same for F families of one kind around one mean, whose bases (of Kronecker families) are the same: outputs
    and covariances (F, b, E, E), or their diagonals (F, b, E). Within `torch.autocast` the network runs in low
    precision; its derivatives are squared and summed in that of the parameters."""
    terms, dtype = _terms(families), leaves(point.params)[0].dtype
    exact = torch.autocast(leaves(inputs)[0].device.type, enabled=False)
    names = [n for n in (*terms.blocks, *terms.names()) if n in problem.network.params]
    with torch.no_grad():
        few = problem.outputs(point.params, point.buffers, take(inputs, slice(0, 1)))[0]
    sizes = tapped(problem, point, inputs, names) if names else {}
    begin, n = 0, leaves(inputs)[0].shape[0]
    while begin < n:
        plan = _pass_size(terms, sizes, point, few, len(families), full)
        end = begin + (batch_size or plan.inputs)
        rows = take(inputs, slice(begin, end))
        missing = [n for n in names if n not in sizes]
        # gradients are on where the caller has none; fused attention cannot differentiate several outputs at once
        with torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            outputs, taps, lost = run(problem, point, rows, sizes)
            if lost:  # a network that picks rows inside: from here on they are differentiated input by input
                sizes = {n: size for n, size in sizes.items() if n not in lost}
                continue
            total = _Sum(len(families), outputs.to(dtype), full)
            for first in range(0, few.numel(), plan.outputs):
                here = slice(first, min(first + plan.outputs, few.numel()))
                grads = {name: grad.to(dtype) for name, grad in gradients(outputs, taps, here).items()}
                by_rows = rows_of(problem, point, rows, missing, here) if missing else {}
                with torch.no_grad(), exact:
                    _add(total, terms, grads, {name: x.to(dtype) for name, x in by_rows.items()}, here)
        yield outputs.detach().to(dtype), total.sum
        begin = end


class Covariances(NamedTuple):
    """The covariances of one parameter, seen as a matrix (o, i), in F families."""

    left: Tensor | None  # (o, o); None: the identity
    right: Tensor | None  # (i, i)
    variance: Tensor  # (F, o, i)

    def turned(self, x: Tensor) -> Tensor:
        """L' x R."""
        x = x if self.left is None else self.left.mT @ x
        return x if self.right is None else x @ self.right

    @property
    def flat(self) -> Tensor:
        """The variances, (F, 1, o * i)."""
        return self.variance.flatten(1).unsqueeze(1)


class Terms(NamedTuple):
    """Gaussian families as independent parts."""

    blocks: dict[str, Covariances]  # parameters that are independent of all others
    dense: tuple[tuple[Family, ...], ...]  # parts over several parameters, each as the F families have it

    def names(self) -> list[str]:
        """The parameters of the dense parts."""
        return [n for part in self.dense for n in part[0].mean().params]


def _terms(families: Sequence[Any]) -> Terms:
    first = families[0]
    if isinstance(first, Delta):
        return Terms({}, ())
    if isinstance(first, Diagonal):
        scales = {n: torch.stack([f.scale[n] for f in families]) for n in first.scale}
        matrices = {n: s.reshape(*s.shape[:2], -1) if s.dim() > 1 else s[:, None, None] for n, s in scales.items()}
        return Terms({n: Covariances(None, None, s.square_()) for n, s in matrices.items()}, ())  # a stack of its own
    if isinstance(first, Kronecker):
        blocks: dict[str, Covariances] = {}
        last: Tensor | None = None
        for n in first.variance:
            left = first.left.get(n)
            if left is not None and last is not None and torch.equal(left, last):
                left = last  # that of a layer's matrix and of its shift are one: gradients are turned once
            blocks[n] = Covariances(left, first.right.get(n), torch.stack([f.variance[n] for f in families]))
            last = left
        return Terms(blocks, ())
    if isinstance(first, Partial):
        rest, part = _terms([f.rest for f in families]), _terms([f.part for f in families])
        return Terms(rest.blocks | part.blocks, (*rest.dense, *part.dense))
    return Terms({}, (tuple(families),))


class PassSize(NamedTuple):
    """What is worked on at once."""

    inputs: int
    outputs: int


def _pass_size(terms: Terms, sizes: dict[str, Size], point: Point, few: Tensor, families: int, full: bool) -> PassSize:
    """As many inputs as fit, with the covariances of all families; where one does not, as many of its outputs, if only
    variances are asked for."""
    dense, events = set(terms.names()), few.numel()
    an_output, an_input = 1, 1  # numbers held for an output of an input, and for an input
    for name, x in point.params.items():
        size = sizes.get(name)
        if size is not None:
            an_output += 0 if size.last else size.groups * size.places * size.outputs
            an_input += size.groups * size.places * size.inputs
        if name in dense or (name in terms.blocks and (size is None or (size.role == "matrix" and size.places > 1))):
            an_output += 2 * x.numel()
    for family, *_ in terms.dense:
        if isinstance(family, Full):
            an_input += len(family.factor) * max((v.outputs for n, v in sizes.items() if n in family.centre), default=1)
    most = ROOM[few.device.type]
    if few.device.type == "cuda":
        most = max(most, torch.cuda.mem_get_info(few.device)[0] // 4)
    room = most // few.element_size()
    covariances = families * (events**2 if full else 2 * events)  # variances, and what is added to them
    inputs = max(1, room // (an_input + events * an_output + covariances))
    outputs = events if full or inputs > 1 else min(events, max(1, room // an_output))
    return PassSize(inputs, outputs)


class _Sum:
    """The covariances (F, b, E, E), or their diagonals (F, b, E), as a sum of parts."""

    def __init__(self, families: int, outputs: Tensor, full: bool) -> None:
        b, e = outputs.shape[0], outputs[0].numel()
        self.full, self.inputs = full, b
        self.sum = outputs.detach().new_zeros((families, b, e, e) if full else (families, b, e))

    def add(self, rows: Tensor, weights: Tensor, here: slice) -> None:
        """rows diag(weights) rows', for rows (b or 1, outputs, k) and weights (F, b or 1, k)."""
        if self.full:
            for total, w in zip(self.sum, weights):
                total += (rows * w.unsqueeze(-2)) @ rows.mT
        elif rows.shape[0] == 1:
            self.sum[..., here] += weights @ rows[0].square().T
        elif weights.shape[1] == 1:
            self.sum[..., here] += (rows.square() @ weights[:, 0].T).movedim(-1, 0)
        else:
            self.sum[..., here] += (rows.square() @ weights.permute(1, 2, 0)).movedim(-1, 0)

    def add_square(self, f: int, rows: Tensor, here: slice) -> None:
        """rows rows', for rows (b, outputs, k) of family f."""
        if self.full:
            self.sum[f] += rows @ rows.mT
        else:
            self.sum[f][:, here] += rows.square().sum(-1)

    def add_matrix(self, f: int, covariance: Tensor, here: slice) -> None:
        """A part of family f that is given as (b, outputs, outputs)."""
        if self.full:
            self.sum[f] += covariance
        else:
            self.sum[f][:, here] += covariance.diagonal(dim1=-2, dim2=-1)


def _add(total: _Sum, terms: Terms, grads: dict[str, Gradient], by_rows: Params, here: slice) -> None:
    weights: dict[tuple[int, int], Tensor] = {}  # by layer and basis: a matrix and its shift are one part
    rows: dict[tuple[int, int], Tensor] = {}
    for name, block in terms.blocks.items():
        if name in by_rows:
            each = by_rows[name].reshape(total.inputs, -1, *block.variance.shape[1:])
            total.add(block.turned(each).flatten(2), block.flat, here)
        elif name in grads and grads[name].places > 1:
            total.add(_turned_rows(block, grads[name]), block.flat, here)
        elif name in grads:
            a, g, key = grads[name].a, grads[name].g, (grads[name].layer, id(block.left))
            if key not in rows:
                g = g if a is None else g[:, :, 0, 0]
                # outputs first, as they lie in memory
                rows[key] = g if block.left is None else (g.transpose(0, 1) @ block.left).transpose(0, 1)
            weights[key] = weights.get(key, 0) + _weights(block, a)
    for key, g in rows.items():
        total.add(g, weights[key], here)
    for part in terms.dense:
        jacobian: Params = {}  # the same for all families
        for f, family in enumerate(part):
            if isinstance(family, Full) and all(n in grads for n in family.centre):
                total.add_square(f, _times_factor(family, grads, total.inputs, here), here)
            else:
                jacobian = jacobian or _rows(family, grads, by_rows, total.inputs, here)
                total.add_matrix(f, lift(family.quad)(jacobian), here)


def _weights(block: Covariances, a: Tensor | None) -> Tensor:
    """V (a R)^2 for a matrix with one place, (F, b, o); V for a shift, (F, 1, o)."""
    if a is None:
        return block.flat
    a = a[:, 0, 0] if block.right is None else a[:, 0, 0] @ block.right
    return a.square() @ block.variance.mT


def _turned_rows(block: Covariances, gradient: Gradient) -> Tensor:
    """The Jacobian of a matrix with several places in the bases of its covariance, (b, outputs, o * i): a and g, or
    their product is turned, whichever is less."""
    a, g = gradient.a, gradient.g
    if a is not None and block.right is not None and a.shape[2] < g.shape[1] * g.shape[-1]:
        gradient, block = gradient._replace(a=a @ block.right), block._replace(right=None)
    if a is not None and block.left is not None and a.shape[2] < a.shape[-1]:
        gradient, block = gradient._replace(g=g @ block.left), block._replace(left=None)
    return block.turned(gradient.whole()).flatten(2)


def _times_factor(family: Full, grads: dict[str, Gradient], b: int, here: slice) -> Tensor:
    """J times the factor, (b, outputs, P). Where layers have one place, each row of a matrix is multiplied by a before
    g combines the rows, and only up to where the triangle ends: fewer products than with J itself, by twice the
    number of outputs."""
    product = family.factor.new_zeros(b, here.stop - here.start, len(family.factor))
    begin = 0
    for name, centre in family.centre.items():
        end = begin + centre.numel()
        a, g, of_last, _ = grads[name]
        if a is None or grads[name].places > 1:
            product[..., :end] += grads[name].whole().flatten(2) @ family.factor[begin:end, :end]
            begin = end
            continue
        rows = range(here.start, here.stop) if of_last else range(g.shape[-1])  # of the last, an output has its own row
        along = product if of_last else a.new_zeros(b, len(rows), end)
        for k, row in enumerate(rows):
            first, last = (begin + r * a.shape[-1] for r in (row, row + 1))
            along[:, k, :last].addmm_(a[:, 0, 0], family.factor[first:last, :last])
        if not of_last:
            product[..., :end] += g[:, :, 0, 0] @ along
        begin = end
    return product


def _rows(family: Family, grads: dict[str, Gradient], by_rows: Params, b: int, here: slice) -> Params:
    """The Jacobian in a family's parameters, leaves (b, outputs, *shape); zero in those of the likelihood."""
    count, jacobian = here.stop - here.start, {}
    for name, centre in family.mean().params.items():
        if name in grads:
            each = grads[name].whole()
            jacobian[name] = each.expand(b, *each.shape[1:]).reshape(b, count, *centre.shape)
        else:
            jacobian[name] = by_rows[name] if name in by_rows else centre.new_zeros(b, count, *centre.shape)
    return jacobian
