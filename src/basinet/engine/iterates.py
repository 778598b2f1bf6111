"""Iterates collected along descent: which steps give one, and their running mean and variance.

    mean_t = mean_{t-1} + (x_t - mean_{t-1}) / t
    squares_t = squares_{t-1} + (x_t - mean_{t-1}) (x_t - mean_t)                                  (Welford 1962)

No difference of large numbers is taken, as that of the mean square and the squared mean would be: weights far from zero
keep their variance in single precision.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from ..core.tree import Params, tree_map
from ..optim import Cyclic, Optimizer, Validated
from ..problem.likelihoods import Gaussian
from .method import GradientMethod, Schedule, batch_of
from .step import Info, Step

M = TypeVar("M", bound=GradientMethod)

RATES = (4.0, 1.0, 0.25, 0.0625, 0.015625)  # of the step size, that are tried on validation data
TRIAL = 8  # such a try collects one over so many of the iterates


class Moments(NamedTuple):
    """Of the iterates so far."""

    mean: Params
    squares: Params  # sums of squared deviations from the mean

    @staticmethod
    def at(params: Params) -> Moments:
        """Before the first iterate, which replaces whatever mean stands here."""
        return Moments(params, tree_map(torch.zeros_like, params))

    def add(self, params: Params, share: Tensor) -> Moments:
        """With one more iterate, the t-th where share = 1/t; the same where it is 0."""
        mean = toward(self.mean, params, share)
        counts = (share > 0).to(next(iter(params.values())).dtype)
        squares = {
            n: self.squares[n] + counts * (x - self.mean[n]) * (x - mean[n]) for n, x in params.items()
        }  # each term is at least 0: both differences have the sign of the first
        return Moments(mean, squares)


def toward(mean: Params, params: Params, share: Tensor) -> Params:
    """The mean moved by a share of the way to params."""
    return {n: m + share.to(m.dtype) * (params[n] - m) for n, m in mean.items()}


def in_unit_noise(info: Info, params: Params, step: Step) -> Info:
    """The same loss with its gradient multiplied by the noise variance of a Gaussian, where that is below 1: curvature
    grows as one over it, and a step size that fits one noise diverges under a smaller one."""
    problem = step.problem
    if not isinstance(problem.likelihood, Gaussian):
        return info
    learned = {n: x.detach() for n, x in problem.split(params)[1].items()}
    variance = problem.likelihood.distribution(step.batch.targets, learned).variance.amin().clamp(max=1.0)
    loss = info.loss + sum(0.5 * d * params[n].square().sum() for n, d in info.quadratic.items())
    descended = loss * variance.to(loss.dtype)
    return info._replace(loss=loss.detach() + descended - descended.detach(), quadratic={})


def plan(iterates: int, every: int | None, batch_size: int | None, n: int, bank: int = 0) -> Schedule:
    """As many steps as give so many iterates: one every so many steps, or one an epoch."""
    batch = batch_of(batch_size, n)
    gap = -(-n // batch) if every is None else every
    return Schedule(iterates * gap, None if batch == n else batch, bank)


def share(step: Tensor, gap: int) -> Tensor:
    """() float64: of the newest iterate in the mean, after the step of that clock: 1/t where it ends gap t, else 0."""
    done = step + 1
    return torch.where(done % gap == 0, 1.0 / (done // gap).clamp(min=1).double(), 0.0)


def trials(recipe: M) -> list[M]:
    """The recipe with several step sizes and fewer iterates, where its step size is left open."""
    rate = recipe.optimizer.lr
    if not isinstance(rate, Validated):
        return []
    count = max(2, recipe.iterates // TRIAL)  # type: ignore[attr-defined]
    short: dict[str, Any] = {"iterates": count}
    if getattr(recipe, "rank", 0) > count:
        short["rank"] = count
    return [replace(recipe, optimizer=replace(recipe.optimizer, lr=f * rate.value), **short) for f in RATES]  # type: ignore[type-var]


def settled(recipe: M, trial: GradientMethod | None) -> M:
    """The recipe with the step size of a trial; None: of none, which takes as many steps as columns."""
    if trial is not None:
        return replace(recipe, optimizer=trial.optimizer)
    still: dict[str, Any] = {"iterates": max(1, getattr(recipe, "rank", 0)), "every": 1}
    return replace(recipe, optimizer=replace(recipe.optimizer, lr=0.0), **still)  # type: ignore[type-var]


def check_iterates(iterates: int, every: int | None, optimizer: Optimizer) -> None:
    """Refuses what makes no plan."""
    if iterates < 1:
        raise ValueError(f"expected at least 1 iterate to average over, got {iterates!r}")
    if every is not None and every < 1:
        raise ValueError(f"expected at least 1 step from one iterate to the next, or None for an epoch, got {every!r}")
    if isinstance(optimizer.lr, Cyclic) and optimizer.lr.cycles != iterates:
        raise ValueError(
            f"expected a cycle for each iterate, so that each is collected where the step size is lowest, got "
            f"{optimizer.lr.cycles} cycles and {iterates} iterates: give Cyclic(peak=..., cycles={iterates})"
        )
