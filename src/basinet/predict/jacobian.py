"""The Jacobian of a network's outputs in its parameters at some inputs, in the parts that its layers give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core.lift import lift
from ..core.tree import Params, Point, leaves, stack, take, tree_map
from ..problem import Problem
from .taps import Taps, Use


class Gradient(NamedTuple):
    """The Jacobian of one parameter at b inputs: of a matrix g' a, summed over places; of any other parameter g."""

    a: Tensor | None  # (b, groups, places, i), for a matrix
    g: Tensor  # (b or 1, outputs, groups, places, o) for a matrix, else (b or 1, outputs, o)
    last: bool  # the layer is the network's last: g has one row for all inputs, and is one where outputs and o agree
    layer: int  # equal for parameters of one layer: a matrix with one place and its shift have the same g

    @property
    def places(self) -> int:
        """How many products g' a are summed, over all groups; one for what is no matrix."""
        return 1 if self.a is None else self.a.shape[1] * self.a.shape[2]

    def whole(self) -> Tensor:
        """(b, outputs, o, i) for a matrix, over all groups; else g."""
        if self.a is None:
            return self.g
        if self.a.shape[1] > 1:
            return (self.g.mT @ self.a.unsqueeze(1)).flatten(2, 3)
        g = self.g[:, :, 0].mT  # (b, outputs, o, places): one product for all outputs
        return (g.flatten(1, 2) @ self.a[:, 0]).unflatten(1, g.shape[1:3])


def run(problem: Problem, point: Point, rows: Any, names: list[str]) -> tuple[Tensor, Taps]:
    """Outputs on b inputs, and what was noted of some parameters on the way, with the graph."""
    with torch.enable_grad(), Taps({n: point.params[n] for n in names}, leaves(rows)[0].shape[0]) as taps:
        outputs = problem.outputs(point.params, point.buffers, rows)[0]
    return outputs, taps


def gradients(outputs: Tensor, taps: Taps, here: slice) -> dict[str, Gradient]:
    """For the tapped parameters, of those outputs of each input that are `here` among them all."""
    flat = outputs.reshape(len(outputs), -1)
    asked = torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)[here].unsqueeze(1)  # (outputs, 1, E)
    known: dict[int, Tensor] = {}  # gradients in what layers gave, by the id of that
    if taps.last is not None and taps.last[1] is outputs and outputs.dim() == 2:
        known[id(taps.uses[taps.last[0]][-1].gave)] = asked
    inside = {id(u.gave): u.gave for uses in taps.uses.values() for u in uses if id(u.gave) not in known}
    for (key, x), g in zip(inside.items(), _backward(flat, list(inside.values()), asked)):
        known[key] = x.new_zeros(len(asked), *x.shape) if g is None else g
    return {name: _joined(uses, known, asked) for name, uses in taps.uses.items() if uses}


def _backward(flat: Tensor, inside: list[Tensor], asked: Tensor) -> Sequence[Tensor | None]:
    """The gradients of some outputs of all inputs in each of the tensors, (outputs, *shape); None where there are
    none."""
    if not inside:
        return ()
    many = asked.expand(-1, *flat.shape)

    def back(one: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(flat, inside, one, retain_graph=True, materialize_grads=True)

    try:
        return lift(back)(many)
    except RuntimeError as error:  # no rule to do several at once
        if isinstance(error, torch.OutOfMemoryError):
            raise
        return [torch.stack(gs) for gs in zip(*(back(one) for one in many))]


def _joined(uses: list[Use], known: dict[int, Tensor], asked: Tensor) -> Gradient:
    """All uses of a parameter: their places in a row for a matrix, their sum otherwise."""
    b, layer = len(uses[0].gave), id(uses[0].gave)
    last = len(uses) == 1 and known[layer] is asked
    each = [u.spread(known[id(u.gave)]).movedim(0, 1) for u in uses]  # (b, outputs, groups, places, o)
    if len(uses) > 1:
        each = [g.expand(b, *g.shape[1:]) for g in each]
        layer = id(uses)
    if uses[0].kind == "matrix":
        given = [u.given for u in uses if u.given is not None]
        return Gradient(_in_a_row(given, 2), _in_a_row(each, 3), last, layer)
    if uses[0].kind == "scale":
        each, layer = [g * u.given.unsqueeze(1) for g, u in zip(each, uses) if u.given is not None], id(uses)
    one_place = each[0].shape[3] == 1
    sums = [(g.squeeze(3) if one_place else g.sum(3)).flatten(2) for g in each]
    return Gradient(
        None, sums[0] if len(sums) == 1 else torch.stack(sums).sum(0), last, layer if one_place else id(uses)
    )


def _in_a_row(parts: list[Tensor], axis: int) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def rows_of(problem: Problem, point: Point, rows: Any, names: list[str], here: slice) -> Params:
    """The Jacobian of parameters that cannot be tapped, leaves (b, outputs, *shape), for the outputs `here`."""
    some = {n: point.params[n] for n in names}

    def outputs(params: Params, row: Any) -> Tensor:
        return problem.outputs(point.params | params, point.buffers, row)[0].reshape(-1)[here]

    def of_one(row: Any) -> Params:
        return torch.func.jacrev(outputs)(some, tree_map(lambda x: x.unsqueeze(0), row))

    try:
        return lift(of_one)(rows)
    except (RuntimeError, ValueError, TypeError):  # no rule to do several at once: input by input, output by output
        each = [take(rows, slice(i, i + 1)) for i in range(leaves(rows)[0].shape[0])]
        return stack([stack(list(_one_by_one(outputs, some, row))) for row in each])


def _one_by_one(outputs: Callable[[Params, Any], Tensor], some: Params, row: Any) -> Iterator[Params]:
    with torch.enable_grad():
        open_params = {n: x.detach().clone().requires_grad_() for n, x in some.items()}
        for value in outputs(open_params, row):
            found = torch.autograd.grad(value, list(open_params.values()), retain_graph=True, materialize_grads=True)
            yield dict(zip(open_params, found))
