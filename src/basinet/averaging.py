"""Iterates collected along descent: which steps give one, and their running mean and variance.

    mean_t = mean_{t-1} + (x_t - mean_{t-1}) / t
    squares_t = squares_{t-1} + (x_t - mean_{t-1}) (x_t - mean_t)                                  (Welford 1962)

No difference of large numbers is taken, as that of the mean square and the squared mean would be: weights far from zero
keep their variance in single precision. `Averaging` is what methods have in common that make a posterior of iterates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor

from .core.tree import Params, tree_map
from .engine import Based, Descent, GradientMethod, Info, Method, Schedule, Step
from .engine.method import batch_of
from .optim import SGD, Cyclic, Optimizer, Validated
from .problem.likelihoods import Gaussian

RATES = (4.0, 1.0, 0.25, 0.0625, 0.015625)  # of the step size, that are tried on validation data
TRIAL = 8  # such a try collects one eighth of the iterates


class Moments(NamedTuple):
    """Mean and squared deviations of the iterates so far."""

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


def plan(iterates: int, every: int | None, batch_size: int | None, n: int) -> Schedule:
    """The steps that give this many iterates: one after every `every` steps, or one per epoch."""
    batch = batch_of(batch_size, n)
    gap = -(-n // batch) if every is None else every
    return Schedule(iterates * gap, None if batch == n else batch)


def share(step: Tensor, gap: int) -> Tensor:
    """() float64: of the newest iterate in the mean, after the step of that clock: 1/t where it ends gap t, else 0."""
    done = step + 1
    return torch.where(done % gap == 0, 1.0 / (done // gap).clamp(min=1).double(), 0.0)


def check_iterates(iterates: int, every: int | None, optimizer: Optimizer) -> None:
    """Refuses iterates and cycles that cannot be collected."""
    if iterates < 1:
        raise ValueError(f"expected at least 1 iterate to average over, got {iterates!r}")
    if every is not None and every < 1:
        raise ValueError(f"expected at least 1 step from one iterate to the next, or None for an epoch, got {every!r}")
    if isinstance(optimizer.lr, Cyclic) and optimizer.lr.cycles != iterates:
        raise ValueError(
            f"expected a cycle for each iterate, so that each is collected where the step size is lowest, got "
            f"{optimizer.lr.cycles} cycles and {iterates} iterates: give Cyclic(peak=..., cycles={iterates})"
        )


@dataclass(frozen=True, kw_only=True)
class Averaging(Based, GradientMethod, kind="method"):
    """A method that collects iterates after training, at a step size that does not shrink."""

    norm: ClassVar[Literal["train", "frozen", "refresh"]] = "refresh"

    base: Method | None = None
    """The training after which iterates are collected; None: MAP(). Not run where start= is given."""
    iterates: int = 40
    """How many of the visited weights are collected."""
    every: int | None = None
    """Steps from one of them to the next; None: an epoch, as published."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    optimizer: Optimizer = SGD(lr=Validated(value=0.05), momentum=0.9)
    """How a gradient becomes a step; validation data choose its lr."""
    unit_noise: bool = True
    """Whether gradients under a Gaussian whose noise is below 1 are scaled to noise 1, for which the step size is
    meant."""

    def __post_init__(self) -> None:
        check_iterates(self.iterates, self.every, self.optimizer)

    def collecting(self, iterates: int, **changes: Any) -> Self:
        """This recipe with another number of iterates."""
        return replace(self, iterates=iterates, **changes)

    @property
    def fewest(self) -> int:
        """Iterates without which there is no posterior."""
        return 1

    def gap(self, n: int) -> int:
        """Steps from one iterate to the next, for n examples."""
        return self.schedule(n).steps // self.iterates

    def schedule(self, n: int) -> Schedule:
        return plan(self.iterates, self.every, self.batch_size, n)

    @property
    def uses(self) -> frozenset[str]:  # type: ignore[override]
        """Validation data where the step size is left open."""
        return frozenset({"val"} if self.trials() else ())

    def trials(self) -> Sequence[Method]:
        """The recipe with several step sizes and fewer iterates, where its step size is left open."""
        rate, count = self.optimizer.lr, max(2, self.iterates // TRIAL)
        if not isinstance(rate, Validated):
            return ()
        tried = [replace(self.optimizer, lr=f * rate.value) for f in RATES]  # type: ignore[type-var]
        return [self.collecting(count, optimizer=optimizer) for optimizer in tried]

    def settled(self, trial: Method | None) -> Method:
        """The recipe with the step size of a trial; None: of none, with as few steps as can be."""
        if trial is not None:
            assert isinstance(trial, GradientMethod)
            return replace(self, optimizer=trial.optimizer)
        still = replace(self.optimizer, lr=0.0)  # type: ignore[type-var]
        return replace(self, iterates=self.fewest, every=1, optimizer=still)

    def loss(self, params: Params, state: Descent, step: Step) -> Info:
        info = super().loss(params, state, step)
        return in_unit_noise(info, params, step) if self.unit_noise else info
