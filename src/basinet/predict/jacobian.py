"""The Jacobian of a network's outputs in its parameters at some inputs, in the parts that its layers give.

The gradient of an output in a weight matrix is g' a: the gradient g in what the layer gave times what it was given, a,
summed over places and over uses. So nothing of the size of all parameters times all outputs is ever needed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..core.lift import at_once_or, lift
from ..core.tree import Params, Point, leaves, stack, take, tree_map
from ..layers import Tap, Taps
from ..problem import Problem

Role = Literal["matrix", "scale", "shift"]


class Use(NamedTuple):
    """What a parameter is in one call of a layer."""

    role: Role
    tap: Tap

    def given(self) -> Tensor:
        """What a matrix (b, groups, places, i) or a scale (b, 1, places, o) multiplied."""
        return self.tap.read().transpose(1, 2)

    def spread(self, g: Tensor) -> Tensor:
        """A gradient (outputs, b, *shape of what the layer gave) as (b, outputs, groups, places, o)."""
        return self.tap.places(g.flatten(0, 1)).unflatten(0, g.shape[:2]).permute(1, 0, 3, 2, 4)


class Size(NamedTuple):
    """The size of a tapped parameter's Jacobian."""

    role: Role
    groups: int
    places: int  # over all uses
    inputs: int  # i, of a group
    outputs: int  # o, of a group
    last: bool  # of the network's last layer: gradients in what it gives are the same at all inputs


def tapped(problem: Problem, point: Point, inputs: Any, names: Collection[str]) -> dict[str, Size]:
    """Those of the parameters that can be tapped at the first input, with their sizes: their layers' first axis is that
    of the examples, and nothing else uses them. Runs the network on two and on three examples."""
    wanted = {n: point.params[n] for n in names}
    sizes = []
    for count in (2, 3):
        rows = tree_map(lambda x, count=count: torch.cat([x[:1]] * count), inputs)
        with torch.no_grad(), Taps(wanted, count) as taps:
            outputs = problem.outputs(point.params, point.buffers, rows)[0]
        lost = taps.lost(outputs)
        sizes.append({n: _size(u, outputs) for n, u in _uses(taps).items() if n not in lost})
    return {n: size for n, size in sizes[0].items() if sizes[1].get(n) == size}


def _uses(taps: Taps) -> dict[str, list[Use]]:
    """The uses of each parameter, in the order of the calls."""
    uses: dict[str, list[Use]] = {}
    for tap in taps.calls:
        if tap.weight is not None:
            uses.setdefault(tap.weight, []).append(Use(tap.kind, tap))
        if tap.bias is not None:
            uses.setdefault(tap.bias, []).append(Use("shift", tap))
    return uses


def _size(uses: list[Use], outputs: Tensor) -> Size:
    first = uses[0]
    last = len(uses) == 1 and _gives(first.tap, outputs)
    places = sum(u.tap.places(u.tap.output).shape[1] for u in uses)
    inputs = first.given().shape[-1] if first.role == "matrix" else 1
    return Size(first.role, first.tap.groups, places, inputs, first.tap.width // first.tap.groups, last)


def _gives(tap: Tap, outputs: Tensor) -> bool:
    """Whether the network's outputs are what this layer gave, one row per example."""
    return tap.kind == "matrix" and tap.handed is outputs and outputs.dim() == 2


class Gradient(NamedTuple):
    """The Jacobian of one parameter at b inputs: of a matrix g' a, summed over places; of any other parameter g."""

    a: Tensor | None  # (b, groups, places, i), for a matrix
    g: Tensor  # (b or 1, outputs, groups, places, o) for a matrix, else (b or 1, outputs, o)
    last: bool  # the layer is the network's last: g has one row for all inputs, and is one where outputs and o agree
    layer: int  # equal for parameters of one layer: a matrix with one place and its shift have the same g

    def to(self, dtype: torch.dtype) -> Gradient:
        """The same in another type."""
        return self._replace(a=None if self.a is None else self.a.to(dtype), g=self.g.to(dtype))

    @property
    def places(self) -> int:
        """How many products g' a are summed, over all groups; one for what is not a matrix."""
        return 1 if self.a is None else self.a.shape[1] * self.a.shape[2]

    def whole(self) -> Tensor:
        """(b, outputs, o, i) for a matrix, over all groups; else g."""
        if self.a is None:
            return self.g
        if self.a.shape[1] > 1:
            return (self.g.mT @ self.a.unsqueeze(1)).flatten(2, 3)
        g = self.g[:, :, 0].mT  # (b, outputs, o, places): one product for all outputs
        return (g.flatten(1, 2) @ self.a[:, 0]).unflatten(1, g.shape[1:3])


def run(problem: Problem, point: Point, rows: Any, names: Collection[str]) -> tuple[Tensor, Taps, set[str]]:
    """Outputs on b inputs, what was noted of some parameters on the way, with the graph, and those of them whose
    gradients do not follow from it: networks may pick rows inside."""
    with torch.enable_grad(), Taps({n: point.params[n] for n in names}, leaves(rows)[0].shape[0]) as taps:
        outputs = problem.outputs(point.params, point.buffers, rows)[0]
    return outputs, taps, taps.lost(outputs)


def gradients(outputs: Tensor, taps: Taps, here: slice) -> dict[str, Gradient]:
    """For the tapped parameters, of those outputs of each input that are `here` among them all."""
    flat = outputs.reshape(len(outputs), -1)
    asked = torch.eye(flat.shape[1], dtype=flat.dtype, device=flat.device)[here].unsqueeze(1)  # (outputs, 1, E)
    known: dict[int, Tensor] = {}  # gradients in what layers gave, by the id of that
    for tap in taps.calls:
        if _gives(tap, outputs):
            known[id(tap.output)] = asked
    inside = {id(tap.output): tap.output for tap in taps.calls if id(tap.output) not in known}
    for (key, x), g in zip(inside.items(), _backward(flat, list(inside.values()), asked)):
        known[key] = x.new_zeros(len(asked), *x.shape) if g is None else g
    return {name: _joined(uses, known, asked) for name, uses in _uses(taps).items()}


def _backward(flat: Tensor, inside: list[Tensor], asked: Tensor) -> Sequence[Tensor | None]:
    """The gradients of some outputs of all inputs in each of the tensors, (outputs, *shape); None where there are
    none."""
    if not inside:
        return ()
    if not flat.requires_grad:  # outputs that come from none of the layers
        return [None] * len(inside)
    many = asked.expand(-1, *flat.shape)

    def back(one: Tensor) -> Sequence[Tensor]:
        return torch.autograd.grad(flat, inside, one, retain_graph=True, materialize_grads=True)

    def one_by_one() -> Sequence[Tensor]:
        return [torch.stack(gs) for gs in zip(*(back(one) for one in many))]

    return at_once_or(lambda: lift(back)(many), one_by_one)


def _joined(uses: list[Use], known: dict[int, Tensor], asked: Tensor) -> Gradient:
    """All uses of a parameter: their places in a row for a matrix, their sum otherwise."""
    first = uses[0].tap.output
    b, layer = len(first), id(first)
    last = len(uses) == 1 and known[layer] is asked
    each = [u.spread(known[id(u.tap.output)]) for u in uses]  # (b, outputs, groups, places, o)
    if len(uses) > 1:
        each = [g.expand(b, *g.shape[1:]) for g in each]
        layer = id(uses)
    if uses[0].role == "matrix":
        return Gradient(_in_a_row([u.given() for u in uses], 2), _in_a_row(each, 3), last, layer)
    if uses[0].role == "scale":
        each, layer = [g * u.given().unsqueeze(1) for g, u in zip(each, uses)], id(uses)
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

    def by_input_and_output() -> Params:
        each = [take(rows, slice(i, i + 1)) for i in range(leaves(rows)[0].shape[0])]
        return stack([stack(list(_one_by_one(outputs, some, row))) for row in each])

    return at_once_or(lambda: lift(of_one)(rows), by_input_and_output)


def _one_by_one(outputs: Callable[[Params, Any], Tensor], some: Params, row: Any) -> Iterator[Params]:
    with torch.enable_grad():
        open_params = {n: x.detach().clone().requires_grad_() for n, x in some.items()}
        for value in outputs(open_params, row):
            if not value.requires_grad:  # an expert that this input does not see
                yield {n: torch.zeros_like(x) for n, x in some.items()}
                continue
            grads = torch.autograd.grad(value, list(open_params.values()), retain_graph=True, materialize_grads=True)
            yield dict(zip(open_params, grads))
