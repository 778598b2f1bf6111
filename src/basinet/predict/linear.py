"""The network as a linear function of its params around a member's mean: f(x, theta) = f(x, m) + J (theta - m).

Under a Gaussian family its outputs are Gaussian, with mean f(x, m) and covariance J Sigma J'. Layer by layer that needs
what a layer was given, a, and the gradients g of the outputs in what it gave, never J itself (`taps`): a weight matrix
with variances V in the bases L and R has the part (g L) diag(V (a R)^2) (g L)'. Parameters that cannot be tapped have
their rows of J made, some inputs at a time.

Samples of the linear function come without any covariance: one product J (theta - m) a draw of theta, by forward
differentiation. One draw is one function on all inputs, it costs about two passes of the network, and memory does not
grow with the number of outputs; so this is what `via="linear"` does where it samples, whatever the number of classes.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.lift import lift
from ..core.tree import Params, Point, leaves, stack, take, tree_map
from ..families import Delta, Diagonal, Family, Full, Kronecker, Partial
from ..problem import Problem
from .draws import Block as DrawBlock
from .draws import Draws
from .forward import inputs_at_once
from .taps import Layer, Taps, Use, tapped

ROOM = {"cpu": 2**24, "cuda": 2**30}  # bytes of gradients and activations held at once
TOGETHER = 8  # draws whose products J (theta - m) are made in one call


def moments(
    problem: Problem, family: Family, point: Point, inputs: Any, *, full: bool, batch_size: int | None = None
) -> tuple[Tensor, Tensor]:
    """Outputs at the mean, (B, *event), and the covariance of the linear function's E outputs at each input, (B, E, E),
    or its diagonal, (B, E)."""
    terms = _terms(family)
    names = [n for n in (*terms.blocks, *terms.dense_names()) if n in problem.network.params]
    layers = tapped(problem, point, inputs, names) if names else {}
    n = leaves(inputs)[0].shape[0]
    with torch.no_grad():
        few = problem.outputs(point.params, point.buffers, tree_map(lambda x: x[:1], inputs))[0]
    plan = _plan(terms, layers, point, few[0].numel(), few.element_size(), few.device.type, full)
    step = batch_size or plan.inputs
    made = []
    with sdpa_kernel(SDPBackend.MATH):
        for begin in range(0, n, step):
            rows = take(inputs, slice(begin, begin + step))
            made.append(_chunk(problem, terms, layers, point, rows, full, plan.outputs))
    return torch.cat([m for m, _ in made]), torch.cat([c for _, c in made])


def samples(
    draws: Draws,
    centres: Sequence[Point],
    inputs: Any,
    blocks: Iterable[DrawBlock] | None = None,
    batch_size: int | None = None,
) -> tuple[Tensor, Params]:
    """Outputs (M, S, B, *event) of the linear functions around the members' means at all draws, and the likelihood's
    learned parameters, leaves (M, S, ...)."""
    n, total = leaves(inputs)[0].shape[0], len(draws) * draws.samples
    names = random_names(draws.family)
    outputs: Tensor | None = None  # (M * S, B, *event)
    learned: Params = {}
    rows = batch_size
    with torch.no_grad(), _forward_differentiation():
        for block in draws.blocks() if blocks is None else blocks:
            rows = rows or inputs_at_once(draws, block, inputs)
            for here, point, steps in _directions(block, draws.samples, centres, names):
                for b in range(0, n, rows):
                    out = _moved(draws.problem, point, steps, here.stop - here.start, take(inputs, slice(b, b + rows)))
                    if outputs is None:
                        outputs = out.new_empty((total, n, *out.shape[2:]))
                    outputs[here, b : b + rows] = out
            for name, x in draws.problem.split(block.drawn.point.params)[1].items():
                if name not in learned:
                    learned[name] = x.new_empty((total, *x.shape[1:]))
                learned[name][block.first : block.first + len(block)] = x
    assert outputs is not None
    shape = (len(draws), draws.samples)
    return outputs.unflatten(0, shape), {name: x.unflatten(0, shape) for name, x in learned.items()}


@contextmanager
def _forward_differentiation() -> Iterator[None]:
    """With attention in the form that has forward derivatives, and without a warning of torch's own, which scripts some
    of its rules when they are first needed."""
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.", DeprecationWarning)
        fast = torch.backends.mha.get_fastpath_enabled()
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


def _directions(
    block: DrawBlock, samples: int, centres: Sequence[Point], names: set[str]
) -> Iterator[tuple[slice, Point, Params]]:
    """Some draws of one member at a time: their numbers, the member's mean, and how far from it they are, leaves
    (count, ...)."""
    begin, end = block.first, block.first + len(block)
    while begin < end:
        member = begin // samples
        stop = min(end, (member + 1) * samples, begin + TOGETHER)
        some = slice(begin - block.first, stop - block.first)
        centre = centres[member]
        params = block.drawn.point.params
        yield slice(begin, stop), centre, {n: params[n][some] - c for n, c in centre.params.items() if n in names}
        begin = stop


def _moved(problem: Problem, point: Point, steps: Params, count: int, rows: Any) -> Tensor:
    """f + J step for each of the steps, (count, b, *event)."""
    network = {n: x for n, x in steps.items() if n in problem.network.params}
    if not network:
        outputs = problem.outputs(point.params, point.buffers, rows)[0]
        return outputs.expand(count, *outputs.shape)
    centre = {n: point.params[n] for n in network}

    def outputs_at(params: Params) -> Tensor:
        return problem.outputs(point.params | params, point.buffers, rows)[0]

    def along(step: Params) -> Tensor:
        moved: Any = torch.func.jvp(outputs_at, (centre,), (step,))
        return moved[0] + moved[1]

    try:
        return lift(along)(network)
    except (RuntimeError, ValueError, TypeError):  # no rule to do several at once
        return torch.stack([along(take(network, i)) for i in range(count)])


class Block(NamedTuple):
    """The covariance of one parameter, seen as a matrix (o, i)."""

    left: Tensor | None  # (o, o); None: the identity
    right: Tensor | None  # (i, i)
    variance: Tensor  # (o, i)


class Terms(NamedTuple):
    """A Gaussian family as independent parts."""

    blocks: dict[str, Block]  # parameters that are independent of all others
    dense: tuple[Family, ...]  # families over several parameters

    def dense_names(self) -> list[str]:
        """The parameters of the second kind."""
        return [n for family in self.dense for n in family.mean().params]


def _terms(family: Family) -> Terms:
    if isinstance(family, Delta):
        return Terms({}, ())
    if isinstance(family, Diagonal):
        shape = {n: (s.shape[0] if s.dim() else 1, -1) for n, s in family.scale.items()}
        return Terms({n: Block(None, None, s.square().reshape(shape[n])) for n, s in family.scale.items()}, ())
    if isinstance(family, Kronecker):
        return Terms({n: Block(family.left.get(n), family.right.get(n), v) for n, v in family.variance.items()}, ())
    if isinstance(family, Partial):
        rest, part = _terms(family.rest), _terms(family.part)
        return Terms(rest.blocks | part.blocks, (*rest.dense, *part.dense))
    return Terms({}, (family,))


def random_names(family: Family) -> set[str]:
    """The parameters that are not at a point."""
    if isinstance(family, Delta):
        return set()
    if isinstance(family, Partial):
        return random_names(family.rest) | random_names(family.part)
    return set(family.mean().params)


class Plan(NamedTuple):
    """What is worked on at once."""

    inputs: int
    outputs: int


def _plan(
    terms: Terms, layers: dict[str, Layer], point: Point, events: int, itemsize: int, device: str, full: bool
) -> Plan:
    """As many inputs as fit; where one does not, as many of its outputs, if only variances are asked for."""
    dense = set(terms.dense_names())
    an_output, an_input = 1, 1  # numbers held for an output of an input, and for an input
    for name, x in point.params.items():
        layer = layers.get(name)
        if layer is not None:
            an_output += layer.groups * layer.places * layer.outputs
            an_input += layer.groups * layer.places * layer.inputs
        if name in dense or (name in terms.blocks and (layer is None or (layer.kind == "matrix" and layer.places > 1))):
            an_output += 2 * x.numel()
    for family in terms.dense:
        an_input += sum(x.numel() for x in family.mean().params.values()) * (events if isinstance(family, Full) else 1)
    room = ROOM[device] // itemsize
    inputs = max(1, room // (an_input + events * an_output + (events**2 if full else 0)))
    outputs = events if full or inputs > 1 else min(events, max(1, room // an_output))
    return Plan(inputs, outputs)


class _Sum:
    """The covariance (b, E, E), or its diagonal (b, E), as a sum of parts."""

    def __init__(self, like: Tensor, full: bool) -> None:
        b, e = like.shape
        self.full = full
        self.total = like.new_zeros((b, e, e) if full else (b, e))

    def add(self, rows: Tensor, weights: Tensor | None, here: slice) -> None:
        """rows diag(weights) rows' for rows (b, outputs, k), or (1, outputs, k) for all inputs, and weights (b, k), (1,
        k) or None."""
        if self.full:
            left = rows if weights is None else rows * weights.unsqueeze(-2)
            self.total += left @ rows.mT
        elif weights is None:
            self.total[:, here] += rows.square().sum(-1)
        elif rows.shape[0] == 1:
            self.total[:, here] += weights @ rows[0].square().T
        else:
            self.total[:, here] += (rows.square() @ weights.unsqueeze(-1)).squeeze(-1)

    def add_matrix(self, covariance: Tensor, here: slice) -> None:
        """A part that is given as (b, outputs, outputs)."""
        if self.full:
            self.total += covariance
        else:
            self.total[:, here] += covariance.diagonal(dim1=-2, dim2=-1)


def _chunk(
    problem: Problem, terms: Terms, layers: dict[str, Layer], point: Point, rows: Any, full: bool, step: int
) -> tuple[Tensor, Tensor]:
    b = leaves(rows)[0].shape[0]
    taps = Taps({n: point.params[n] for n in layers}, b)
    with torch.enable_grad(), taps:
        outputs = problem.outputs(point.params, point.buffers, rows)[0]
    flat = outputs.reshape(b, -1)
    total = _Sum(flat.detach(), full)
    head = taps.last[0] if taps.last is not None and taps.last[1] is outputs and outputs.dim() == 2 else None
    wanted = [*terms.blocks, *terms.dense_names()]
    missing = [n for n in wanted if n not in layers and n in problem.network.params]
    for begin in range(0, flat.shape[1], step):
        here = slice(begin, min(begin + step, flat.shape[1]))
        gradients = _gradients(flat, taps, head, here)
        by_rows = _jacobian(problem, point, rows, missing, here) if missing else {}
        with torch.no_grad():
            for name, block in terms.blocks.items():
                if name in layers:
                    _add_block(total, block, gradients[name], here)
                elif name in by_rows:
                    each = by_rows[name].reshape(b, -1, *block.variance.shape)
                    total.add(_rotated(each, block).flatten(2), block.variance.reshape(1, -1), here)
            for family in terms.dense:
                _add_dense(total, family, gradients, by_rows, here)
    return outputs.detach(), total.total


class Gradient(NamedTuple):
    """The Jacobian of one parameter at b inputs, in parts."""

    outer: Tensor | None  # a, (b, groups, places, i), for a matrix
    inner: (
        Tensor  # g, (b, outputs, groups, places, o) for a matrix, (b, outputs, o) otherwise; b may be 1 for all inputs
    )


def _gradients(flat: Tensor, taps: Taps, head: str | None, here: slice) -> dict[str, Gradient]:
    """The parts of the Jacobian of the tapped parameters, for the outputs `here`."""
    count = here.stop - here.start
    eye = torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)[here]
    places = {id(u.gave): u.gave for uses in taps.uses.values() for u in uses}
    inside = [x for x in places.values() if head is None or x is not taps.uses[head][0].gave]
    alone = head is not None and len(taps.uses[head]) == 1
    found: dict[int, Tensor] = {}
    if not alone:
        inside = list(places.values())
    if inside:
        asked = eye.unsqueeze(1).expand(count, *flat.shape)
        grads = torch.autograd.grad(flat, inside, asked, retain_graph=True, allow_unused=True, is_grads_batched=True)
        for x, g in zip(inside, grads):
            found[id(x)] = x.new_zeros(count, *x.shape) if g is None else g
    if alone:
        assert head is not None
        found[id(taps.uses[head][0].gave)] = eye.unsqueeze(1)
    return {name: _joined(uses, found) for name, uses in taps.uses.items() if uses}


def _joined(uses: list[Use], found: dict[int, Tensor]) -> Gradient:
    """All uses of a parameter: their places in a row for a matrix, their sum otherwise."""
    inner = [u.spread(found[id(u.gave)]).movedim(0, 1) for u in uses]  # (b, outputs, groups, places, o)
    if uses[0].kind == "matrix":
        outer = [u.given for u in uses if u.given is not None]
        return Gradient(torch.cat(outer, 2) if len(outer) > 1 else outer[0], _cat(inner, 3))
    if uses[0].kind == "scale":
        inner = [g * u.given.unsqueeze(1) for g, u in zip(inner, uses) if u.given is not None]
    return Gradient(None, torch.stack([g.sum(3).flatten(2) for g in inner]).sum(0))


def _cat(parts: list[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def _add_block(total: _Sum, block: Block, gradient: Gradient, here: slice) -> None:
    a, g = gradient
    if a is None:
        total.add(g if block.left is None else g @ block.left, block.variance.reshape(1, -1), here)
    elif a.shape[1] == a.shape[2] == 1:  # one group, one place
        a, g = a[:, 0, 0], g[:, :, 0, 0]
        a = a if block.right is None else a @ block.right
        total.add(g if block.left is None else g @ block.left, a.square() @ block.variance.T, here)
    else:
        if block.right is not None and a.shape[1] == 1 and a.shape[2] < g.shape[1] * g.shape[-1]:
            a, block = a @ block.right, block._replace(right=None)
        rows = _rotated(_product(a, g), block)
        total.add(rows.flatten(2), block.variance.reshape(1, -1), here)


def _product(a: Tensor, g: Tensor) -> Tensor:
    """The Jacobian of a matrix, (b, outputs, groups * o, i)."""
    each = g.mT @ a.unsqueeze(1)  # (b, outputs, groups, o, i)
    return each.flatten(2, 3)


def _rotated(x: Tensor, block: Block) -> Tensor:
    x = x if block.left is None else block.left.mT @ x
    return x if block.right is None else x @ block.right


def _add_dense(total: _Sum, family: Family, gradients: dict[str, Gradient], by_rows: Params, here: slice) -> None:
    centre = family.mean().params
    b = total.total.shape[0]
    if isinstance(family, Full) and all(n in gradients for n in centre):
        total.add(_full_root(family, gradients, b), None, here)
        return
    jacobian = {}
    for n, c in centre.items():
        if n in gradients:
            a, g = gradients[n]
            made = g if a is None else _product(a, g)
            jacobian[n] = made.expand(b, *made.shape[1:]).reshape(b, -1, *c.shape)
        else:
            jacobian[n] = by_rows[n] if n in by_rows else c.new_zeros(b, here.stop - here.start, *c.shape)
    total.add_matrix(lift(family.quad)(jacobian), here)


def _full_root(family: Full, gradients: dict[str, Gradient], b: int) -> Tensor:
    """J times the factor, (b, outputs, P). Each row of a matrix is multiplied by a before g combines the rows, and
    only up to where the triangle ends: outputs times fewer products than with J itself."""
    p = len(family.factor)
    root: Any = 0
    begin = 0
    for name, c in family.centre.items():
        a, g = gradients[name]
        end = begin + c.numel()
        factor = family.factor[begin:end]
        if a is None:
            root = root + g @ factor
        elif a.shape[1] == a.shape[2] == 1:
            o, i = g.shape[-1], a.shape[-1]
            along = a.new_zeros(b, o, p)
            for k in range(o):
                last = begin + (k + 1) * i
                along[:, k, :last] = a[:, 0, 0] @ factor[k * i : (k + 1) * i, :last]
            root = root + g[:, :, 0, 0] @ along
        else:
            root = root + _product(a, g).flatten(2) @ factor
        begin = end
    return root


def _jacobian(problem: Problem, point: Point, rows: Any, names: list[str], here: slice) -> Params:
    """Rows of the Jacobian for the outputs `here`, leaves (b, outputs, *shape)."""
    some = {n: point.params[n] for n in names}

    def outputs(params: Params, row: Any) -> Tensor:
        return problem.outputs(point.params | params, point.buffers, row)[0].reshape(-1)[here]

    def of_one(row: Any) -> Params:
        return torch.func.jacrev(outputs)(some, tree_map(lambda x: x.unsqueeze(0), row))

    try:
        return lift(of_one)(rows)
    except (RuntimeError, ValueError, TypeError):  # no rule to do several at once: input by input, output by output
        each = [tree_map(lambda x, i=i: x[i : i + 1], rows) for i in range(leaves(rows)[0].shape[0])]
        return stack([stack(list(_one_by_one(outputs, some, row))) for row in each])


def _one_by_one(outputs: Callable[[Params, Any], Tensor], some: Params, row: Any) -> Iterator[Params]:
    with torch.enable_grad():
        open_params = {n: x.detach().clone().requires_grad_() for n, x in some.items()}
        for value in outputs(open_params, row):
            found = torch.autograd.grad(value, list(open_params.values()), retain_graph=True, materialize_grads=True)
            yield dict(zip(open_params, found))
