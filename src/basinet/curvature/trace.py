"""Traces of the curvature of the log likelihood, and what perturbing a point gains to second order.

    laplacian = sum_i sum_k d^2 log p_i / d theta_k^2
    fisher    = sum_i |d log p_i / d theta|^2   (the trace of the empirical Fisher matrix)
    sum_i log E p_i(theta + sigma z) - log p_i(theta) = sigma^2 / 2 (laplacian + fisher) + O(sigma^4)

The Laplacian is exact for few parameters, by one direction each; for many it is Hutchinson's estimate, the mean of v'Hv
over random signs v, with its standard error. Second derivatives are taken backward twice: forward mode inside forward
mode is silently wrong for some layers of torch 2.13 (layer norm). At the kinks of ReLU there is no curvature, so a
network of them follows the expansion only while sigma moves few units across one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..core.lift import lift_or_loop
from ..core.noise import Noise
from ..core.tree import Params, Point, leaves, ravel, tree_map
from ..core.where import Where, select
from ..data import Data, Piece, Stream, counted, pieces
from ..problem import Problem

EXACT = 2000  # parameters up to which the Laplacian is exact by default
PROBES = 64  # directions of Hutchinson's estimate beyond
EXAMPLES = 128  # examples in a pass
NUMBERS = 2**25  # entries of gradients held at once


class Traces(NamedTuple):
    """Sums over examples, for the parameters that were asked for."""

    laplacian: float
    fisher: float
    error: float  # the standard error of the Laplacian; 0 where it is exact
    examples: int
    parameters: int

    def gain(self, sigma: float) -> float:
        """What noise of standard deviation sigma gains in log likelihood per example, to second order."""
        return sigma**2 / 2 * (self.laplacian + self.fisher) / self.examples

    def gain_error(self, sigma: float) -> float:
        """The standard error of `gain`."""
        return sigma**2 / 2 * self.error / self.examples


def traces(
    problem: Problem, point: Point, data: Data | Stream, where: Where = None, probes: int | None = None, seed: int = 0
) -> Traces:
    """The traces at a point (`posterior.points()[k]`), over `data`, for the parameters that `where` names (default: all
    of the network).

    `probes` is the number of directions of Hutchinson's estimate; None: as many as there are parameters, each exactly,
    up to 2,000 of them, and 64 random ones beyond. Layers run as in prediction; what has weight zero does not count.

    >>> data = bn.Data(torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [1.0]]))
    >>> problem = bn.Problem(lambda: torch.nn.Linear(1, 1, bias=False), bn.likelihoods.Gaussian(noise=1.0))
    >>> traces(problem, problem.init(bn.Noise.seed(0)), data).laplacian  # -(1 + 4), the sum of squared inputs
    -5.0
    """
    if probes is not None and probes < 2:
        raise ValueError(f"expected at least 2 probes, to estimate the error, got {probes}")
    names = select(problem.split(point.params)[0], where)
    chosen = {n: point.params[n].detach() for n in names}
    count = sum(x.numel() for x in chosen.values())
    exact = probes is None and count <= EXACT
    directions = count if exact else probes or PROBES
    first = leaves(chosen)[0]
    key = Noise.seed(seed, first.device).split("probes")

    def direction(k: Tensor) -> Tensor:
        if exact:
            return (torch.arange(count, device=first.device) == k).to(first.dtype)
        return 2 * key.split(k).bernoulli(0.5, first.new_empty(count)).to(first.dtype) - 1

    curved, fisher, n = torch.zeros(directions, dtype=torch.float64), 0.0, 0
    for rows in pieces(data, EXAMPLES):
        mask = counted(rows)
        log_likelihood = _log_likelihood(problem, point, rows.inputs, rows.targets, mask)
        curved += _along(log_likelihood, chosen, direction, directions).cpu()
        fisher += _squared_gradients(problem, point, chosen, rows, mask)
        n += len(rows.targets) if mask is None else int(mask.reshape(len(mask), -1).any(1).sum())
    if exact:
        return Traces(float(curved.sum()), fisher, 0.0, n, count)
    return Traces(float(curved.mean()), fisher, float(curved.std()) / directions**0.5, n, count)


def _log_likelihood(
    problem: Problem, point: Point, inputs: Any, targets: Tensor, mask: Tensor | None
) -> Callable[[Params], Tensor]:
    """The log likelihood of some examples, as a function of the chosen parameters."""

    def log_likelihood(chosen: Params) -> Tensor:
        network, learned = problem.split(point.params | chosen)
        outputs, _ = problem.network(network, point.buffers, inputs)
        each = problem.likelihood.log_density(outputs, targets, learned)
        return (each if mask is None else torch.where(mask.reshape(each.shape), each, 0.0)).sum()

    return log_likelihood


def _along(
    log_likelihood: Callable[[Params], Tensor], chosen: Params, direction: Callable[[Tensor], Tensor], count: int
) -> Tensor:
    """v'Hv for directions number 0 ... count - 1, some at a time."""

    def curvature(k: Tensor) -> Tensor:
        v = direction(k)
        slope = torch.func.grad(lambda x: ravel(torch.func.grad(log_likelihood)(x)) @ v)
        return ravel(slope(chosen)) @ v

    numbers = torch.arange(count, device=leaves(chosen)[0].device)
    few = max(1, NUMBERS // (EXAMPLES * max(64, sum(x.numel() for x in chosen.values()))))
    with sdpa_kernel(SDPBackend.MATH):  # fused attention has no second derivative
        each = lift_or_loop(curvature)
        return torch.cat([each(some) for some in numbers.split(few)]).double()


def _squared_gradients(problem: Problem, point: Point, chosen: Params, rows: Piece, mask: Tensor | None) -> float:
    """The sum over examples of the squared norm of each one's gradient."""

    def squared(i: Tensor) -> Tensor:
        def one(x: Tensor) -> Tensor:
            return x.index_select(0, i.reshape(1))

        here = None if mask is None else one(mask)
        log_likelihood = _log_likelihood(problem, point, tree_map(one, rows.inputs), one(rows.targets), here)
        return ravel(torch.func.grad(log_likelihood)(chosen)).square().sum()

    numbers = torch.arange(len(rows.targets), device=rows.targets.device)
    few = max(1, NUMBERS // sum(x.numel() for x in chosen.values()))
    few = 1 if numbers.device.type == "cpu" and _has_convolutions(problem) else few  # grouped ones are slow there
    each = lift_or_loop(squared)  # one by one for layers that cannot be lifted (nn.LSTM)
    return float(sum(each(some).double().sum() for some in numbers.split(few)))


def _has_convolutions(problem: Problem) -> bool:
    return any(isinstance(m, nn.modules.conv._ConvNd) for m in problem.network.module.modules())
