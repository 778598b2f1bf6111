"""Gradients of what a network says with respect to its inputs, in the very pass that gives its outputs.

What a network says of an example is one number for classes and labels, and one an output for real numbers and counts
(E of them). The gradient of such a number is taken over all floating-point inputs of the example, flattened one after
another (F of them); in training, with batch norm and dropout as the loss has them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from ..core.lift import lift
from ..core.model import Mode
from ..core.noise import Noise
from ..core.tree import Params, leaves
from ..problem import Problem
from ..problem.likelihoods import ClassLikelihood, Heteroscedastic, LabelLikelihood, Likelihood
from ..problem.likelihoods.fitting import aligned

TINY = 1e-24  # added to squared norms: gradients of saturated networks are small, and their directions still count


class Pass(NamedTuple):
    """What one pass of one member gives."""

    outputs: Tensor
    gradients: Tensor  # (E, B, F)
    buffers: Params


def input_gradients(
    problem: Problem,
    params: Params,
    buffers: Params,
    inputs: Any,
    values: Callable[[Tensor], Tensor],
    noise: Noise | None = None,
    mode: Mode = "eval",
) -> Pass:
    """The outputs on B examples, and the gradients of `values(outputs)`, (E, B), with respect to each example's inputs.
    Both can be differentiated with respect to params."""
    differentiable(inputs)
    flat, structure = pytree.tree_flatten(inputs)
    where = [i for i, x in enumerate(flat) if x.is_floating_point()]

    def run(*taken: Tensor) -> tuple[Tensor, tuple[Tensor, Params]]:
        given = list(flat)
        for i, x in zip(where, taken):
            given[i] = x
        rows = pytree.tree_unflatten(given, structure)
        with sdpa_kernel(SDPBackend.MATH):  # the one way of attention that is differentiated twice
            outputs, after = problem.outputs(params, buffers, rows, noise, mode)
        return values(outputs), (outputs, after)

    value, pull, (outputs, after) = torch.func.vjp(run, *(flat[i] for i in where), has_aux=True)  # type: ignore[misc]
    e, b = value.shape
    one = torch.eye(e, dtype=value.dtype, device=value.device).unsqueeze(-1).expand(e, e, b)
    found = [x.unsqueeze(0) for x in pull(one[0])] if e == 1 else lift(pull)(one)
    return Pass(outputs, torch.cat([x.reshape(e, b, -1) for x in found], -1), after)


def evidence(likelihood: Likelihood, outputs: Tensor, targets: Tensor, weights: Tensor | None) -> Tensor:
    """What the network says for each example, (E, B): the output of the true class, summed over places where there are
    several; the outputs of labels, those of absent ones with a minus, summed; each output, for numbers. Of outputs that
    predict a mean and its noise, the mean. Places and labels of weight zero are left out."""
    b = outputs.shape[0]
    if isinstance(likelihood, ClassLikelihood):
        true = outputs.gather(-1, targets.long().unsqueeze(-1)).squeeze(-1)
    elif isinstance(likelihood, LabelLikelihood):
        true = (2 * aligned(outputs, targets).to(outputs.dtype) - 1) * outputs
    else:
        means = outputs.chunk(2, -1)[0] if isinstance(likelihood, Heteroscedastic) else outputs
        return means.reshape(b, -1).T
    if weights is not None and weights.dim() > 1:
        true = true * weights.reshape(true.shape)
    return true.reshape(b, -1).sum(1).unsqueeze(0)


def counting(weights: Tensor | None, like: Tensor) -> Tensor:
    """How much each gradient of `like` (E, B, F) counts, (E, B): the weight of its example, or of its own element."""
    e, b = like.shape[:2]
    if weights is None:
        return like.new_ones(e, b)
    flat = weights.reshape(b, -1).to(like.dtype)  # (B, 1), or one an element
    return (flat if flat.shape[1] == e else flat.mean(1, keepdim=True)).T.expand(e, b)


def unit(gradients: Tensor) -> Tensor:
    """The gradients (..., F) divided by their norms."""
    return gradients * (gradients.square().sum(-1, keepdim=True) + TINY).rsqrt()


def flat_inputs(inputs: Any) -> Tensor:
    """The floating-point inputs of each example in a row, (B, F), as gradients have them."""
    return torch.cat([x.reshape(x.shape[0], -1) for x in differentiable(inputs)], 1)


def differentiable(inputs: Any) -> list[Tensor]:
    """The floating-point leaves; raises where there are none."""
    found = [x for x in leaves(inputs) if x.is_floating_point()]
    if not found:
        kinds = ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in leaves(inputs)}))
        raise ValueError(
            f"gradients with respect to the inputs need inputs of floating point, got {kinds}. Convert numbers with "
            ".float(). For token ids take the embedding out of the network and put it before the data: "
            "Data(embedding(ids).detach(), targets), with a network that takes what the embedding gives"
        )
    return found
