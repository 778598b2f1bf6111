"""A normal distribution seen through a flow: planar, radial or coupling maps of its draws."""

from __future__ import annotations

from torch import Tensor

from ..core.noise import Noise
from ..core.tree import Params, Point, ravel, unravel
from . import flows
from .family import Family, family


@family
class Flow(Family):
    """The maps of `flows.py` after draws of a family, over all P elements of its params in the order of `ravel`."""

    before: Family
    """Diagonal or Full: what the maps are applied to."""
    maps: Params  # leaves (T, ...)
    centre: Params
    """The mean, which has no closed form: that of many draws."""
    flow: str
    """The kind of the maps."""

    def sample(self, noise: Noise) -> Point:
        point = self.before.sample(noise)
        return Point(unravel(flows.forward(self.flow, self.maps, ravel(point.params))[0], self.centre), point.buffers)

    def mean(self) -> Point:
        return Point(self.centre, self.before.mean().buffers)

    def log_prob(self, params: Params) -> Tensor:
        z, logs = flows.inverse(self.flow, self.maps, ravel({n: params[n] for n in self.centre}))
        return self.before.log_prob(unravel(z, self.centre)) - logs
