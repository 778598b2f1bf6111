"""Gradients of single examples by differentiating each alone: for parameters that no layer shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.lift import at_once_or, lift
from ..core.tree import Params, Point, take, tree_map
from ..problem import Problem


def one_by_one(problem: Problem, point: Point, names: Sequence[str], inputs: Any, along: Tensor) -> Params:
    """v' J of single examples, leaves (B, K, *shape), for vectors `along` (B, K, E)."""
    params, buffers = point
    free = {n: params[n] for n in names}

    def example(row: Any, vectors: Tensor) -> Params:
        def outputs(some: Params) -> Tensor:
            one = tree_map(lambda x: x.unsqueeze(0), row)
            return problem.outputs(params | some, buffers, one)[0].flatten()

        back = torch.func.vjp(outputs, free)[1]
        return lift(lambda v: back(v)[0])(vectors)

    def all_examples() -> Params:
        with sdpa_kernel(SDPBackend.MATH):  # attention's other kernels have no rule for vmap
            return lift(example)(inputs, along)

    return at_once_or(all_examples, lambda: _in_a_loop(problem, point, free, inputs, along))


def _in_a_loop(problem: Problem, point: Point, free: Params, inputs: Any, along: Tensor) -> Params:
    rows = []
    for b in range(len(along)):
        leaves = {n: x.detach().clone().requires_grad_() for n, x in free.items()}
        outputs = problem.outputs(point.params | leaves, point.buffers, take(inputs, slice(b, b + 1)))[0].flatten()
        if not outputs.requires_grad:  # an expert that this example does not see
            rows.append({n: x.new_zeros(along.shape[1], *x.shape) for n, x in free.items()})
            continue
        grads = [
            torch.autograd.grad(outputs, list(leaves.values()), v, retain_graph=True, materialize_grads=True)
            for v in along[b]
        ]
        rows.append({n: torch.stack([g[i] for g in grads]) for i, n in enumerate(leaves)})
    return {n: torch.stack([row[n] for row in rows]) for n in free}
