"""Gradients of what a network says with respect to its inputs, in the very pass that gives its outputs.

What a network says of an example is one number for classes and labels, and one per output for real numbers and counts
(E of them). The gradient of such a number is taken over all floating-point inputs of the example, flattened one after
another (F of them); in training, with batch norm and dropout as the loss has them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils import _pytree as pytree

from ..core.lift import at_once_or, lift
from ..core.model import Mode
from ..core.noise import Noise
from ..core.tree import Params, leaves, tree_map
from ..problem import Problem
from ..problem.likelihoods import ClassLikelihood, Heteroscedastic, LabelLikelihood, Likelihood, Warped
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

    taken = [flat[i] for i in where]
    gradients, (outputs, after) = (_by_tape if _plain() else _by_transform)(run, taken)
    e, b = gradients[0].shape[:2]
    return Pass(outputs, torch.cat([x.reshape(e, b, -1) for x in gradients], -1), after)


Run = Callable[..., tuple[Tensor, tuple[Tensor, Params]]]  # of inputs: values (E, B), and outputs with buffers


def _plain() -> bool:
    """Whether tensors are torch's own here, inside of no transform."""
    return not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is None


def _by_tape(run: Run, taken: list[Tensor]) -> tuple[list[Tensor], tuple[Tensor, Params]]:
    """The gradients in the inputs, each (E, B, ...). Without torch's transforms, whose first use imports its compiler:
    seconds on a GPU, where the first step otherwise takes less."""
    further = torch.is_grad_enabled()
    with torch.enable_grad():
        leaf = [x.detach().requires_grad_() for x in taken]
        value, aux = run(*leaf)
        back = partial(
            torch.autograd.grad, inputs=leaf, create_graph=further, retain_graph=True, materialize_grads=True
        )
        sums = value.sum(1)  # its gradient is that of each example at its own inputs

        def one_by_one() -> list[Tensor]:
            return [torch.stack(xs) for xs in zip(*(back(v) for v in sums))]

        eye = torch.eye(len(sums), dtype=sums.dtype, device=sums.device)
        batched = partial(back, sums, grad_outputs=eye, is_grads_batched=True)
        gradients = one_by_one() if len(sums) == 1 else at_once_or(lambda: list(batched()), one_by_one)
    return gradients, aux if further else tree_map(Tensor.detach, aux)


def _by_transform(run: Run, taken: list[Tensor]) -> tuple[list[Tensor], tuple[Tensor, Params]]:
    """The same where tensors are those of a stack, or are compiled: all values at once."""
    value, pull, aux = torch.func.vjp(run, *taken, has_aux=True)  # type: ignore[misc]
    e, b = value.shape
    one = torch.eye(e, dtype=value.dtype, device=value.device).unsqueeze(-1).expand(e, e, b)
    return [x.unsqueeze(0) for x in pull(one[0])] if e == 1 else list(lift(pull)(one)), aux


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
        of = likelihood.of if isinstance(likelihood, Warped) else likelihood
        means = outputs.chunk(2, -1)[0] if isinstance(of, Heteroscedastic) else outputs
        return means.reshape(b, -1).T
    if weights is not None and weights.dim() > 1:
        true = true * weights.reshape(true.shape)
    return true.reshape(b, -1).sum(1).unsqueeze(0)


def counting(weights: Tensor | None, like: Tensor) -> Tensor:
    """How much each gradient of `like` (E, B, F) counts, (E, B): the weight of its example, or of its own element."""
    e, b = like.shape[:2]
    if weights is None:
        return like.new_ones(e, b)
    flat = weights.reshape(b, -1).to(like.dtype)  # (B, 1), or one per element
    return (flat if flat.shape[1] == e else flat.mean(1, keepdim=True)).T.expand(e, b)


def unit(gradients: Tensor) -> Tensor:
    """The gradients (..., F) divided by their norms."""
    return gradients * (gradients.square().sum(-1, keepdim=True) + TINY).rsqrt()


def flat_inputs(inputs: Any) -> Tensor:
    """The floating-point inputs of each example in a row, (B, F), as gradients have them."""
    return torch.cat([x.reshape(x.shape[0], -1) for x in differentiable(inputs)], 1)


def differentiable(inputs: Any) -> list[Tensor]:
    """The floating-point leaves; raises where there are none."""
    floating = [x for x in leaves(inputs) if x.is_floating_point()]
    if not floating:
        kinds = ", ".join(sorted({str(x.dtype).removeprefix("torch.") for x in leaves(inputs)}))
        raise ValueError(
            f"gradients with respect to the inputs need inputs of floating point, got {kinds}. Convert numbers with "
            ".float(). For token ids take the embedding out of the network and put it before the data: "
            "Data(embedding(ids).detach(), targets), with a network that takes what the embedding gives"
        )
    return floating
