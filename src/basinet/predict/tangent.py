"""Samples of a network's linear function: f(x, m) + J (theta - m) for draws theta, by forward differentiation.

One draw is one function on all inputs; it costs about two passes of the network, and memory does not grow with the
number of outputs. Drawing from the outputs' covariance instead would need all gradients of all outputs, and would lose
what inputs have in common; so draws are made this way whatever the number of outputs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.lift import at_once_or, lift_or_loop
from ..core.tree import Params, Point, leaves, take
from ..families import Delta, Family, Partial
from ..problem import Problem
from .draws import Collected, DrawBlock, Draws
from .forward import inputs_at_once

TOGETHER = 8  # draws in one call, which share the pass at the mean


def samples(
    draws: Draws,
    centres: Sequence[Point],
    inputs: Any,
    blocks: Iterable[DrawBlock] | None = None,
    batch_size: int | None = None,
) -> tuple[Tensor, Params]:
    """Outputs (M, S, B, *event) of the linear functions around the members' means at all draws, and the likelihood's
    learned parameters, leaves (M, S, ...)."""
    n, collected = leaves(inputs)[0].shape[0], Collected(draws)
    names, rows = _random(draws.family), batch_size
    with torch.no_grad(), _forward_differentiation():
        for block in draws.blocks() if blocks is None else blocks:
            rows = rows or inputs_at_once(draws, block, inputs)
            for here, centre, steps in _steps(block, draws.samples, centres, names):
                for b in range(0, n, rows):
                    some = take(inputs, slice(b, b + rows))
                    collected.put(here, b, n, _moved(draws.problem, centre, steps, here.stop - here.start, some))
            collected.learn(block)
    return collected.all()


def _steps(
    block: DrawBlock, samples: int, centres: Sequence[Point], names: set[str]
) -> Iterator[tuple[slice, Point, Params]]:
    """Some draws of one member at a time: their numbers, the member's mean, and how far from it they are, leaves
    (count, ...)."""
    begin, end = block.first, block.first + len(block)
    while begin < end:
        member = begin // samples
        stop = min(end, (member + 1) * samples, begin + TOGETHER)
        drawn = take(block.drawn.point.params, slice(begin - block.first, stop - block.first))
        centre = centres[member]
        yield slice(begin, stop), centre, {n: drawn[n] - c for n, c in centre.params.items() if n in names}
        begin = stop


def _moved(problem: Problem, centre: Point, steps: Params, count: int, rows: Any) -> Tensor:
    """f + J step for each of the steps, (count, b, *event)."""
    steps = {n: x for n, x in steps.items() if n in problem.network.params}
    if not steps:
        outputs = problem.outputs(centre.params, centre.buffers, rows)[0]
        return outputs.expand(count, *outputs.shape)
    start = {n: centre.params[n] for n in steps}

    def outputs_at(params: Params) -> Tensor:
        return problem.outputs(centre.params | params, centre.buffers, rows)[0]

    def along(step: Params) -> Tensor:
        moved: Any = torch.func.jvp(outputs_at, (start,), (step,))
        return moved[0] + moved[1]

    def backward() -> Tensor:
        return torch.stack([_twice_back(outputs_at, start, take(steps, i)) for i in range(count)])

    return at_once_or(lambda: lift_or_loop(along)(steps), backward)  # where there is no rule to go forward


def _twice_back(outputs_at: Callable[[Params], Tensor], start: Params, step: Params) -> Tensor:
    """f + J step without forward derivatives: J'u is linear in u, and the gradient of u'J step in u is J step."""
    with torch.enable_grad():
        params = {n: x.detach().clone().requires_grad_() for n, x in start.items()}
        outputs = outputs_at(params)
        u = torch.zeros_like(outputs, requires_grad=True)
        back = torch.autograd.grad(outputs, list(params.values()), u, create_graph=True, materialize_grads=True)
        product = torch.stack([(g * step[n]).sum() for n, g in zip(params, back)]).sum()
        return outputs.detach() + torch.autograd.grad(product, u)[0]


def _random(family: Family) -> set[str]:
    """The parameters that are not at a point: the others take no part in the differentiation."""
    if isinstance(family, Partial):
        return _random(family.rest) | _random(family.part)
    return set() if isinstance(family, Delta) else set(family.mean().params)


@contextmanager
def _forward_differentiation() -> Iterator[None]:
    """With attention in the forms that have forward derivatives, and without a warning of torch's own, which scripts
    some of its rules when they are first needed."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with sdpa_kernel(SDPBackend.MATH), warnings.catch_warnings():
        warnings.filterwarnings("ignore", r"`torch\.jit\.", DeprecationWarning)
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)
