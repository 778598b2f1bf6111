"""Randomised prior functions: a fixed random network is added to each member, which only learns the difference.

    f_k(x) = g(x; theta_k) + beta g(x; phi_k),   theta_k = argmin_theta U(theta) with f_k for g,   phi_k never trained

Near data the trained part makes up for the random one; away from them the random one remains, and members differ there
(Osband et al. 2018). In a linear model a member is the mode under a prior centred on beta phi_k, for the sum of both.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..core.model import Mode, Model
from ..core.noise import Noise
from ..core.tree import Params, Point
from ..data.toys import gaps, in_gaps
from ..engine import Descent, GradientMethod, Schedule
from ..engine.method import Entry
from ..families import Delta
from ..networks import MLP
from ..optim import SGD, Adam, Cosine, Optimizer
from ..problem import Problem
from ..problem.likelihoods import Gaussian
from ..problem.priors import Normal

if TYPE_CHECKING:
    from ..testing import Bench, Check

PREFIX = "random."


class Summed(Model):
    """A network plus beta times a second one, which travels in the buffers under names that begin with `random.`.

    The second never changes: it runs as in evaluation, with neither dropout nor batch statistics. A point without one
    is the network alone.
    """

    def __init__(self, network: Model, beta: float) -> None:
        vars(self).update(vars(network))  # parameters, norm layers and description are those of the network
        self.network, self.beta = network, beta

    def init(self, noise: Noise) -> Point:
        """The network as it would start without the second, and the second from a key of its own."""
        point, other = self.network.init(noise), self.network.init(noise.split("random prior"))
        return Point(point.params, point.buffers | _prefixed(other))

    def __call__(
        self, params: Params, buffers: Params, inputs: Any, noise: Noise | None = None, mode: Mode = "eval"
    ) -> tuple[Tensor, Params]:
        own = {n: x for n, x in buffers.items() if not n.startswith(PREFIX)}
        other = {n.removeprefix(PREFIX): x for n, x in buffers.items() if n.startswith(PREFIX)}
        outputs, after = self.network(params, own, inputs, noise, mode)
        if other:
            fixed = {n: other.pop(n) for n in params}
            outputs = outputs + self.beta * self.network(fixed, other, inputs)[0]
        return outputs, buffers | after

    def draw(self, like: Params, noise: Noise) -> Params:
        """A second network for a start that has none: every tensor normal, with the mean and the spread over its
        elements that the network's own initialisation has."""
        device = next(iter(like.values())).device
        point = self.network.read(self.network.module)

        def drawn(name: str, x: Tensor) -> Tensor:
            x = x.to(device, like[name].dtype if name in like else None)
            if name not in like:
                return x
            return x.mean() + x.std(correction=0) * noise.split(name).normal(x)

        return _prefixed(Point(*({n: drawn(n, x) for n, x in part.items()} for part in (point.params, point.buffers))))


@dataclass(frozen=True, kw_only=True)
class RandomPrior(GradientMethod):
    """The mode of a network to which a fixed random network, times beta, is added; each member has its own.

    The random network is initialised as the network is, from the member's key, and is saved with the buffers.
    """

    epochs: int | None = None
    """Passes through the data; None: until done, within 3,000 to 6,000 steps, or 10 passes if that is more."""
    batch_size: int | None = 128
    """Examples per step; None: all."""
    beta: float = 3.0
    """Factor of the random network, at least 0; 0 is MAP; torch's small initialisation needs 3 to 10."""
    optimizer: Optimizer = Adam(lr=Cosine(peak=3e-3))
    """How a gradient becomes a step."""
    patience: int | None = None
    """Reports without a lower validation NLL until a member stops, at its best; None: 60 where epochs is None, else
    never."""

    def __post_init__(self) -> None:
        if not 0 <= self.beta < math.inf:
            raise ValueError(f"expected a finite beta of at least 0, got {self.beta}")

    def adapt(self, problem: Problem) -> Problem:
        return problem.through(Summed(problem.network, self.beta))

    def schedule(self, n: int) -> Schedule:
        return Schedule.of_epochs(self.epochs, self.batch_size, n)

    def init(self, point: Point, problem: Problem, noise: Noise) -> Descent:
        buffers = point.buffers
        if not any(n.startswith(PREFIX) for n in buffers):
            assert isinstance(problem.network, Summed)
            buffers = buffers | problem.network.draw(problem.split(point.params)[0], noise.split("random prior"))
        return Descent(point.params, buffers, self.optimizer.init(point.params))

    @classmethod
    def lineup(cls) -> Iterable[Entry]:
        return (Entry("random prior ensemble", cls(), 10),)

    @classmethod
    def theory(cls, bench: Bench) -> Iterable[Check]:
        exact, members = bench.conjugate(), 5
        prior = exact.problem.prior
        assert isinstance(prior, Normal)
        pull = exact.covariance * prior.scales({"weight": exact.mean})["weight"] ** -2
        for beta in (0.0, 2.0):
            recipe = cls(epochs=600, batch_size=None, beta=beta, optimizer=SGD(lr=0.1, momentum=0.9))
            family = bench.fit(recipe, exact.problem, exact.data, members).parts[0].family
            assert isinstance(family, Delta)
            fixed = family.buffers[PREFIX + "weight"][:, 0]  # (members, d)
            sums, expected = family.params["weight"][:, 0] + beta * fixed, exact.mean + beta * fixed @ pull
            says = "mu + Lambda^-1 Lambda_prior beta phi" if beta else "mu"
            yield bench.close(f"sum of both networks, beta {beta:g}", says, sums, expected, 1e-10)
        nearest, zero = torch.pdist(fixed).min(), torch.zeros(())
        yield bench.close("1 / distance of the nearest two random networks", "< 100", 1 / nearest, zero, 100.0)
        problem = Problem(lambda: MLP(1, 1, hidden=(50,)), Gaussian(noise=0.05), Normal(scale="lecun"))
        data, away = gaps(60), in_gaps(200).inputs.double()
        spread = []
        for beta in (0.0, 10.0):
            recipe = cls(epochs=300, batch_size=None, beta=beta, optimizer=Adam(lr=Cosine(peak=0.01)))
            spread.append(bench.fit(recipe, problem, data, 10).predict(away).epistemic.mean().sqrt())
        name = "spread of 10 members away from data, beta 0 over beta 10"
        yield bench.close(name, "< 1/2", spread[0] / spread[1], zero, 0.5)


def _prefixed(point: Point) -> Params:
    return {PREFIX + n: x for n, x in (point.params | point.buffers).items()}
