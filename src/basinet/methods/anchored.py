"""Anchored ensembles: each member is the mode under a prior of its own, centred on a draw from the prior.

    theta_k = argmin_theta -sum_n log p(y_n + e_kn | x_n, theta) + |(theta - a_k) / s|^2 / 2
    a_k ~ N(centre, s^2),   e_kn ~ N(0, sigma^2) with target noise, else 0

With target noise the members are exact draws from the posterior N(mu, Lambda^-1) of a linear Gaussian model; without,
their covariance is Lambda^-1 Lambda_prior Lambda^-1, too small where the data are informative (Pearce et al. 2020). At
temperature T the spread of noise and anchors is that of the tempered likelihood and prior.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from ..core.lift import lift
from ..core.noise import Noise
from ..core.tree import Params, Point, ravel
from ..engine import Descent, GradientMethod, Info, Schedule, Step
from ..engine.method import Entry
from ..optim import SGD, Adam, Cosine, Optimizer
from ..problem import Batch, Problem
from ..problem.likelihoods import Gaussian
from ..problem.priors import Normal

if TYPE_CHECKING:
    from ..testing import Bench, Check


class Tether(NamedTuple):
    """What makes a member different from the others, the same at every step."""

    anchor: Params  # of the network's parameters
    key: Tensor  # (2,), of the target noise: example n has its own from split(n), so every epoch sees the same target


@dataclass(frozen=True, kw_only=True)
class Anchored(GradientMethod):
    """The mode under a prior centred on a draw from the prior; with members, an ensemble that spreads like a posterior.

    The prior must be Normal, of any scale and centre. A member starts from the network's own initialisation (or
    `start`), not from its anchor. Parameters that the likelihood learns have no anchor. Where the noise is learned,
    noisy targets y + sigma e move with sigma, so that it does not count the added noise as its own.
    """

    randomised: ClassVar[bool] = True

    epochs: int | None = None
    """Passes through the data; None: until done, within 3,000 to 6,000 steps, or 10 passes if that is more."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    target_noise: bool | None = None
    """Whether each target gets Gaussian noise that stays fixed; None: if the likelihood is Gaussian."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))
    """How a gradient becomes a step."""
    patience: int | None = None
    """Reports without a lower validation NLL until a member stops, at its best; None: 60 where epochs is None, else
    never."""

    def adapt(self, problem: Problem) -> Problem:
        """The same problem; raises where it has no anchors or no noise to add."""
        if not isinstance(problem.prior, Normal):
            raise ValueError(
                f"Anchored draws anchors from a Normal prior and centres it on them, got {problem.prior}: use "
                "priors.Normal, or MAP for an ensemble without anchors"
            )
        if self.target_noise and not isinstance(problem.likelihood, Gaussian):
            raise ValueError(
                f"target_noise=True expects a Gaussian likelihood, whose noise it adds to the targets, got "
                f"{type(problem.likelihood).__name__}: use target_noise=False, or None for noise where it is Gaussian"
            )
        if problem.terms and self.target_noise is not False and isinstance(problem.likelihood, Gaussian):
            raise ValueError(
                "Anchored adds noise to the targets of the data, and the problem has further terms, which would get "
                "none: members would spread too little. Use target_noise=False, for anchors only, or MAP"
            )
        return problem

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        prior = _normal(problem)
        network = problem.split(point.params)[0]
        spread = replace(prior, centre=None).sample(network, noise.split("anchor"))
        root = math.sqrt(problem.prior_temperature)
        centre = prior.centre or {}
        anchor = {n: root * z + (centre[n].to(z) if n in centre else 0.0) for n, z in spread.items()}
        tether = Tether(anchor, noise.split("targets").key)
        return Descent(point.params, point.buffers, self.optimizer.init(point.params), tether)

    def loss(self, params: Params, state: Descent, step: Step) -> Info:
        batch, problem, tether = step.batch, step.problem, state.memory
        prior, likelihood = _normal(problem), problem.likelihood
        network, learned = problem.split(params)
        if isinstance(likelihood, Gaussian) and self.target_noise is not False:
            sigma = likelihood.distribution(batch.targets, learned).stddev
            unit = _unit_noise(tether.key, batch, problem.temperature)
            batch = batch._replace(targets=batch.targets + sigma * unit)
        potential, buffers = problem.data_potential(params, state.buffers, batch, step.noise, "train")
        scales = prior.scales(tether.anchor)
        anchored = torch.stack([((network[n] - a) / scales[n]).square().sum() for n, a in tether.anchor.items()])
        energy = 0.5 * anchored.sum() / problem.prior_temperature  # in the place of the prior's
        return Info((potential + energy) / step.scale, buffers=buffers)

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("anchored ensemble", cls(), 10),)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        members, descent = 400, SGD(lr=0.1, momentum=0.9)
        noisy, alone = (cls(epochs=150, batch_size=None, target_noise=t, optimizer=descent) for t in (True, False))
        exact, cold = bench.conjugate(), bench.conjugate(temperature=0.1)
        prior_precision = _normal(exact.problem).scales({"weight": exact.mean})["weight"] ** -2
        narrow = prior_precision * exact.covariance @ exact.covariance
        for name, says, recipe, known, covariance in (
            ("target noise", "Lambda^-1", noisy, exact, exact.covariance),
            ("target noise at temperature 0.1", "T Lambda^-1", noisy, cold, cold.covariance),
            ("anchors alone", "Lambda^-1 Lambda_prior Lambda^-1", alone, exact, narrow),
        ):
            posterior = bench.fit(recipe, known.problem, known.data, members)
            draws = ravel(posterior.sample(1), 2)[:, 0]  # (members, d)
            variances = covariance.diagonal()
            off = (draws.mean(0) - known.mean) / (variances / members).sqrt()
            zero = torch.zeros_like(covariance)
            yield bench.close(f"mean of {members} members, {name}", "mu, in standard errors", off, zero[0], 4.0)
            error = ((covariance.square() + variances[:, None] * variances) / members).sqrt()
            off = (torch.cov(draws.T) - covariance) / error
            yield bench.close(f"covariance of {members} members, {name}", f"{says}, in standard errors", off, zero, 4.0)


def _normal(problem: Problem) -> Normal:
    assert isinstance(problem.prior, Normal)  # adapt has checked
    return problem.prior


def _unit_noise(key: Tensor, batch: Batch, temperature: float) -> Tensor:
    """The noise of each target in units of sigma, (B, ...): its variance is T / weight, that of the likelihood as the
    potential counts it; none where the weight is zero."""
    if batch.index.dim() == 0:
        raise ValueError(
            "target noise belongs to an example, and a stream does not say which example is which: use "
            "Anchored(target_noise=False), or data in memory"
        )
    each = Noise(key).split(batch.index).key  # (B, 2)
    unit = math.sqrt(temperature) * lift(lambda key, y: Noise(key).normal(y))(each, batch.targets)
    if batch.weights is None:
        return unit
    weights = batch.weights.reshape(batch.weights.shape + (1,) * (unit.dim() - batch.weights.dim()))
    return torch.where(weights > 0, unit * weights.clamp(min=torch.finfo(weights.dtype).tiny).rsqrt(), 0.0)
