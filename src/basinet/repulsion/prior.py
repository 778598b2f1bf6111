"""The parts of U that the batch has no share in, taken beside the graph of the network: a normal prior needs no graph,
which on a CPU would cost a fifth of a step of a dense network."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, take
from ..engine import Descent, Step

Share = float | Tensor  # what the prior is multiplied by: one number, () or one per member (M,)


def with_prior(grads: Params, loss: Tensor, params: Params, step: Step, share: Share = 1.0) -> tuple[Params, Tensor]:
    """The gradients of members (M, ...) with `share` times that of the prior added, and their losses (M,) with its
    energy; both are per example."""
    problem, scale = step.problem, step.scale
    decay = problem.decay(take(params, 0))
    if decay is not None:
        pulled = {n: _plus(grads[n], params[n], share, d / scale) for n, d in decay.items()}
        norms = [torch.linalg.vector_norm(params[n].flatten(1), dim=1).square() * d for n, d in decay.items()]
        return grads | pulled, loss + torch.stack(norms).sum(0) / (2 * scale)

    def energy(network: Params) -> Tensor:
        return problem.prior.energy(network) / (problem.prior_temperature * scale)

    slopes, energies = step.lift(torch.func.grad_and_value(energy))(problem.split(params)[0])
    return grads | {n: _plus(grads[n], x, share, 1.0) for n, x in slopes.items()}, loss + energies


def with_terms(grads: Params, loss: Tensor, state: Descent, step: Step, share: Share = 1.0) -> tuple[Params, Tensor]:
    """The same for the terms of the problem, where it has any."""
    problem, scale = step.problem, step.scale
    if not problem.terms:
        return grads, loss

    def energy(params: Params, buffers: Params, key: Tensor) -> tuple[Tensor, tuple[()]]:
        return problem.term_potential(params, buffers, Noise(key)) / scale, ()

    energies, _, back = step.lift.pull(energy)(state.params, state.buffers, step.noise.key)
    slopes = back(torch.ones_like(energies))
    return {n: _plus(x, slopes[n], share, 1.0) for n, x in grads.items()}, loss + energies


def weighted(x: Tensor, share: Share) -> Tensor:
    """`share` times x (M, ...), member by member."""
    return share * x if isinstance(share, float) else share.to(x.dtype).reshape(-1, *[1] * (x.dim() - 1)) * x


def _plus(x: Tensor, y: Tensor, share: Share, factor: float) -> Tensor:
    """x + share factor y, in one pass where the share is a number."""
    return torch.add(x, y, alpha=share * factor) if isinstance(share, float) else x + weighted(y, share * factor)
