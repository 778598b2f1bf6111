"""Posteriors whose moments are known by quadrature or in closed form, and a step for states without an engine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

import basinet as bn
from basinet.core.noise import Noise
from basinet.core.tree import Params, Point, ravel, stack
from basinet.engine import Engine, Lift, Member, Step
from basinet.families import Delta
from basinet.posterior import Part
from basinet.problem import Batch
from basinet.problem.priors import Prior

ENGINE = Engine(device="cpu", dtype=torch.float64, progress=False, compile=False)


class Constant(nn.Module):
    """Its parameters, as the output for every input."""

    def __init__(self, numbers: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(numbers, dtype=torch.float64))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight.expand(len(x), -1)


def skewed() -> tuple[bn.Problem, bn.Data, Tensor]:
    """The logit of a coin that fell on one side 9 times of 10, with prior N(0, 3^2): its posterior has a tail. With the
    mean and the second and third central moment, by quadrature."""
    problem = bn.Problem(lambda: Constant(), bn.likelihoods.Bernoulli(), bn.priors.Normal(scale=3.0))
    data = bn.Data(torch.zeros(10, 1, dtype=torch.float64), (torch.arange(10) > 0).double().unsqueeze(1))
    w = torch.linspace(-10, 25, 200_001, dtype=torch.float64)
    log = 9 * nn.functional.logsigmoid(w) + nn.functional.logsigmoid(-w) - w.square() / 18
    mass = (log - log.max()).exp()
    mass = mass / mass.sum()
    mean = (mass * w).sum()
    return problem, data, torch.stack([mean, *((mass * (w - mean) ** k).sum() for k in (2, 3))])


@dataclass(frozen=True, kw_only=True, eq=False)
class Funnel(Prior):
    """v ~ N(0, 3^2), x_i ~ N(0, exp(v)): at its neck no step size is small enough (Neal 2003)."""

    def energy(self, params: Params) -> Tensor:
        v, x = params["weight"][0], params["weight"][1:]
        return v.square() / 18 + 0.5 * (x.square() * torch.exp(-v)).sum() + 0.5 * v * x.numel()

    def log_normaliser(self, params: Params) -> Tensor:
        return torch.zeros(())

    def sample(self, like: Params, noise: Noise) -> Params:
        return {"weight": torch.zeros_like(like["weight"])}


def funnel() -> tuple[bn.Problem, bn.Data]:
    problem = bn.Problem(lambda: Constant(6), bn.likelihoods.Gaussian(noise=1e6), Funnel())
    return problem, bn.Data(torch.zeros(2, 1, dtype=torch.float64), torch.zeros(2, 6, dtype=torch.float64))


def linear_diabetes() -> tuple[bn.Problem, bn.Data, Tensor, Tensor]:
    """Linear regression on sklearn's diabetes with known noise: exact mean and covariance of weights and bias."""
    splits = bn.datasets.load("diabetes")
    inputs = splits.train.inputs.double()
    inputs = torch.linalg.qr(inputs - inputs.mean(0))[0] * len(inputs) ** 0.5  # independent directions
    targets = splits.train.targets.double().reshape(len(inputs))
    targets = (targets - targets.mean()) / targets.std()
    noise, scale = 0.7, 1.0
    design = torch.cat([inputs, torch.ones(len(inputs), 1, dtype=torch.float64)], 1)
    precision = design.T @ design / noise**2 + torch.eye(design.shape[1], dtype=torch.float64) / scale**2
    mean = torch.linalg.solve(precision, design.T @ targets / noise**2)
    problem = bn.Problem(
        lambda: nn.Linear(inputs.shape[1], 1, dtype=torch.float64),
        bn.likelihoods.Gaussian(noise=noise),
        bn.priors.Normal(scale=scale),
    )
    return problem, bn.Data(inputs, targets), mean, torch.linalg.inv(precision)


def draws_of(posterior: bn.Posterior) -> Tensor:
    """(C, K, d)."""
    family: Any = posterior.parts[0].family
    return ravel(family.params, 2)


def at(problem: bn.Problem, *places: Tensor) -> bn.Posterior:
    """A posterior to start from: one member at each place."""
    fresh = problem.init(Noise.seed(0))
    sizes = [x.numel() for x in fresh.params.values()]

    def point(place: Tensor) -> Delta:
        parts = place.split(sizes)
        return Delta({n: p.reshape(x.shape) for (n, x), p in zip(fresh.params.items(), parts)}, fresh.buffers)

    members = tuple(Member(0, k) for k in range(len(places)))
    return bn.Posterior((Part(problem, stack([point(p) for p in places]), members),))


def step_of(problem: bn.Problem, data: bn.Data, chains: int, clock: int, seed: int = 0) -> Step:
    """What the engine gives a coupled method at a step with all examples."""
    keys = Noise(Noise.seed(seed).spread(chains).key).split(clock).key
    batch = Batch(data.inputs, data.targets, torch.arange(data.n), torch.tensor(clock), data.n)
    return Step(batch, problem, Noise(keys), (), Lift())


def states(recipe: Any, problem: bn.Problem, places: Tensor) -> Any:
    """The states of chains at places (M, d), before the first step."""
    fresh = problem.init(Noise.seed(0))
    name, like = next(iter(fresh.params.items()))
    points = [Point({name: p.reshape(like.shape)}, fresh.buffers) for p in places]
    return stack([recipe.init(p, problem, Noise.seed(k)) for k, p in enumerate(points)])


class Blunt(bn.likelihoods.Gaussian):
    """A likelihood without a gradient."""

    def log_density(self, outputs: Tensor, targets: Tensor, learned: Any) -> Tensor:
        return super().log_density(outputs.detach(), targets, learned)
