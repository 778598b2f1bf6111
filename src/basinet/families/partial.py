"""One distribution over some of the params, another over the others: last-layer and subset posteriors."""

from __future__ import annotations

from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point
from .family import Family, family


@family
class Partial(Family):
    """`part` is over the params that it has, `rest` (a Delta, mostly) over all others and the buffers; they are
    independent. The order of the params is that of `rest`, then that of `part`."""

    rest: Family
    """Over the parameters that the part does not have."""
    part: Family
    """Over the parameters that it is about."""

    def sample(self, noise: Noise) -> Point:
        rest = self.rest.sample(noise.split("rest"))
        return Point(rest.params | self.part.sample(noise.split("part")).params, rest.buffers)

    def mean(self) -> Point:
        rest = self.rest.mean()
        return Point(rest.params | self.part.mean().params, rest.buffers)

    def log_prob(self, params: Params) -> Tensor:
        """The density over only `part` where `rest` is a point: the others are not random."""
        inside = self.part.mean().params
        density = self.part.log_prob({n: params[n] for n in inside})
        if self.rest.points == 1:
            return density
        return density + self.rest.log_prob({n: x for n, x in params.items() if n not in inside})

    def quad(self, jacobian: Params) -> Tensor:
        return self.rest.quad(jacobian) + self.part.quad(jacobian)

    def scaled(self, factor: float | Tensor) -> Partial:
        return Partial(self.rest.scaled(factor), self.part.scaled(factor))

    @property
    def points(self) -> int | None:
        return 1 if self.rest.points == self.part.points == 1 else None
