"""The energy U of each chain and its gradient, on all examples, and random numbers that are drawn where they are
needed.

The network is the one that predicts: dropout off, norm statistics as they are at the start. Energies are summed in
double precision, since what is accepted depends on small differences of large sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, leaves, ravel, tree_map
from ..data import Data
from ..engine import Step
from ..problem import Batch, Problem


def energy_of(params: Params, buffers: Params, step: Step, batch: Batch, prior: bool) -> Tensor:
    """U of one chain on some of the examples, (), float64; with the part of prior and terms, or without."""
    problem = step.problem
    outputs, _ = problem.outputs(params, buffers, batch.inputs)
    energy = -problem.log_densities(outputs, params, batch).double().sum() * problem.shares[0]
    if not prior:
        return energy
    energy = energy + problem.prior_energy(params).double()
    return energy + problem.term_potential(params, buffers, mode="eval").double() if problem.terms else energy


def energies(params: Params, buffers: Params, step: Step, chunk: int | None, slopes: bool) -> tuple[Tensor, Tensor]:
    """U of all chains, (M,), and its gradient as vectors, (M, d); zeros where no slopes are asked for."""
    total = torch.zeros(len(step.noise.key), dtype=torch.float64, device=step.noise.key.device)
    gradient = torch.zeros_like(ravel(params, 1))
    for number, batch in enumerate(_pieces(step.batch, chunk)):

        def of_one(params: Params, buffers: Params, batch: Batch = batch, prior: bool = number == 0) -> tuple:
            return energy_of(params, buffers, step, batch, prior), ()

        if slopes:
            energy, _, back = step.lift.pull(of_one)(params, buffers)
            gradient = gradient + ravel(back(torch.ones_like(energy)), 1)
        else:
            with torch.no_grad():
                energy, _ = step.lift(of_one)(params, buffers)
        total = total + energy
    return total, gradient


def _pieces(batch: Batch, chunk: int | None) -> list[Batch]:
    """The examples, at most `chunk` at a time."""
    n = batch.targets.shape[0]
    if chunk is None or chunk >= n:
        return [batch]

    def cut(begin: int) -> Batch:
        part = slice(begin, begin + chunk)
        inputs = tree_map(lambda x: x[part], batch.inputs)
        weights = None if batch.weights is None else batch.weights[part]
        return batch._replace(inputs=inputs, targets=batch.targets[part], index=batch.index[part], weights=weights)

    return [cut(i) for i in range(0, n, chunk)]


def normals(step: Step, like: Tensor, needed: Tensor) -> Tensor:
    """Standard normal numbers of all chains, in the shape of `like`, (M, ...): from the key of the first chain at this
    step, since chains belong together. On a CPU, where a look is free, none are drawn while no chain needs them."""
    return torch.zeros_like(like) if idle(needed) else Noise(step.noise.key[0]).normal(like)


def uniforms(step: Step, name: str, needed: Tensor) -> Tensor:
    """Numbers uniform on [0, 1), one of each chain, (M,), float64; likewise, from a key of that name."""
    like = torch.zeros(len(step.noise.key), dtype=torch.float64, device=step.noise.key.device)
    return like if idle(needed) else Noise(step.noise.key[0]).split(name).uniform(like)


def idle(needed: Tensor) -> bool:
    """Whether it is known, at no price, that nobody needs something."""
    return needed.device.type == "cpu" and not torch.compiler.is_compiling() and not bool(needed.any())


def split(vectors: Tensor, like: Params) -> Params:
    """Vectors (M, d) as params with leaves (M, ...)."""
    sizes = [x[0].numel() for x in like.values()]
    return {name: part.reshape(x.shape) for (name, x), part in zip(like.items(), vectors.split(sizes, 1))}


def dimension(params: Params) -> int:
    """d, from the params of one chain."""
    return sum(x.numel() for x in leaves(params))


def check_gradient(label: str, problem: Problem, data: Data) -> None:
    """Refuses a likelihood without a gradient, under which chains would sample the prior."""
    point = problem.init(Noise.seed(0))
    params = {name: x.detach().requires_grad_() for name, x in point.params.items()}
    first = next(iter(params.values()))
    few = data.take(slice(0, 2)).to(first.device, first.dtype)
    with torch.enable_grad():
        outputs, _ = problem.outputs(params, point.buffers, few.inputs)
        density = problem.likelihood.log_density(outputs, few.targets, problem.split(params)[1])
    if not density.requires_grad:
        raise ValueError(
            f"{label} follows gradients, and the log likelihood of {type(problem.likelihood).__name__} has none: "
            "use MetropolisHastings, which needs none"
        )
