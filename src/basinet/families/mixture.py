"""A mixture of K distributions of one family: an ensemble as one distribution."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.lift import lift
from ..core.noise import Noise
from ..core.tree import Params, Point, take, tree_map
from .family import Family, family


@family
class Mixture(Family):
    """sum_k weights_k components_k; `components` is one stacked family, its leaves (K, ...)."""

    components: Family
    """One family with an axis for the components."""
    weights: Tensor  # (K,), sums to one

    def sample(self, noise: Noise) -> Point:
        edges = self.weights.cumsum(0)
        u = noise.split("component").uniform(edges[:1]) * edges[-1]  # below the last edge
        k = (edges <= u).sum().clamp(max=len(edges) - 1)
        chosen = tree_map(lambda x: x.index_select(0, k.reshape(1)), self.components)
        return take(chosen, 0).sample(noise.split("within"))

    def mean(self) -> Point:
        """The law of total expectation. Buffers are averaged where they are real numbers."""
        means = lift(lambda component: component.mean())(self.components)

        def average(x: Tensor) -> Tensor:
            if not x.is_floating_point():
                return x[0]
            return torch.tensordot(self.weights.to(x.dtype), x, 1)

        return tree_map(average, means)

    def log_prob(self, params: Params) -> Tensor:
        each = lift(lambda component: component.log_prob(params))(self.components)
        return torch.logsumexp(self.weights.log() + each, 0)
