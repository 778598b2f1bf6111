"""All mass at one point: what MAP gives, and each member of a deep ensemble."""

from __future__ import annotations

from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, tree_map
from .family import Family, family, no_density


@family
class Delta(Family):
    """The point mass at (params, buffers)."""

    params: Params
    """The parameters."""
    buffers: Params
    """Norm statistics and other buffers of the network."""

    def sample(self, noise: Noise) -> Point:
        return Point(self.params, self.buffers)

    def mean(self) -> Point:
        return Point(self.params, self.buffers)

    def log_prob(self, params: Params) -> Tensor:
        raise no_density("Delta")

    def quad(self, jacobian: Params) -> Tensor:
        first = next(iter(jacobian.values()))
        return first.new_zeros(len(first), len(first))

    def scaled(self, factor: float | Tensor) -> Delta:
        return self

    def draw(self, noise: Noise, s: int | Tensor) -> Point:
        return Point(self.params, self.buffers)

    def draws(self, noise: Noise, begin: int, end: int) -> Point:
        return tree_map(lambda x: x.expand(end - begin, *x.shape), Point(self.params, self.buffers))

    @property
    def points(self) -> int:
        return 1
