"""Equal mass at each of K points: chains, snapshots, particles of one member."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, take, tree_map
from .family import Family, family, no_density


@family
class Empirical(Family):
    """K points on the leading axis of every leaf. Draws are stratified: each K in a row visit every point once."""

    params: Params  # leaves (K, ...)
    buffers: Params  # leaves (K, ...)
    count: int
    """K, the number of points."""

    def sample(self, noise: Noise) -> Point:
        return self._at(noise.integers(1, self.count)[0])

    def mean(self) -> Point:
        """The average params. Buffers are averaged where they are real numbers: refresh norm statistics before use."""
        return tree_map(lambda x: x.mean(0) if x.is_floating_point() else x[0], Point(self.params, self.buffers))

    def log_prob(self, params: Params) -> Tensor:
        raise no_density("Empirical")

    def draw(self, noise: Noise, s: int | Tensor) -> Point:
        s = torch.as_tensor(s, device=noise.key.device)
        order = noise.split(s // self.count).permutation(self.count)
        return self._at(order.gather(0, (s % self.count).reshape(1))[0])

    def draws(self, noise: Noise, begin: int, end: int) -> Point:
        rounds = range(begin // self.count, -(-end // self.count))
        order = torch.cat([noise.split(r).permutation(self.count) for r in rounds])
        first = rounds.start * self.count
        index = order[begin - first : end - first]
        return tree_map(lambda x: x.index_select(0, index), Point(self.params, self.buffers))

    @property
    def points(self) -> int:
        return self.count

    def _at(self, index: Tensor) -> Point:
        rows = Point(self.params, self.buffers)
        return take(tree_map(lambda x: x.index_select(0, index.reshape(1)), rows), 0)
